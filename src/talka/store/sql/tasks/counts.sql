SELECT state, count(*) FROM talka_tasks WHERE key BETWEEN :first AND :last GROUP BY state ORDER BY state;
