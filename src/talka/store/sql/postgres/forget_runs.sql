WITH gone AS (
    DELETE FROM talka_runs WHERE id = ANY ($1::text[]) AND id NOT IN (SELECT id FROM talka_baselines) RETURNING 1
)
SELECT count(*) FROM gone;
