INSERT INTO talka_logs (task, attempt, at_ms, text) VALUES (?, ?, ?, ?);
