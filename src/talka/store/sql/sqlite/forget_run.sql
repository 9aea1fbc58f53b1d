DELETE FROM talka_runs WHERE id = :id;
