CREATE TABLE talka_baselines (
    name text COLLATE "C" PRIMARY KEY,
    id text COLLATE "C" NOT NULL  -- of a run in talka_runs
);
