-- The second bound lets the index answer: no id goes on with the last of all characters.
SELECT id, name, status, exit_code, started_at_us, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms
FROM talka_runs
WHERE id >= :start AND id < :start || char(1114111)
ORDER BY id
LIMIT :limit;
