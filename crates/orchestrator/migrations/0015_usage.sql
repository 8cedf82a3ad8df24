-- What engines have used by day in UTC.

CREATE TABLE usage_days (
    product_id TEXT NOT NULL REFERENCES products (product_id),
    -- Days since 1970.
    day BIGINT NOT NULL,
    -- Empty: the sum of the engines that were deleted, of which nothing else remains.
    engine_id TEXT NOT NULL,
    -- The engines that have used something: 1 in the row of an engine.
    engines BIGINT NOT NULL,
    turns BIGINT NOT NULL,
    calls BIGINT NOT NULL,
    failed_calls BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    cache_read_tokens BIGINT NOT NULL,
    cost_nano_usd BIGINT NOT NULL,
    unpriced_calls BIGINT NOT NULL,
    tool_calls BIGINT NOT NULL,
    -- JSON: the counts that the engine reported last.
    reported TEXT,
    PRIMARY KEY (product_id, day, engine_id)
);

CREATE INDEX usage_days_of_engine ON usage_days (engine_id, day);
CREATE INDEX usage_days_by_day ON usage_days (day);

-- The admits of products by day in UTC and outcome.
CREATE TABLE admit_days (
    product_id TEXT NOT NULL REFERENCES products (product_id),
    -- Days since 1970.
    day BIGINT NOT NULL,
    -- The run of an orchestrator that has counted them. Empty: the sum of those that have ended.
    run_id TEXT NOT NULL,
    admitted BIGINT NOT NULL,
    denied BIGINT NOT NULL,
    refused BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    PRIMARY KEY (product_id, day, run_id)
);

CREATE INDEX admit_days_by_day ON admit_days (day);
