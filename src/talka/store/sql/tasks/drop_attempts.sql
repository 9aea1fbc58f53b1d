DELETE FROM talka_attempts WHERE task BETWEEN ? AND ?;
