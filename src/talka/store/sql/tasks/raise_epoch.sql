UPDATE talka_leases
SET epoch = :epoch
WHERE key = :key AND owner = :owner AND epoch = :held AND epoch < :epoch
RETURNING epoch;
