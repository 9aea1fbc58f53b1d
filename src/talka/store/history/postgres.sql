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

-- name: has_tables
SELECT to_regclass('talka_history_version') IS NOT NULL;

-- name: read_version
SELECT max(version) FROM talka_history_version;

-- name: write_version
INSERT INTO talka_history_version (version) VALUES ($1);

-- name: lock
-- One writer at a time, until its transaction ends. The number spells "talka" and is nobody else's.
SELECT pg_advisory_xact_lock(499850701665);

-- name: keep_run
INSERT INTO talka_runs
    (id, name, status, exit_code, started_at, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms, document)
VALUES
    ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (id) DO UPDATE SET
    (name, status, exit_code, started_at, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms, document)
    = ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

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
-- What a baseline names stays, however old it is.
DELETE FROM talka_runs
WHERE id NOT IN (SELECT id FROM talka_baselines)
  AND id IN (SELECT id FROM talka_runs ORDER BY started_at DESC, id DESC OFFSET $1);

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
