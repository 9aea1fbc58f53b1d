-- One writer at a time, until its transaction ends. The number spells "talka" and is nobody else's.
SELECT pg_advisory_xact_lock(499850701665);
