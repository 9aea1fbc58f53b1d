DELETE FROM talka_tasks WHERE key BETWEEN ? AND ?;
