INSERT INTO talka_life (only, store, life, inode, is_copy)
VALUES (1, :store, :life, :inode, 0)
ON CONFLICT (only) DO UPDATE
SET store = excluded.store, life = excluded.life, inode = excluded.inode, is_copy = 0;
