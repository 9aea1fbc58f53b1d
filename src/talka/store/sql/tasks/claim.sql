-- To ASSIGNED. A higher fence is of somebody who came later.
UPDATE talka_tasks
SET state = 2, attempts = ?, fence = ?, worker = ?, started_ms = ?
WHERE key = ? AND fence <= ? AND state < 4;
