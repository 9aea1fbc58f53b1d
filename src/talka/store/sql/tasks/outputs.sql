SELECT key >> 32, key & 4294967295, output, blob
FROM (SELECT value AS wanted FROM json_each(:keys)) CROSS JOIN talka_tasks ON key = wanted
WHERE state = 4;
