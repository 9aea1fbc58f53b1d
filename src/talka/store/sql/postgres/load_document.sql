SELECT document FROM talka_runs WHERE id = $1;
