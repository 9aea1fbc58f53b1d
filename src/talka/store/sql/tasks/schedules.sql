SELECT name, cron, spec, next_ms, last_job, submitted_by FROM talka_schedules ORDER BY name;
