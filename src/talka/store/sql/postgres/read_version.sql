SELECT max(version) FROM talka_history_version;
