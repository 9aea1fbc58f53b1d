-- Only as they were seen: a holder that stirred meanwhile keeps its own.
UPDATE talka_leases
SET owner = :owner, epoch = talka_leases.epoch + 1, until_ms = 0, beat = talka_leases.beat + 1
FROM (SELECT value ->> 0 AS key, value ->> 1 AS epoch, value ->> 2 AS beat FROM json_each(:seen)) AS seen
WHERE talka_leases.key = seen.key AND talka_leases.epoch = seen.epoch AND talka_leases.beat + until_ms = seen.beat
RETURNING talka_leases.key, owner, talka_leases.epoch, talka_leases.beat + until_ms;
