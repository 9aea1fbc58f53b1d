UPDATE talka_tasks SET checkpoint = ? WHERE key = ? AND fence = ? AND state < 4;
