-- Calls with an `Idempotency-Key`: what each one was, whether its change is committed, and its answer.

CREATE TABLE idempotent_calls (
    -- SHA-256 of the caller, the method, the path and the key.
    call_id TEXT PRIMARY KEY,
    -- Who makes it: the number of calls that are kept of each caller is bounded.
    caller TEXT NOT NULL,
    -- The product with which it is removed; null if it stays.
    product_id TEXT,
    -- SHA-256 of the request.
    fingerprint TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    -- The claim of an engine under which its change is made, if it is one of an engine.
    engine_id TEXT,
    generation BIGINT,
    -- When its change was committed; null if it was not.
    applied_at BIGINT,
    -- The answer: its status, and its body sealed. Before the change is committed, what the answer will be then.
    status BIGINT,
    answer TEXT,
    -- When the answer was final; null if whoever retries the call looks what became of it.
    answered_at BIGINT
);

CREATE INDEX idempotent_calls_of_caller ON idempotent_calls (caller, created_at);
CREATE INDEX idempotent_calls_by_age ON idempotent_calls (created_at);
CREATE INDEX idempotent_calls_of_product ON idempotent_calls (product_id);
CREATE INDEX idempotent_calls_of_engine ON idempotent_calls (engine_id) WHERE engine_id IS NOT NULL;
