CREATE TABLE talka_baselines (
    name TEXT PRIMARY KEY,
    id TEXT NOT NULL  -- of a run in talka_runs
);
