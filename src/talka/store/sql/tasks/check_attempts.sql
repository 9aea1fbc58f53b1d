SELECT count(*), min(task >> 32) FROM talka_attempts WHERE task NOT IN (SELECT key FROM talka_tasks);
