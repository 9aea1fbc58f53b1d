INSERT OR REPLACE INTO talka_schedules (name, cron, next_ms, last_job, submitted_by, spec) VALUES (?, ?, ?, ?, ?, ?);
