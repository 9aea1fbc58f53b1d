-- A job that is still SUBMITTED may get more tasks.
SELECT id, tasks, found
FROM talka_jobs
JOIN (SELECT number AS of_job, (SELECT count(*) FROM talka_tasks WHERE key BETWEEN number << 32 AND (number << 32) + 4294967295)
        AS found
    FROM talka_jobs) ON of_job = number
WHERE state > 0 AND tasks <> found
ORDER BY number
LIMIT 20;
