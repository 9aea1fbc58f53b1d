SELECT to_regclass('talka_history_version') IS NOT NULL;
