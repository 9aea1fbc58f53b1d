WITH done AS (
    INSERT INTO talka_baselines (name, id)
    SELECT $1, $2
    WHERE EXISTS (SELECT 1 FROM talka_runs WHERE id = $2)
      AND (EXISTS (SELECT 1 FROM talka_baselines WHERE name = $1)
           OR (SELECT count(*) FROM talka_baselines) < $3)
    ON CONFLICT (name) DO UPDATE SET id = excluded.id
    RETURNING 1
)
SELECT count(*) FROM done;
