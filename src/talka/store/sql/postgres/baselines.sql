SELECT name, id FROM talka_baselines ORDER BY name;
