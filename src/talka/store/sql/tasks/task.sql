-- Without an index: one would cost every new task as much as all the rest of it.
SELECT key >> 32, key & 4294967295, id, state, spec, depends_on, attempts, fence, worker, ready_ms, started_ms, ended_ms,
    output, blob, error, cause, deaths, checkpoint, failures
FROM talka_tasks
WHERE key BETWEEN :first AND :last AND id = :id
LIMIT 1;
