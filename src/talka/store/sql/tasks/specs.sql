SELECT key >> 32, key & 4294967295, spec, checkpoint
FROM (SELECT value AS wanted FROM json_each(:keys)) CROSS JOIN talka_tasks ON key = wanted;
