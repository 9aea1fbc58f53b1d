INSERT INTO talka_history_version (version) VALUES ($1);
