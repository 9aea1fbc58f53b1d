SELECT count(*), min(job) FROM talka_events WHERE job NOT IN (SELECT number FROM talka_jobs);
