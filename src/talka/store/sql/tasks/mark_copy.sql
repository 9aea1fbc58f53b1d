UPDATE talka_life SET is_copy = 1;
