-- Platform keys, without the keys themselves. The one that a product was registered with is in its row.

CREATE TABLE platform_keys (
    key_id TEXT PRIMARY KEY,
    product_id TEXT NOT NULL REFERENCES products (product_id),
    key_hash TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    -- Null: it works until it is revoked.
    expires_at BIGINT
);

CREATE INDEX platform_keys_of_product ON platform_keys (product_id, key_id);

-- When the key of the registration stops working; null if it does not.
ALTER TABLE products ADD COLUMN key_expires_at BIGINT;
