DELETE FROM talka_runs WHERE id = :id AND id NOT IN (SELECT id FROM talka_baselines);
