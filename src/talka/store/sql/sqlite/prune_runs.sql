-- What a baseline names stays, however old it is.
DELETE FROM talka_runs
WHERE id NOT IN (SELECT id FROM talka_baselines)
  AND (started_at_us < :oldest_us
       OR id IN (SELECT id FROM talka_runs ORDER BY started_at_us DESC, id DESC LIMIT -1 OFFSET :keep_count));
