-- Browser tokens, without the tokens themselves, and the origins of the products' pages.

CREATE TABLE browser_tokens (
    token_id TEXT PRIMARY KEY,
    engine_id TEXT NOT NULL REFERENCES engines (engine_id) ON DELETE CASCADE,
    -- The hash of the engine's key when it was minted: with another key, the token is void.
    key_hash TEXT NOT NULL,
    scopes TEXT NOT NULL,
    task_id TEXT,
    issued_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    revoked_at BIGINT
);

CREATE INDEX browser_tokens_of_engine ON browser_tokens (engine_id, token_id);

CREATE TABLE product_origins (
    product_id TEXT PRIMARY KEY REFERENCES products (product_id),
    -- A JSON array.
    origins TEXT NOT NULL
);
