-- Webhooks that get the rows of a product's audit log, and how far each has come.

CREATE TABLE audit_webhooks (
    webhook_id TEXT PRIMARY KEY,
    product_id TEXT NOT NULL REFERENCES products (product_id),
    url TEXT NOT NULL,
    -- JSON: the events whose rows are sent; all if it is empty.
    events TEXT NOT NULL,
    state TEXT NOT NULL,
    sealed_secret TEXT NOT NULL,
    -- The secret that was replaced, and until when it signs, too; null if there is none.
    old_sealed_secret TEXT,
    old_secret_expires_at BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    -- Counts the changes by callers, so that progress made under earlier settings is not stored.
    revision BIGINT NOT NULL,
    -- Every row up to this one is settled, but for those of the lagging lanes.
    position BIGINT NOT NULL,
    -- JSON: the cursors of the lagging lanes, of which there is a bounded number.
    lagging TEXT NOT NULL,
    delivered_at BIGINT,
    last_error TEXT,
    dead_letters_dropped BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX audit_webhooks_of_product ON audit_webhooks (product_id, webhook_id);

-- Rows that were given up.
CREATE TABLE audit_dead_letters (
    webhook_id TEXT NOT NULL REFERENCES audit_webhooks (webhook_id) ON DELETE CASCADE,
    row_id BIGINT NOT NULL,
    failed_at BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    error TEXT NOT NULL,
    -- 1: it is to be sent once more.
    retrying BIGINT NOT NULL,
    PRIMARY KEY (webhook_id, row_id)
);
