SELECT job, at_ms, kind, task, text, number
FROM talka_events
WHERE job = :job AND number > :after
ORDER BY number
LIMIT :limit;
