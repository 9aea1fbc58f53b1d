SELECT store, life, inode, is_copy FROM talka_life;
