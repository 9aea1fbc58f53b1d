SELECT key >> 32, key & 4294967295, id, state, spec, depends_on, attempts, fence, worker, ready_ms, started_ms, ended_ms,
    output, blob, error, cause, deaths, checkpoint, failures
FROM talka_tasks
WHERE key > :after AND state = 9
ORDER BY key
LIMIT :limit;
