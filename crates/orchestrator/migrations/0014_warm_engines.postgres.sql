-- Ids are compared byte by byte, as SQLite does.

ALTER TABLE warm_engines
    ALTER COLUMN engine_id TYPE TEXT COLLATE "C",
    ALTER COLUMN product_id TYPE TEXT COLLATE "C";
