-- Ids are compared byte by byte, as SQLite does.

ALTER TABLE idempotent_calls
    ALTER COLUMN call_id TYPE TEXT COLLATE "C",
    ALTER COLUMN caller TYPE TEXT COLLATE "C",
    ALTER COLUMN product_id TYPE TEXT COLLATE "C",
    ALTER COLUMN engine_id TYPE TEXT COLLATE "C";
