WITH gone AS (
    DELETE FROM talka_runs
    WHERE started_at < $1
       OR id IN (SELECT id FROM talka_runs ORDER BY started_at DESC, id DESC OFFSET $2)
    RETURNING 1
)
SELECT count(*) FROM gone;
