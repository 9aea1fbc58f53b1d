-- The oldest first, whichever of the two bounds they are beyond. By the store's age, since clocks are set; the clock
-- tells apart what was seen together.
SELECT number
FROM talka_jobs
WHERE state >= 7
    AND (ended_age_ms <= :ended_before_ms
        OR number IN (
            SELECT number FROM talka_jobs WHERE state >= 7
            ORDER BY ended_age_ms DESC, ended_ms DESC, number DESC LIMIT -1 OFFSET :keep))
ORDER BY ended_age_ms, ended_ms, number
LIMIT :limit;
