-- To PENDING.
UPDATE talka_tasks
SET state = 0, ready_ms = ?, attempts = ?, deaths = ?, failures = ?, cause = ?, error = ?
WHERE key = ? AND ? IN (fence, 0) AND state < 4;
