SELECT (SELECT count(*) FROM talka_jobs), (SELECT count(*) FROM talka_tasks);
