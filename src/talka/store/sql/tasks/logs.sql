SELECT task >> 32, task & 4294967295, attempt, at_ms, text, number
FROM talka_logs
WHERE task = :key AND number > :after
ORDER BY number
LIMIT :limit;
