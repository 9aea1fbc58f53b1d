SELECT count(*) FROM talka_leases WHERE key = ? AND owner = ? AND epoch = ?;
