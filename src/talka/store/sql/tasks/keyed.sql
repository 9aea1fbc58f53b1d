SELECT talka_keys.key, talka_jobs.id, talka_tasks.id, output, blob
FROM (SELECT value AS wanted FROM json_each(:keys))
CROSS JOIN talka_keys ON talka_keys.key = wanted
CROSS JOIN talka_tasks ON talka_tasks.key = talka_keys.task
CROSS JOIN talka_jobs ON number = talka_keys.task >> 32
WHERE talka_tasks.state = 4;
