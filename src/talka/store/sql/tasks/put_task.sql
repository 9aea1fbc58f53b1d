INSERT INTO talka_tasks
    (key, state, attempts, fence, ready_ms, started_ms, ended_ms, deaths, failures, priority, id, handler, worker,
     cause, depends_on, blob, error, spec, checkpoint, output)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
