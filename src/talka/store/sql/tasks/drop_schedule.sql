DELETE FROM talka_schedules WHERE name = ?;
