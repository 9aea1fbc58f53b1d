-- Which store this is, and which of its lives: one row, made when a manager first opens the file.
CREATE TABLE talka_life (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    store INTEGER NOT NULL,  -- drawn when the store was made
    life INTEGER NOT NULL,  -- drawn with it, and anew when a copy is first opened
    inode INTEGER NOT NULL,  -- of the file that was opened last
    is_copy INTEGER NOT NULL  -- 1: made by a backup, and not opened by a manager yet
);
