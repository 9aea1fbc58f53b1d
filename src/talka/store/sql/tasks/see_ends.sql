UPDATE talka_jobs SET ended_age_ms = :age_ms WHERE state >= 7 AND ended_age_ms IS NULL;
