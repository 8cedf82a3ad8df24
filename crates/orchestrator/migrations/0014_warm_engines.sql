-- Engines that were booted before anybody asked for them. A provision takes one of them as its engine: its row moves
-- to `engines` in one transaction.

CREATE TABLE warm_engines (
    engine_id TEXT PRIMARY KEY,
    product_id TEXT NOT NULL REFERENCES products (product_id),
    -- `booting`, `ready` or `ending`.
    state TEXT NOT NULL,
    since BIGINT NOT NULL,
    key_hash TEXT NOT NULL,
    sealed_key TEXT NOT NULL,
    sealed_secrets_key TEXT NOT NULL,
    engine_version TEXT NOT NULL,
    -- JSON: what else it was launched with. If a launch would differ by now, it is replaced.
    settings TEXT NOT NULL,
    -- One engine per port, together with those of `engines`.
    port BIGINT UNIQUE,
    -- How the backend knows the process or container; null until it runs.
    instance TEXT
);

CREATE INDEX warm_engines_of_product ON warm_engines (product_id, engine_id);
