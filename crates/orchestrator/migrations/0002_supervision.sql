-- What the supervisor knows, rotation, lifetime counters, and the indexes behind audit, metrics and supervision.

-- When the policy was last replaced; null if it never was.
ALTER TABLE products ADD COLUMN updated_at BIGINT;
-- Lifetime figures: how many rows of these events the ledger has.
ALTER TABLE products ADD COLUMN provisions BIGINT NOT NULL DEFAULT 0;
ALTER TABLE products ADD COLUMN destroys BIGINT NOT NULL DEFAULT 0;
UPDATE products SET
    provisions = (SELECT COUNT(*) FROM audit_log WHERE audit_log.product_id = products.product_id AND event = 'provision'),
    destroys = (SELECT COUNT(*) FROM audit_log WHERE audit_log.product_id = products.product_id AND event = 'destroy');

-- When its user was last admitted, or it was brought up for them.
ALTER TABLE engines ADD COLUMN admitted_at BIGINT;
-- Consecutive health checks that failed.
ALTER TABLE engines ADD COLUMN failed_checks BIGINT NOT NULL DEFAULT 0;
-- Since when every check has been good.
ALTER TABLE engines ADD COLUMN well_since BIGINT;
-- Automatic restarts attempted since it was last well for long.
ALTER TABLE engines ADD COLUMN restarts BIGINT NOT NULL DEFAULT 0;
-- When the next one is due; null if none is.
ALTER TABLE engines ADD COLUMN restart_at BIGINT;
-- A rotation under way: the next key, sealed, and its hash.
ALTER TABLE engines ADD COLUMN pending_key TEXT;
ALTER TABLE engines ADD COLUMN pending_key_hash TEXT;

CREATE INDEX engines_running ON engines (engine_id) WHERE status = 'running';
CREATE INDEX engines_claimed ON engines (engine_id) WHERE claim_kind IS NOT NULL;
CREATE INDEX engines_to_restart ON engines (engine_id) WHERE restart_at IS NOT NULL;
CREATE INDEX audit_log_by_time ON audit_log (product_id, event, at, duration_ms);
CREATE INDEX audit_log_by_event ON audit_log (product_id, event, id);
CREATE INDEX audit_log_by_user ON audit_log (product_id, user_id, id);
