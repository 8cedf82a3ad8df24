-- What an operator looks for first among the engines of all products.

CREATE INDEX engines_failed ON engines (engine_id) WHERE status = 'failed';

-- The audit logs of all products in one order.

CREATE INDEX audit_log_by_at ON audit_log (at, product_id, id);
