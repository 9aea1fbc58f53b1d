INSERT INTO talka_baselines (name, id)
SELECT :name, :id
WHERE EXISTS (SELECT 1 FROM talka_runs WHERE id = :id)
  AND (EXISTS (SELECT 1 FROM talka_baselines WHERE name = :name)
       OR (SELECT count(*) FROM talka_baselines) < :most)
ON CONFLICT (name) DO UPDATE SET id = excluded.id;
