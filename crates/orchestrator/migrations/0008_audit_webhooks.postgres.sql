-- Ids are compared byte by byte, as SQLite does.

ALTER TABLE audit_webhooks
    ALTER COLUMN webhook_id TYPE TEXT COLLATE "C",
    ALTER COLUMN product_id TYPE TEXT COLLATE "C";
ALTER TABLE audit_dead_letters
    ALTER COLUMN webhook_id TYPE TEXT COLLATE "C";
