-- Of a copy: nobody has it yet, and nobody need wait for who has the original. Epochs stay.
UPDATE talka_leases SET owner = '', until_ms = 0;
