-- Without its fence: a result of an attempt before this must not become that of the next.
UPDATE talka_tasks
SET state = 0, attempts = 0, fence = 0, ready_ms = 0, started_ms = 0, ended_ms = 0, deaths = 0, failures = 0, worker = '',
    cause = '', blob = '', error = '', checkpoint = x'', output = x''
WHERE key = ?;
