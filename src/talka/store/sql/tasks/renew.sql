-- One that is over is nobody's, even if nobody has taken it yet.
UPDATE talka_leases
SET until_ms = :until_ms
FROM (SELECT value ->> 0 AS key, value ->> 1 AS epoch FROM json_each(:held)) AS held
WHERE talka_leases.key = held.key AND talka_leases.epoch = held.epoch AND owner = :owner AND until_ms > :now_ms
RETURNING talka_leases.key, owner, talka_leases.epoch, until_ms;
