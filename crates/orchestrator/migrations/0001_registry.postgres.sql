-- Ids are compared byte by byte, as SQLite does, whatever the database's locale: pages and walks depend on it.

ALTER TABLE products
    ALTER COLUMN product_id TYPE TEXT COLLATE "C",
    ALTER COLUMN slug TYPE TEXT COLLATE "C",
    ALTER COLUMN api_key_hash TYPE TEXT COLLATE "C";
ALTER TABLE engines
    ALTER COLUMN engine_id TYPE TEXT COLLATE "C",
    ALTER COLUMN product_id TYPE TEXT COLLATE "C",
    ALTER COLUMN user_id TYPE TEXT COLLATE "C",
    ALTER COLUMN status TYPE TEXT COLLATE "C";
ALTER TABLE audit_log
    ALTER COLUMN product_id TYPE TEXT COLLATE "C",
    ALTER COLUMN user_id TYPE TEXT COLLATE "C",
    ALTER COLUMN event TYPE TEXT COLLATE "C";

-- The ledger only grows.

CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit_log is append-only';
END
$$;

CREATE TRIGGER audit_log_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only();
