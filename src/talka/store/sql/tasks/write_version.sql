INSERT INTO talka_tasks_version (version) VALUES (:version);
