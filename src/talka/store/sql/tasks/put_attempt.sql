INSERT OR REPLACE INTO talka_attempts
    (task, fence, attempt, worker, started_ms, ended_ms, cause, exit_code, signal, memory_bytes, error)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
