DELETE FROM talka_keys WHERE task BETWEEN ? AND ?;
