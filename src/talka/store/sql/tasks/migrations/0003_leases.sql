-- A lease ends when its holder was watched and did not stir, whatever any clock says: each renewal changes `beat`.
-- until_ms stays for a manager of an earlier version that still runs: it changes that, and is seen to live.
ALTER TABLE talka_leases ADD COLUMN beat INTEGER NOT NULL DEFAULT 0;

-- For how long managers have had this store, by clocks that nobody sets.
CREATE TABLE talka_age (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    ms INTEGER NOT NULL
);
INSERT INTO talka_age (one, ms) VALUES (1, 0);

ALTER TABLE talka_jobs ADD COLUMN ended_age_ms INTEGER;  -- how old the store was; empty until its end was seen
DROP INDEX talka_ended_jobs;
CREATE INDEX talka_ended_jobs ON talka_jobs (ended_age_ms, ended_ms, number) WHERE state >= 7;
