-- Only of a task that did complete, under this fence.
INSERT OR REPLACE INTO talka_keys (key, task)
SELECT ?, key FROM talka_tasks WHERE key = ? AND ? IN (fence, 0) AND state = 4;
