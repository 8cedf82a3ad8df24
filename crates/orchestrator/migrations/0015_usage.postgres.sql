-- Ids are compared byte by byte, as SQLite does.

ALTER TABLE usage_days
    ALTER COLUMN product_id TYPE TEXT COLLATE "C",
    ALTER COLUMN engine_id TYPE TEXT COLLATE "C";
ALTER TABLE admit_days
    ALTER COLUMN product_id TYPE TEXT COLLATE "C",
    ALTER COLUMN run_id TYPE TEXT COLLATE "C";
