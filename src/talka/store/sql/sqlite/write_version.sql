INSERT INTO talka_history_version (version) VALUES (:version);
