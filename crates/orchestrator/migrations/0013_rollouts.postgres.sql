-- Ids are compared byte by byte, as SQLite does.

ALTER TABLE rollouts
    ALTER COLUMN rollout_id TYPE TEXT COLLATE "C";
ALTER TABLE rollout_engines
    ALTER COLUMN rollout_id TYPE TEXT COLLATE "C",
    ALTER COLUMN engine_id TYPE TEXT COLLATE "C",
    ALTER COLUMN product_id TYPE TEXT COLLATE "C";
