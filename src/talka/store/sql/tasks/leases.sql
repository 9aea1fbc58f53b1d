-- The second bound lets the index answer: no key goes on with the last of all characters.
SELECT key, owner, epoch, until_ms
FROM talka_leases
WHERE key >= :prefix AND key < :prefix || char(1114111) AND until_ms > :now_ms
ORDER BY key;
