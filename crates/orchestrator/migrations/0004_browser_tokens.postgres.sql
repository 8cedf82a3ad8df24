-- Ids are compared byte by byte, as SQLite does.

ALTER TABLE browser_tokens
    ALTER COLUMN token_id TYPE TEXT COLLATE "C",
    ALTER COLUMN engine_id TYPE TEXT COLLATE "C";
ALTER TABLE product_origins
    ALTER COLUMN product_id TYPE TEXT COLLATE "C";
