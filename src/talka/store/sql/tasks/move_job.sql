UPDATE talka_jobs
SET state = ?,
    started_ms = coalesce(nullif(started_ms, 0), ?),
    ended_ms = ?,
    ended_age_ms = NULL,
    reason = ?,
    tasks = coalesce(?, tasks),
    counts = coalesce(?, counts)
WHERE number = ?;
