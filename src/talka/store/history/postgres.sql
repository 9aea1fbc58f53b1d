-- The run history, in PostgreSQL.
-- Sections are read by their names (store/sql_text.py). A migration that has been released is never edited: add one.

-- migration: 1
CREATE TABLE talka_history_version (
    version integer PRIMARY KEY
);

CREATE TABLE talka_runs (
    id text COLLATE "C" PRIMARY KEY,  -- the same order wherever the server stands
    name text NOT NULL,
    status text NOT NULL,
    exit_code bigint NOT NULL,
    started_at timestamptz NOT NULL,
    duration_s double precision NOT NULL,
    requests bigint NOT NULL,
    rate_per_s double precision NOT NULL,
    failed bigint NOT NULL,
    p50_ms double precision,
    p99_ms double precision,
    document bytea NOT NULL
);

-- It is compressed already: no second try at each write.
ALTER TABLE talka_runs ALTER COLUMN document SET STORAGE EXTERNAL;

CREATE INDEX talka_runs_by_start ON talka_runs (started_at, id);

-- migration: 2
CREATE TABLE talka_baselines (
    name text COLLATE "C" PRIMARY KEY,
    id text COLLATE "C" NOT NULL  -- of a run in talka_runs
);

-- migration: 3
-- Rows for queries, of the runs kept from here on. They go with their run.
CREATE TABLE talka_run_steps (
    run text COLLATE "C" NOT NULL REFERENCES talka_runs (id) ON DELETE CASCADE,
    number integer NOT NULL,  -- in the order of the result
    workflow text NOT NULL,
    step text NOT NULL,
    call text NOT NULL,  -- '' where the row is of the step itself, with all its calls
    measured boolean NOT NULL,
    count bigint NOT NULL,
    ok bigint NOT NULL,
    failed bigint NOT NULL,
    interrupted bigint NOT NULL,
    skipped bigint NOT NULL,
    rate_per_s double precision NOT NULL,
    mean_ms double precision,  -- of response times, as are those below
    p50_ms double precision,
    p90_ms double precision,
    p95_ms double precision,
    p99_ms double precision,
    max_ms double precision,
    service_p50_ms double precision,
    service_p99_ms double precision,
    PRIMARY KEY (run, number)
);

CREATE TABLE talka_run_metrics (
    run text COLLATE "C" NOT NULL REFERENCES talka_runs (id) ON DELETE CASCADE,
    number integer NOT NULL,
    workflow text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    count bigint NOT NULL,
    total double precision NOT NULL,
    rate_per_s double precision NOT NULL,
    min double precision,
    mean double precision,
    max double precision,
    p50 double precision,
    p99 double precision,
    PRIMARY KEY (run, number)
);

CREATE TABLE talka_run_checks (
    run text COLLATE "C" NOT NULL REFERENCES talka_runs (id) ON DELETE CASCADE,
    number integer NOT NULL,
    workflow text NOT NULL,
    name text NOT NULL,
    passed bigint NOT NULL,
    failed bigint NOT NULL,
    PRIMARY KEY (run, number)
);

-- name: has_tables
SELECT to_regclass('talka_history_version') IS NOT NULL;

-- name: read_version
SELECT max(version) FROM talka_history_version;

-- name: write_version
INSERT INTO talka_history_version (version) VALUES ($1);

-- name: lock
-- One writer at a time, until its transaction ends. The number spells "talka" and is nobody else's.
SELECT pg_advisory_xact_lock(499850701665);

-- name: drop_run
DELETE FROM talka_runs WHERE id = $1;

-- name: keep_run
INSERT INTO talka_runs
    (id, name, status, exit_code, started_at, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms, document)
VALUES
    ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: keep_step
INSERT INTO talka_run_steps
    (run, number, workflow, step, call, measured, count, ok, failed, interrupted, skipped, rate_per_s, mean_ms, p50_ms,
     p90_ms, p95_ms, p99_ms, max_ms, service_p50_ms, service_p99_ms)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20);

-- name: keep_metric
INSERT INTO talka_run_metrics
    (run, number, workflow, name, kind, count, total, rate_per_s, min, mean, max, p50, p99)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: keep_check
INSERT INTO talka_run_checks (run, number, workflow, name, passed, failed)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: list_runs
SELECT id, name, status, exit_code, started_at, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms
FROM talka_runs
WHERE $2::text IS NULL OR name = $2
ORDER BY started_at DESC, id DESC
LIMIT $1;

-- name: find_runs
SELECT id, name, status, exit_code, started_at, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms
FROM talka_runs
WHERE starts_with(id, $1)
ORDER BY id
LIMIT $2;

-- name: load_document
SELECT document FROM talka_runs WHERE id = $1;

-- name: forget_runs
WITH gone AS (
    DELETE FROM talka_runs WHERE id = ANY ($1::text[]) AND id NOT IN (SELECT id FROM talka_baselines) RETURNING 1
)
SELECT count(*) FROM gone;

-- name: prune_runs
-- Of those that passed, or of the others, by the server's clock. What a baseline names stays, however old it is.
DELETE FROM talka_runs
WHERE id NOT IN (SELECT id FROM talka_baselines)
  AND (exit_code = 0) = $1
  AND (started_at < now() - $2::interval
       OR id IN (SELECT id FROM talka_runs WHERE (exit_code = 0) = $1 ORDER BY started_at DESC, id DESC OFFSET $3));

-- name: baselines
SELECT name, id FROM talka_baselines ORDER BY name;

-- name: set_baseline
WITH done AS (
    INSERT INTO talka_baselines (name, id)
    SELECT $1, $2
    WHERE EXISTS (SELECT 1 FROM talka_runs WHERE id = $2)
      AND (EXISTS (SELECT 1 FROM talka_baselines WHERE name = $1)
           OR (SELECT count(*) FROM talka_baselines) < $3)
    ON CONFLICT (name) DO UPDATE SET id = excluded.id
    RETURNING 1
)
SELECT count(*) FROM done;

-- name: drop_baseline
WITH gone AS (DELETE FROM talka_baselines WHERE name = $1 RETURNING 1)
SELECT count(*) FROM gone;
