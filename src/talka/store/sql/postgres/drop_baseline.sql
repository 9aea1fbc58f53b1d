WITH gone AS (DELETE FROM talka_baselines WHERE name = $1 RETURNING 1)
SELECT count(*) FROM gone;
