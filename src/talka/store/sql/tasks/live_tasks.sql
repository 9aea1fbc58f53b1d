SELECT key & 4294967295, state, id, depends_on, attempts, fence, worker, ready_ms, deaths, handler, priority,
    failures
FROM talka_tasks
WHERE key > :after AND key <= :last
ORDER BY key
LIMIT :limit;
