-- Ids are compared byte by byte, as SQLite does.

ALTER TABLE inbox
    ALTER COLUMN engine_id TYPE TEXT COLLATE "C",
    ALTER COLUMN request_id TYPE TEXT COLLATE "C",
    ALTER COLUMN product_id TYPE TEXT COLLATE "C",
    ALTER COLUMN user_id TYPE TEXT COLLATE "C";
