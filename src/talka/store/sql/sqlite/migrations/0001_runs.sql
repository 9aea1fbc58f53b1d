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
