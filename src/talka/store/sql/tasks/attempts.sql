SELECT task >> 32, task & 4294967295, attempt, fence, worker, started_ms, ended_ms, cause, error, exit_code, signal,
    memory_bytes
FROM (SELECT value AS wanted FROM json_each(:keys)) CROSS JOIN talka_attempts ON task = wanted
ORDER BY task, fence;
