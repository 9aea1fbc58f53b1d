SELECT max(version) FROM talka_tasks_version;
