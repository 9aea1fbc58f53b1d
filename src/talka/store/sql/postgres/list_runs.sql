SELECT id, name, status, exit_code, started_at, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms
FROM talka_runs
WHERE $2::text IS NULL OR name = $2
ORDER BY started_at DESC, id DESC
LIMIT $1;
