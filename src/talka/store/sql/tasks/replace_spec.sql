UPDATE talka_tasks SET handler = ?, priority = ?, spec = ? WHERE key = ?;
