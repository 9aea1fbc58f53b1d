INSERT INTO talka_leases (key, owner, epoch, until_ms, beat)
SELECT value, :owner, 1, 0, 0 FROM json_each(:keys) WHERE true
ON CONFLICT (key) DO UPDATE
SET owner = excluded.owner, epoch = epoch + (owner <> excluded.owner), until_ms = 0, beat = beat + 1
WHERE owner IN ('', excluded.owner)
RETURNING key, owner, epoch, beat + until_ms;
