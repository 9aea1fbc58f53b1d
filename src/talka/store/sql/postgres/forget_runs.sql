WITH gone AS (DELETE FROM talka_runs WHERE id = ANY ($1::text[]) RETURNING 1)
SELECT count(*) FROM gone;
