SELECT 1 FROM talka_leases WHERE key = ? AND owner = ? AND epoch = ?;
