-- The questions of engines that wait for a person, as the engines last reported them.

CREATE TABLE inbox (
    engine_id TEXT NOT NULL REFERENCES engines (engine_id) ON DELETE CASCADE,
    request_id TEXT NOT NULL,
    product_id TEXT NOT NULL REFERENCES products (product_id),
    user_id TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    -- JSON.
    question TEXT NOT NULL,
    PRIMARY KEY (engine_id, request_id)
);

CREATE INDEX inbox_of_product ON inbox (product_id, request_id);
