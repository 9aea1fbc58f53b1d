INSERT INTO talka_jobs
    (number, id, name, state, submitted_ms, settings, tasks, key, digest, submitted_by, started_ms, ended_ms, reason,
     counts)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
