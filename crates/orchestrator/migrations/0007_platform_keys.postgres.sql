-- Ids are compared byte by byte, as SQLite does.

ALTER TABLE platform_keys
    ALTER COLUMN key_id TYPE TEXT COLLATE "C",
    ALTER COLUMN product_id TYPE TEXT COLLATE "C",
    ALTER COLUMN key_hash TYPE TEXT COLLATE "C";
