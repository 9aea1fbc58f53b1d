SELECT id, name, status, exit_code, started_at, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms
FROM talka_runs
WHERE starts_with(id, $1)
ORDER BY id
LIMIT $2;
