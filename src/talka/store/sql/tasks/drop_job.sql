DELETE FROM talka_jobs WHERE number = ?;
