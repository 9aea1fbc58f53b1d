INSERT INTO talka_events (job, task, at_ms, kind, text) VALUES (?, ?, ?, ?, ?);
