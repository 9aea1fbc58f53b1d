SELECT count(*), min(task >> 32) FROM talka_logs WHERE task NOT IN (SELECT key FROM talka_tasks);
