-- The second bound lets the index answer: no key goes on with the last of all characters.
SELECT key, owner, epoch, beat + until_ms
FROM talka_leases
WHERE key >= :prefix AND key < :prefix || char(1114111) AND owner <> ''
ORDER BY key;
