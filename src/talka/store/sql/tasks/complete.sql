-- What is 0 or empty of the last three says nothing new.
UPDATE talka_tasks
SET state = ?,
    ended_ms = ?,
    output = ?,
    blob = ?,
    error = ?,
    cause = ?,
    started_ms = coalesce(nullif(?, 0), started_ms),
    worker = coalesce(nullif(?, ''), worker),
    attempts = coalesce(nullif(?, 0), attempts)
WHERE key = ? AND ? IN (fence, 0) AND state < 4;
