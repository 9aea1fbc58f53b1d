DELETE FROM talka_events WHERE job = ?;
