UPDATE talka_age SET ms = ms + :grown_ms RETURNING ms;
