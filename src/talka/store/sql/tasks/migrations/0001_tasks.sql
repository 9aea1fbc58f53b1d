-- States are positions in talka.work.records.JOB_STATES and TASK_STATES. Jobs have ended from 7 on, tasks from 4 on.
CREATE TABLE talka_tasks_version (
    version INTEGER PRIMARY KEY
);

CREATE TABLE talka_jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- so that a number is never used twice
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    state INTEGER NOT NULL,
    submitted_ms INTEGER NOT NULL,
    settings BLOB NOT NULL,
    tasks INTEGER NOT NULL,
    key TEXT NOT NULL,
    digest TEXT NOT NULL,
    submitted_by TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL,
    reason TEXT NOT NULL,
    counts BLOB NOT NULL  -- JSON
);

CREATE UNIQUE INDEX talka_jobs_by_key ON talka_jobs (key) WHERE key <> '';
CREATE INDEX talka_live_jobs ON talka_jobs (number) WHERE state < 7;
CREATE INDEX talka_ended_jobs ON talka_jobs (ended_ms, number) WHERE state >= 7;

-- One integer as the key: a little faster than two columns, and four times with specs of a kilobyte.
CREATE TABLE talka_tasks (
    key INTEGER PRIMARY KEY,  -- number of the job << 32 | index of the task
    state INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    ready_ms INTEGER NOT NULL,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL,
    deaths INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    id TEXT NOT NULL,
    handler TEXT NOT NULL,
    worker TEXT NOT NULL,
    cause TEXT NOT NULL,
    depends_on BLOB NOT NULL,  -- indexes, four bytes each, little end first
    blob TEXT NOT NULL,
    error TEXT NOT NULL,
    -- What may be large is last, so that the rest is read without it.
    spec BLOB NOT NULL,
    checkpoint BLOB NOT NULL,
    output BLOB NOT NULL
);

CREATE INDEX talka_dead_tasks ON talka_tasks (key) WHERE state = 9;
CREATE INDEX talka_tasks_by_blob ON talka_tasks (blob) WHERE blob <> '';

CREATE TABLE talka_attempts (
    task INTEGER NOT NULL,  -- key of the task
    fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    worker TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER NOT NULL,
    cause TEXT NOT NULL,
    exit_code INTEGER,
    signal TEXT NOT NULL,
    memory_bytes INTEGER NOT NULL,
    error TEXT NOT NULL,
    PRIMARY KEY (task, fence)
) WITHOUT ROWID;

CREATE TABLE talka_events (
    number INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    task INTEGER NOT NULL,  -- index, -1: of the job itself
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL
);

CREATE INDEX talka_events_by_job ON talka_events (job);

CREATE TABLE talka_logs (
    number INTEGER PRIMARY KEY,
    task INTEGER NOT NULL,  -- key of the task
    attempt INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    text TEXT NOT NULL
);

CREATE INDEX talka_logs_by_task ON talka_logs (task);

CREATE TABLE talka_keys (
    key TEXT PRIMARY KEY,
    task INTEGER NOT NULL  -- key of the task that completed under it
) WITHOUT ROWID;

CREATE INDEX talka_keys_by_task ON talka_keys (task);

CREATE TABLE talka_schedules (
    name TEXT PRIMARY KEY,
    cron TEXT NOT NULL,
    next_ms INTEGER NOT NULL,
    last_job TEXT NOT NULL,
    submitted_by TEXT NOT NULL,
    spec BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE talka_leases (
    key TEXT PRIMARY KEY,
    owner TEXT NOT NULL,  -- empty: released
    epoch INTEGER NOT NULL,  -- stays when the lease is over
    until_ms INTEGER NOT NULL
) WITHOUT ROWID;
