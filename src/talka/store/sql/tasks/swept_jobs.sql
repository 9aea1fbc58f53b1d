-- The oldest first, whichever of the two bounds they are beyond.
SELECT number
FROM talka_jobs
WHERE state >= 7
    AND (ended_ms < :ended_before_ms
        OR number IN (
            SELECT number FROM talka_jobs WHERE state >= 7 ORDER BY ended_ms DESC, number DESC LIMIT -1 OFFSET :keep))
ORDER BY ended_ms, number
LIMIT :limit;
