INSERT INTO talka_leases (key, owner, epoch, until_ms)
SELECT value, :owner, 1, :until_ms FROM json_each(:keys) WHERE true
ON CONFLICT (key) DO UPDATE
SET owner = excluded.owner, epoch = epoch + (until_ms <= :now_ms), until_ms = excluded.until_ms
WHERE owner = excluded.owner OR until_ms <= :now_ms
RETURNING key, owner, epoch, until_ms;
