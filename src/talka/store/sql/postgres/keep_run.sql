INSERT INTO talka_runs
    (id, name, status, exit_code, started_at, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms, document)
VALUES
    ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (id) DO UPDATE SET
    (name, status, exit_code, started_at, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms, document)
    = ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);
