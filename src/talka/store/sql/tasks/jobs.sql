SELECT number, id, name, state, submitted_ms, settings, tasks, key, digest, submitted_by, started_ms, ended_ms, reason,
    counts
FROM talka_jobs
WHERE number < :before AND (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))
ORDER BY number DESC
LIMIT :limit;
