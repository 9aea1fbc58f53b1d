-- What a baseline names stays, however old it is.
WITH gone AS (
    DELETE FROM talka_runs
    WHERE id NOT IN (SELECT id FROM talka_baselines)
      AND (started_at < $1
           OR id IN (SELECT id FROM talka_runs ORDER BY started_at DESC, id DESC OFFSET $2))
    RETURNING 1
)
SELECT count(*) FROM gone;
