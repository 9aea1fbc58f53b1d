-- Dag jobs, their tasks, schedules and leases, in SQLite.
-- Sections are read by their names (store/sql_text.py). A migration that has been released is never edited: add one.

-- migration: 1
-- States are positions in talka.work.dags.records.JOB_STATES and TASK_STATES. Jobs have ended from 7 on, tasks from 4 on.
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

-- migration: 2
-- Which store this is, and which of its lives: one row, made when a manager first opens the file.
CREATE TABLE talka_life (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    store INTEGER NOT NULL,  -- drawn when the store was made
    life INTEGER NOT NULL,  -- drawn with it, and anew when a copy is first opened
    inode INTEGER NOT NULL,  -- of the file that was opened last
    is_copy INTEGER NOT NULL  -- 1: made by a backup, and not opened by a manager yet
);

-- migration: 3
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

-- migration: 4
-- Values that a job was filled with, as JSON.
ALTER TABLE talka_jobs ADD COLUMN params BLOB NOT NULL DEFAULT x'';

-- migration: 5
-- When a schedule is due, and what becomes of what it missed: in its own zone (empty: UTC).
ALTER TABLE talka_schedules ADD COLUMN timezone TEXT NOT NULL DEFAULT '';
ALTER TABLE talka_schedules ADD COLUMN catch_up TEXT NOT NULL DEFAULT 'one';
ALTER TABLE talka_schedules ADD COLUMN is_paused INTEGER NOT NULL DEFAULT 0;
ALTER TABLE talka_schedules ADD COLUMN ran_ms INTEGER NOT NULL DEFAULT 0;  -- the instant that ran_job is for
ALTER TABLE talka_schedules ADD COLUMN ran_job TEXT NOT NULL DEFAULT '';

-- migration: 6
-- Tasks that are fanned out: their elements are the tasks of the same job with the indexes first to first + count - 1.
CREATE TABLE talka_fans (
    task INTEGER PRIMARY KEY,  -- key of the task
    first INTEGER NOT NULL,
    count INTEGER NOT NULL
);

-- migration: 7
-- Of the attempt that ended a task: the most memory that its process had meanwhile; 0: not measured.
ALTER TABLE talka_tasks ADD COLUMN memory_bytes INTEGER NOT NULL DEFAULT 0;

-- migration: 8
-- The end of what attempts wrote, and how much of it a job has.
CREATE TABLE talka_streams (
    task INTEGER NOT NULL,  -- key of the task
    fence INTEGER NOT NULL,
    stream INTEGER NOT NULL,  -- position in talka.wire.output_tail.STREAMS
    attempt INTEGER NOT NULL,
    written INTEGER NOT NULL,  -- bytes in all, of which the last are here
    content BLOB NOT NULL,
    PRIMARY KEY (task, fence, stream)
);
ALTER TABLE talka_jobs ADD COLUMN output_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE talka_attempts ADD COLUMN outcome TEXT NOT NULL DEFAULT '';

-- migration: 9
-- Ends of jobs that somebody is to be told of.
CREATE TABLE talka_notices (
    id TEXT PRIMARY KEY,
    job INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    url TEXT NOT NULL,
    body BLOB NOT NULL,
    state TEXT NOT NULL,
    tries INTEGER NOT NULL,
    next_ms INTEGER NOT NULL,
    error TEXT NOT NULL
) WITHOUT ROWID;

CREATE INDEX talka_notices_by_job ON talka_notices (job);
CREATE INDEX talka_waiting_notices ON talka_notices (next_ms, id) WHERE state = 'waiting';

-- migration: 10
-- Jobs that were dropped and still have rows: of a large one they go part by part.
CREATE TABLE talka_drops (
    job INTEGER PRIMARY KEY
);

-- migration: 11
-- How long jobs are kept is said apart for those that completed and for others; what their attempts wrote may go before.
ALTER TABLE talka_jobs ADD COLUMN output_gone INTEGER NOT NULL DEFAULT 0;
DROP INDEX talka_ended_jobs;
CREATE INDEX talka_ended_jobs ON talka_jobs ((state = 7), ended_age_ms, ended_ms, number) WHERE state >= 7;
CREATE INDEX talka_kept_outputs ON talka_jobs ((state = 7), ended_age_ms, ended_ms, number)
    WHERE state >= 7 AND output_gone = 0;

-- migration: 12
-- Attempts that asked for more time, or were warned.
CREATE TABLE talka_times (
    task INTEGER NOT NULL,  -- key of the task
    fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    kept BLOB NOT NULL,  -- as JSON
    PRIMARY KEY (task, fence)
) WITHOUT ROWID;

-- name: tables
SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- name: read_version
SELECT max(version) FROM talka_tasks_version;

-- name: write_version
INSERT INTO talka_tasks_version (version) VALUES (:version);

-- name: put_job
INSERT INTO talka_jobs
    (number, id, name, state, submitted_ms, settings, tasks, key, digest, submitted_by, started_ms, ended_ms, reason,
     counts, params, output_bytes, output_gone)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: move_job
UPDATE talka_jobs
SET state = ?,
    started_ms = coalesce(nullif(started_ms, 0), ?),
    ended_ms = ?,
    ended_age_ms = NULL,
    output_gone = 0,
    reason = ?,
    tasks = coalesce(?, tasks),
    counts = coalesce(?, counts)
WHERE number = ?;

-- name: job
SELECT number, id, name, state, submitted_ms, settings, tasks, key, digest, submitted_by, started_ms, ended_ms, reason,
    counts, params, output_bytes, output_gone
FROM talka_jobs
WHERE id = :id;

-- name: job_by_key
SELECT number, id, name, state, submitted_ms, settings, tasks, key, digest, submitted_by, started_ms, ended_ms, reason,
    counts, params, output_bytes, output_gone
FROM talka_jobs
WHERE key = :key AND key <> '';

-- name: jobs_keyed
-- No text is above that of the last character of all.
SELECT key, id
FROM (SELECT value AS begins FROM json_each(:begins))
CROSS JOIN talka_jobs ON key >= begins AND key < begins || char(1114111) AND key <> ''
ORDER BY key;

-- name: jobs
SELECT number, id, name, state, submitted_ms, settings, tasks, key, digest, submitted_by, started_ms, ended_ms, reason,
    counts, params, output_bytes, output_gone
FROM talka_jobs
WHERE number < :before AND (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))
ORDER BY number DESC
LIMIT :limit;

-- name: live_jobs
SELECT number, id, name, state, submitted_ms, settings, tasks, key, digest, submitted_by, started_ms, ended_ms, reason,
    counts, params, output_bytes, output_gone
FROM talka_jobs
WHERE state < 7
ORDER BY number;

-- name: next_number
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'talka_jobs'), 0) + 1;

-- name: see_ends
-- By the index, of which (state = 7) is the first column.
UPDATE talka_jobs SET ended_age_ms = :age_ms
WHERE state >= 7 AND (state = 7) IN (0, 1) AND ended_age_ms IS NULL;

-- name: ended_jobs
SELECT count(*) FROM (SELECT 1 FROM talka_jobs WHERE state >= 7 AND (state = 7) = :completed LIMIT :most);

-- name: jobs_to_tell
SELECT count(DISTINCT job) FROM talka_notices WHERE state = 'waiting';

-- name: oldest_ends
-- By the store's age, since clocks are set; the clock tells apart what was seen together. And whether somebody is still
-- to be told of it.
SELECT number, ended_age_ms, EXISTS (SELECT 1 FROM talka_notices WHERE job = talka_jobs.number AND state = 'waiting')
FROM talka_jobs
WHERE state >= 7 AND (state = 7) = :completed
ORDER BY ended_age_ms, ended_ms, number
LIMIT :most;

-- name: oldest_output
-- The job whose output has to go next: seen to end that long ago, or beyond so many that have theirs.
SELECT number
FROM talka_jobs
WHERE state >= 7 AND output_gone = 0 AND (state = 7) = :completed AND ended_age_ms >= 0
  AND (ended_age_ms <= :before_ms
       OR (SELECT count(*) FROM (SELECT 1 FROM talka_jobs WHERE state >= 7 AND output_gone = 0
           AND (state = 7) = :completed AND ended_age_ms >= 0 LIMIT :keep + 1)) > :keep)
ORDER BY ended_age_ms, ended_ms, number
LIMIT 1;

-- name: next_outputs
-- Tasks of the job that attempts wrote for, each with the bytes of it.
SELECT task, sum(length(content)) FROM talka_streams WHERE task BETWEEN ? AND ? GROUP BY task ORDER BY task LIMIT ?;

-- name: drop_some_logs
DELETE FROM talka_logs WHERE number IN (SELECT number FROM talka_logs WHERE task BETWEEN ? AND ? LIMIT ?);

-- name: note_output_gone
UPDATE talka_jobs SET output_gone = 1, output_bytes = 0 WHERE number = ?;

-- name: drop_job
DELETE FROM talka_jobs WHERE number = ?;

-- name: set_aside
INSERT OR IGNORE INTO talka_drops (job) VALUES (?);

-- name: next_drop
SELECT job FROM talka_drops ORDER BY job LIMIT 1;

-- name: next_drops
-- Tasks of a dropped job, each with the bytes that go with it. No length needs the contents.
SELECT key, length(spec) + length(checkpoint) + length(output)
    + (SELECT coalesce(sum(length(content)), 0) FROM talka_streams WHERE task = key)
FROM talka_tasks
WHERE key BETWEEN ? AND ?
ORDER BY key
LIMIT ?;

-- name: drop_drop
DELETE FROM talka_drops WHERE job = ?;

-- name: put_task
INSERT INTO talka_tasks
    (key, state, attempts, fence, ready_ms, started_ms, ended_ms, deaths, failures, priority, id, handler, worker,
     cause, depends_on, blob, error, spec, checkpoint, output, memory_bytes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: replace_spec
UPDATE talka_tasks SET handler = ?, priority = ?, spec = ? WHERE key = ?;

-- name: claim
-- To ASSIGNED. A higher fence is of somebody who came later.
UPDATE talka_tasks
SET state = 2, attempts = ?3, fence = ?4, worker = ?5, started_ms = ?6
WHERE key = ?1 << 32 | ?2 AND fence <= ?4 AND state < 4;

-- name: claim_range
-- As `claim`, for keys ?1 to ?2: the fence ?4 is of the first, and grows by one with each key.
UPDATE talka_tasks
SET state = 2, attempts = ?3, fence = ?4 + (key - ?1), worker = ?5, started_ms = ?6
WHERE key BETWEEN ?1 AND ?2 AND fence <= ?4 + (key - ?1) AND state < 4;

-- name: extend
UPDATE talka_tasks SET checkpoint = ?4 WHERE key = ?1 << 32 | ?2 AND fence = ?3 AND state < 4;

-- name: release
-- To PENDING.
UPDATE talka_tasks
SET state = 0, ready_ms = ?4, attempts = ?5, deaths = ?6, cause = ?7, error = ?8, failures = ?9
WHERE key = ?1 << 32 | ?2 AND ?3 IN (fence, 0) AND state < 4;

-- name: complete
-- What is 0 or empty of the three before the last says nothing new.
UPDATE talka_tasks
SET state = ?,
    ended_ms = ?,
    output = ?,
    blob = ?,
    error = ?,
    cause = ?,
    started_ms = coalesce(nullif(?, 0), started_ms),
    worker = coalesce(nullif(?, ''), worker),
    attempts = coalesce(nullif(?, 0), attempts),
    memory_bytes = ?
WHERE key = ? AND ? IN (fence, 0) AND state < 4;

-- name: complete_range
-- As `complete`, for keys ?1 to ?2: the fence ?3 is of the first, and grows by one with each key; 0: whatever it is.
UPDATE talka_tasks
SET state = ?4, ended_ms = ?5, output = ?6, blob = '', error = ?7, cause = ?8, memory_bytes = 0
WHERE key BETWEEN ?1 AND ?2 AND (?3 = 0 OR fence = ?3 + (key - ?1)) AND state < 4;

-- name: keep_completed
-- The attempt that completed a task is in the task's row alone. It stays when that is run again.
INSERT OR IGNORE INTO talka_attempts
    (task, attempt, fence, worker, started_ms, ended_ms, cause, error, exit_code, signal, memory_bytes, outcome)
SELECT key, attempts, fence, worker, started_ms, ended_ms, 'completed', '', NULL, '', memory_bytes, 'completed'
FROM talka_tasks
WHERE key = ? AND state = 4 AND fence > 0;

-- name: reset
-- Without its fence: a result of an attempt before this must not become that of the next.
UPDATE talka_tasks
SET state = 0, fence = 0, ready_ms = 0, started_ms = 0, ended_ms = 0, deaths = 0, failures = 0, worker = '',
    cause = '', blob = '', error = '', checkpoint = x'', output = x'', memory_bytes = 0
WHERE key = ?;

-- name: task
-- Without an index: one would cost every new task as much as all the rest of it.
SELECT key >> 32, key & 4294967295, id, state, spec, depends_on, attempts, fence, worker, ready_ms, started_ms, ended_ms,
    output, blob, error, cause, deaths, checkpoint, failures, memory_bytes
FROM talka_tasks
WHERE key BETWEEN :first AND :last AND id = :id
LIMIT 1;

-- name: tasks
SELECT key >> 32, key & 4294967295, id, state, spec, depends_on, attempts, fence, worker, ready_ms, started_ms, ended_ms,
    output, blob, error, cause, deaths, checkpoint, failures, memory_bytes
FROM talka_tasks
WHERE key > :after AND key <= :last AND (:states = '[]' OR state IN (SELECT value FROM json_each(:states)))
ORDER BY key
LIMIT :limit;

-- name: tasks_at
SELECT key >> 32, key & 4294967295, id, state, spec, depends_on, attempts, fence, worker, ready_ms, started_ms, ended_ms,
    output, blob, error, cause, deaths, checkpoint, failures, memory_bytes
FROM (SELECT value AS wanted FROM json_each(:keys)) CROSS JOIN talka_tasks ON key = wanted
ORDER BY key;

-- name: live_tasks
SELECT key & 4294967295, state, id, depends_on, attempts, fence, worker, ready_ms, deaths, handler, priority,
    failures, started_ms, cause, error
FROM talka_tasks
WHERE key > :after AND key <= :last
ORDER BY key
LIMIT :limit;

-- name: put_fan
INSERT OR IGNORE INTO talka_fans (task, first, count) VALUES (? << 32 | ?, ?, ?);

-- name: set_size
UPDATE talka_jobs SET tasks = ? WHERE number = ?;

-- name: fans
SELECT task & 4294967295, first, count FROM talka_fans WHERE task BETWEEN :first AND :last ORDER BY task;

-- name: drop_fan
DELETE FROM talka_fans WHERE task = ? << 32 | ? AND first = ? AND count = ?;

-- name: drop_fans
DELETE FROM talka_fans WHERE task BETWEEN ? AND ?;

-- name: specs
SELECT key >> 32, key & 4294967295, spec, checkpoint
FROM (SELECT value AS wanted FROM json_each(:keys)) CROSS JOIN talka_tasks ON key = wanted;

-- name: outputs
SELECT key >> 32, key & 4294967295, output, blob
FROM (SELECT value AS wanted FROM json_each(:keys)) CROSS JOIN talka_tasks ON key = wanted
WHERE state = 4;

-- name: dead_letters
SELECT key >> 32, key & 4294967295, id, state, spec, depends_on, attempts, fence, worker, ready_ms, started_ms, ended_ms,
    output, blob, error, cause, deaths, checkpoint, failures, memory_bytes
FROM talka_tasks
WHERE key > :after AND state = 9 AND NOT EXISTS (SELECT 1 FROM talka_drops WHERE job = key >> 32)
ORDER BY key
LIMIT :limit;

-- name: counts
SELECT state, count(*) FROM talka_tasks WHERE key BETWEEN :first AND :last GROUP BY state ORDER BY state;

-- name: blobs
SELECT DISTINCT blob FROM talka_tasks WHERE blob <> '' AND blob > :after ORDER BY blob LIMIT :limit;

-- name: drop_tasks
DELETE FROM talka_tasks WHERE key BETWEEN ? AND ?;

-- name: put_attempt
INSERT OR REPLACE INTO talka_attempts
    (task, attempt, fence, worker, started_ms, ended_ms, cause, error, exit_code, signal, memory_bytes, outcome)
VALUES (? << 32 | ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: attempts
SELECT task >> 32, task & 4294967295, attempt, fence, worker, started_ms, ended_ms, cause, error, exit_code, signal,
    memory_bytes, outcome
FROM (SELECT value AS wanted FROM json_each(:keys)) CROSS JOIN talka_attempts ON task = wanted
ORDER BY task, fence;

-- name: put_stream
INSERT OR REPLACE INTO talka_streams (task, attempt, fence, stream, written, content) VALUES (?, ?, ?, ?, ?, ?);

-- name: note_output
UPDATE talka_jobs SET output_bytes = ? WHERE number = ?;

-- name: drop_output
-- Of the tasks with the keys ?1 to ?2, before `drop_streams`.
UPDATE talka_jobs
SET output_bytes = output_bytes
    - (SELECT coalesce(sum(length(content)), 0) FROM talka_streams WHERE task BETWEEN ?1 AND ?2)
WHERE number = ?1 >> 32;

-- name: stream_sizes
SELECT task >> 32, task & 4294967295, attempt, fence, stream, written, length(content), x''
FROM talka_streams
WHERE task BETWEEN :first AND :last
ORDER BY task, fence, stream;

-- name: streams
SELECT task >> 32, task & 4294967295, attempt, fence, stream, written, length(content), content
FROM talka_streams
WHERE task = :key AND fence = :fence
ORDER BY stream;

-- name: drop_streams
DELETE FROM talka_streams WHERE task BETWEEN ? AND ?;

-- name: put_time
INSERT OR REPLACE INTO talka_times (task, attempt, fence, kept) VALUES (? << 32 | ?, ?, ?, ?);

-- name: times
SELECT task >> 32, task & 4294967295, attempt, fence, kept
FROM talka_times
WHERE task BETWEEN :first AND :last
ORDER BY task, fence;

-- name: drop_times
DELETE FROM talka_times WHERE task BETWEEN ? AND ?;

-- name: drop_attempts
DELETE FROM talka_attempts WHERE task BETWEEN ? AND ?;

-- name: put_event
INSERT INTO talka_events (job, task, at_ms, kind, text) VALUES (?, ?, ?, ?, ?);

-- name: events
SELECT job, at_ms, kind, task, text, number
FROM talka_events
WHERE job = :job AND number > :after
ORDER BY number
LIMIT :limit;

-- name: drop_events
-- Some of them.
DELETE FROM talka_events WHERE number IN (SELECT number FROM talka_events WHERE job = ? LIMIT ?);

-- name: put_log
INSERT INTO talka_logs (task, attempt, at_ms, text) VALUES (?, ?, ?, ?);

-- name: logs
SELECT task >> 32, task & 4294967295, attempt, at_ms, text, number
FROM talka_logs
WHERE task = :key AND number > :after
ORDER BY number
LIMIT :limit;

-- name: drop_logs
DELETE FROM talka_logs WHERE task BETWEEN ? AND ?;

-- name: remember_key
-- Only of a task that did complete, under this fence.
INSERT OR REPLACE INTO talka_keys (key, task)
SELECT ?, key FROM talka_tasks WHERE key = ? AND ? IN (fence, 0) AND state = 4;

-- name: keyed
SELECT talka_keys.key, talka_jobs.id, talka_tasks.id, output, blob
FROM (SELECT value AS wanted FROM json_each(:keys))
CROSS JOIN talka_keys ON talka_keys.key = wanted
CROSS JOIN talka_tasks ON talka_tasks.key = talka_keys.task
CROSS JOIN talka_jobs ON number = talka_keys.task >> 32
WHERE talka_tasks.state = 4;

-- name: drop_keys
DELETE FROM talka_keys WHERE task BETWEEN ? AND ?;

-- name: put_schedule
INSERT OR REPLACE INTO talka_schedules
    (name, cron, spec, next_ms, last_job, submitted_by, timezone, catch_up, is_paused, ran_ms, ran_job)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: schedules
SELECT name, cron, spec, next_ms, last_job, submitted_by, timezone, catch_up, is_paused, ran_ms, ran_job
FROM talka_schedules
ORDER BY name;

-- name: drop_schedule
DELETE FROM talka_schedules WHERE name = ?;

-- name: put_notice
INSERT OR REPLACE INTO talka_notices (id, job, job_id, url, body, state, tries, next_ms, error)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: move_notice
UPDATE talka_notices SET state = ?2, tries = ?3, next_ms = ?4, error = ?5 WHERE id = ?1 AND state = 'waiting';

-- name: notices
SELECT id, job, job_id, url, body, state, tries, next_ms, error FROM talka_notices WHERE job = :job ORDER BY id;

-- name: waiting_notices
SELECT id, job, job_id, url, body, state, tries, next_ms, error
FROM talka_notices
WHERE state = 'waiting' AND (next_ms, id) > (:after_ms, :after)
ORDER BY next_ms, id
LIMIT :limit;

-- name: drop_notices
DELETE FROM talka_notices WHERE job = ?;

-- name: acquire
INSERT INTO talka_leases (key, owner, epoch, until_ms, beat)
SELECT value, :owner, 1, 0, 0 FROM json_each(:keys) WHERE true
ON CONFLICT (key) DO UPDATE
SET owner = excluded.owner, epoch = epoch + (owner <> excluded.owner), until_ms = 0, beat = beat + 1
WHERE owner IN ('', excluded.owner)
RETURNING key, owner, epoch, beat + until_ms;

-- name: renew
UPDATE talka_leases
SET beat = beat + 1
FROM (SELECT value ->> 0 AS key, value ->> 1 AS epoch FROM json_each(:held)) AS held
WHERE talka_leases.key = held.key AND talka_leases.epoch = held.epoch AND owner = :owner
RETURNING talka_leases.key, owner, talka_leases.epoch, beat + until_ms;

-- name: take_leases
-- Only as they were seen: a holder that stirred meanwhile keeps its own.
UPDATE talka_leases
SET owner = :owner, epoch = talka_leases.epoch + 1, until_ms = 0, beat = talka_leases.beat + 1
FROM (SELECT value ->> 0 AS key, value ->> 1 AS epoch, value ->> 2 AS beat FROM json_each(:seen)) AS seen
WHERE talka_leases.key = seen.key AND talka_leases.epoch = seen.epoch AND talka_leases.beat + until_ms = seen.beat
RETURNING talka_leases.key, owner, talka_leases.epoch, talka_leases.beat + until_ms;

-- name: release_leases
UPDATE talka_leases
SET owner = '', until_ms = 0
FROM (SELECT value ->> 0 AS key, value ->> 1 AS epoch FROM json_each(:held)) AS held
WHERE talka_leases.key = held.key AND talka_leases.epoch = held.epoch AND owner = :owner;

-- name: leases
-- The second bound lets the index answer: no key goes on with the last of all characters.
SELECT key, owner, epoch, beat + until_ms
FROM talka_leases
WHERE key >= :prefix AND key < :prefix || char(1114111) AND owner <> ''
ORDER BY key;

-- name: is_held
SELECT 1 FROM talka_leases WHERE key = ? AND owner = ? AND epoch = ?;

-- name: raise_epoch
UPDATE talka_leases
SET epoch = :epoch
WHERE key = :key AND owner = :owner AND epoch = :held AND epoch < :epoch
RETURNING epoch;

-- name: free_leases
-- Of a copy: nobody has it yet, and nobody need wait for who has the original. Epochs stay.
UPDATE talka_leases SET owner = '', until_ms = 0;

-- name: life
SELECT store, life, inode, is_copy FROM talka_life;

-- name: put_life
INSERT INTO talka_life (only, store, life, inode, is_copy)
VALUES (1, :store, :life, :inode, 0)
ON CONFLICT (only) DO UPDATE
SET store = excluded.store, life = excluded.life, inode = excluded.inode, is_copy = 0;

-- name: mark_copy
UPDATE talka_life SET is_copy = 1;

-- name: grow_older
UPDATE talka_age SET ms = ms + :grown_ms RETURNING ms;

-- name: sizes
SELECT (SELECT count(*) FROM talka_jobs), (SELECT count(*) FROM talka_tasks);

-- name: check_file
PRAGMA integrity_check(20);

-- name: check_tasks
SELECT count(*), min(key >> 32) FROM talka_tasks
WHERE key >> 32 NOT IN (SELECT number FROM talka_jobs UNION ALL SELECT job FROM talka_drops);

-- name: check_attempts
SELECT count(*), min(task >> 32) FROM talka_attempts WHERE task NOT IN (SELECT key FROM talka_tasks);

-- name: check_events
SELECT count(*), min(job) FROM talka_events
WHERE job NOT IN (SELECT number FROM talka_jobs UNION ALL SELECT job FROM talka_drops);

-- name: check_logs
SELECT count(*), min(task >> 32) FROM talka_logs WHERE task NOT IN (SELECT key FROM talka_tasks);

-- name: check_streams
SELECT count(*), min(task >> 32) FROM talka_streams WHERE task NOT IN (SELECT key FROM talka_tasks);

-- name: check_times
SELECT count(*), min(task >> 32) FROM talka_times WHERE task NOT IN (SELECT key FROM talka_tasks);

-- name: check_keys
SELECT count(*), min(task >> 32) FROM talka_keys WHERE task NOT IN (SELECT key FROM talka_tasks);

-- name: check_fans
SELECT count(*), min(task >> 32) FROM talka_fans WHERE task NOT IN (SELECT key FROM talka_tasks);

-- name: check_sizes
-- A job that is still SUBMITTED may get more tasks.
SELECT id, tasks, found
FROM talka_jobs
JOIN (SELECT number AS of_job, (SELECT count(*) FROM talka_tasks WHERE key BETWEEN number << 32 AND (number << 32) + 4294967295)
        AS found
    FROM talka_jobs) ON of_job = number
WHERE state > 0 AND tasks <> found
ORDER BY number
LIMIT 20;

-- name: check_counts
SELECT number, id, counts FROM talka_jobs WHERE state >= 7 AND counts <> CAST('{}' AS BLOB) ORDER BY number;
