DELETE FROM talka_baselines WHERE name = :name;
