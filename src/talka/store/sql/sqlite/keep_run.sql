INSERT OR REPLACE INTO talka_runs
    (id, name, status, exit_code, started_at_us, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms, document)
VALUES
    (:id, :name, :status, :exit_code, :started_at_us, :duration_s, :requests, :rate_per_s, :failed, :p50_ms, :p99_ms,
     :document);
