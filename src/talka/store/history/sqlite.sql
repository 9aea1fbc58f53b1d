-- The run history, in SQLite.
-- Sections are read by their names (store/sql_text.py). A migration that has been released is never edited: add one.

-- migration: 1
CREATE TABLE talka_history_version (
    version INTEGER PRIMARY KEY
);

CREATE TABLE talka_runs (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    exit_code INTEGER NOT NULL,
    started_at_us INTEGER NOT NULL,  -- since 1970, UTC
    duration_s REAL NOT NULL,
    requests INTEGER NOT NULL,
    rate_per_s REAL NOT NULL,
    failed INTEGER NOT NULL,
    p50_ms REAL,
    p99_ms REAL,
    document BLOB NOT NULL  -- last, so that a list does not read past it
);

CREATE INDEX talka_runs_by_start ON talka_runs (started_at_us, id);

-- migration: 2
CREATE TABLE talka_baselines (
    name TEXT PRIMARY KEY,
    id TEXT NOT NULL  -- of a run in talka_runs
);

-- migration: 3
-- Rows for queries, of the runs kept from here on. They go with their run (foreign keys are on).
CREATE TABLE talka_run_steps (
    run TEXT NOT NULL REFERENCES talka_runs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,  -- in the order of the result
    workflow TEXT NOT NULL,
    step TEXT NOT NULL,
    call TEXT NOT NULL,  -- '' where the row is of the step itself, with all its calls
    measured INTEGER NOT NULL,
    count INTEGER NOT NULL,
    ok INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    interrupted INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    rate_per_s REAL NOT NULL,
    mean_ms REAL,  -- of response times, as are those below
    p50_ms REAL,
    p90_ms REAL,
    p95_ms REAL,
    p99_ms REAL,
    max_ms REAL,
    service_p50_ms REAL,
    service_p99_ms REAL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;

CREATE TABLE talka_run_metrics (
    run TEXT NOT NULL REFERENCES talka_runs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    workflow TEXT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    count INTEGER NOT NULL,
    total REAL NOT NULL,
    rate_per_s REAL NOT NULL,
    min REAL,
    mean REAL,
    max REAL,
    p50 REAL,
    p99 REAL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;

CREATE TABLE talka_run_checks (
    run TEXT NOT NULL REFERENCES talka_runs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    workflow TEXT NOT NULL,
    name TEXT NOT NULL,
    passed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;

-- name: tables
SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- name: read_version
SELECT max(version) FROM talka_history_version;

-- name: write_version
INSERT INTO talka_history_version (version) VALUES (:version);

-- name: drop_run
DELETE FROM talka_runs WHERE id = :id;

-- name: keep_run
INSERT INTO talka_runs
    (id, name, status, exit_code, started_at_us, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms, document)
VALUES
    (:id, :name, :status, :exit_code, :started_at_us, :duration_s, :requests, :rate_per_s, :failed, :p50_ms, :p99_ms,
     :document);

-- name: keep_step
INSERT INTO talka_run_steps
    (run, number, workflow, step, call, measured, count, ok, failed, interrupted, skipped, rate_per_s, mean_ms, p50_ms,
     p90_ms, p95_ms, p99_ms, max_ms, service_p50_ms, service_p99_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: keep_metric
INSERT INTO talka_run_metrics
    (run, number, workflow, name, kind, count, total, rate_per_s, min, mean, max, p50, p99)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: keep_check
INSERT INTO talka_run_checks (run, number, workflow, name, passed, failed)
VALUES (?, ?, ?, ?, ?, ?);

-- name: list_runs
SELECT id, name, status, exit_code, started_at_us, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms
FROM talka_runs
WHERE :name IS NULL OR name = :name
ORDER BY started_at_us DESC, id DESC
LIMIT :limit;

-- name: find_runs
-- The second bound lets the index answer: no id goes on with the last of all characters.
SELECT id, name, status, exit_code, started_at_us, duration_s, requests, rate_per_s, failed, p50_ms, p99_ms
FROM talka_runs
WHERE id >= :start AND id < :start || char(1114111)
ORDER BY id
LIMIT :limit;

-- name: load_document
SELECT document FROM talka_runs WHERE id = :id;

-- name: forget_runs
DELETE FROM talka_runs
WHERE id IN (SELECT value FROM json_each(:ids)) AND id NOT IN (SELECT id FROM talka_baselines);

-- name: prune_runs
-- Of those that passed, or of the others. What a baseline names stays, however old it is.
DELETE FROM talka_runs
WHERE id NOT IN (SELECT id FROM talka_baselines)
  AND (exit_code = 0) = :passed
  AND (started_at_us < :oldest_us
       OR id IN (SELECT id FROM talka_runs WHERE (exit_code = 0) = :passed
                 ORDER BY started_at_us DESC, id DESC LIMIT -1 OFFSET :keep_count));

-- name: baselines
SELECT name, id FROM talka_baselines ORDER BY name;

-- name: set_baseline
INSERT INTO talka_baselines (name, id)
SELECT :name, :id
WHERE EXISTS (SELECT 1 FROM talka_runs WHERE id = :id)
  AND (EXISTS (SELECT 1 FROM talka_baselines WHERE name = :name)
       OR (SELECT count(*) FROM talka_baselines) < :most)
ON CONFLICT (name) DO UPDATE SET id = excluded.id;

-- name: drop_baseline
DELETE FROM talka_baselines WHERE name = :name;
