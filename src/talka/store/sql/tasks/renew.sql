UPDATE talka_leases
SET beat = beat + 1
FROM (SELECT value ->> 0 AS key, value ->> 1 AS epoch FROM json_each(:held)) AS held
WHERE talka_leases.key = held.key AND talka_leases.epoch = held.epoch AND owner = :owner
RETURNING talka_leases.key, owner, talka_leases.epoch, beat + until_ms;
