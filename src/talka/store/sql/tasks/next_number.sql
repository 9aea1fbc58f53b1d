SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'talka_jobs'), 0) + 1;
