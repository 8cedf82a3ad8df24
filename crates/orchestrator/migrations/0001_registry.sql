-- The registry. Times are Unix milliseconds, JSON and ids are text: one set of queries reads it from every
-- database.

CREATE TABLE products (
    product_id TEXT PRIMARY KEY,
    slug TEXT NOT NULL UNIQUE,
    display_name TEXT NOT NULL,
    policy TEXT NOT NULL,
    api_key_hash TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    -- The end of the product's ledger: the id and the hash of its last row.
    audit_seq BIGINT NOT NULL,
    audit_hash TEXT NOT NULL
);

CREATE TABLE engines (
    engine_id TEXT PRIMARY KEY,
    product_id TEXT NOT NULL REFERENCES products (product_id),
    user_id TEXT NOT NULL,
    status TEXT NOT NULL,
    -- The settled state before `destroying`; null if there was none.
    prior_status TEXT,
    key_hash TEXT NOT NULL,
    sealed_key TEXT NOT NULL,
    sealed_secrets_key TEXT NOT NULL,
    engine_version TEXT NOT NULL,
    -- 1: stays with engine_version. 0: follows the deployment's image.
    pinned BIGINT NOT NULL,
    -- One engine per port, whatever its state.
    port BIGINT UNIQUE,
    -- How the backend knows the process or container that runs; null when none does.
    instance TEXT,
    created_at BIGINT NOT NULL,
    last_health_at BIGINT,
    -- Counts every change of the row, so that a change made on an old view of it fails.
    generation BIGINT NOT NULL,
    -- The change under way; all null when there is none.
    claim_kind TEXT,
    claim_owner TEXT,
    claim_deadline BIGINT,
    UNIQUE (product_id, user_id)
);

CREATE INDEX engines_listed ON engines (product_id, created_at, engine_id);
CREATE INDEX engines_listed_by_status ON engines (product_id, status, created_at, engine_id);

CREATE TABLE audit_log (
    product_id TEXT NOT NULL REFERENCES products (product_id),
    -- Counts the product's rows without a gap, in commit order.
    id BIGINT NOT NULL,
    at BIGINT NOT NULL,
    engine_id TEXT,
    user_id TEXT,
    event TEXT NOT NULL,
    duration_ms BIGINT,
    detail TEXT NOT NULL,
    -- Over this row and the hash of the product's row before it.
    hash TEXT NOT NULL,
    PRIMARY KEY (product_id, id)
);
