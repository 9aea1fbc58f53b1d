SELECT count(*), min(key >> 32) FROM talka_tasks WHERE key >> 32 NOT IN (SELECT number FROM talka_jobs);
