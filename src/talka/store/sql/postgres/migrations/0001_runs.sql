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
