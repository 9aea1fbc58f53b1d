DELETE FROM talka_logs WHERE task BETWEEN ? AND ?;
