SELECT DISTINCT blob FROM talka_tasks WHERE blob <> '' AND blob > :after ORDER BY blob LIMIT :limit;
