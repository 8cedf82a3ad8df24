-- Ids are compared byte by byte, as SQLite does.

ALTER TABLE backup_erasures
    ALTER COLUMN engine_id TYPE TEXT COLLATE "C";
