SELECT number, id, counts FROM talka_jobs WHERE state >= 7 AND counts <> CAST('{}' AS BLOB) ORDER BY number;
