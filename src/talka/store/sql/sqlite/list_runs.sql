SELECT id, name, status, exit_code, started_at_us, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms
FROM talka_runs
WHERE :name IS NULL OR name = :name
ORDER BY started_at_us DESC, id DESC
LIMIT :limit;
