-- What an operator looks for first among the engines of all products.

CREATE INDEX engines_failed ON engines (engine_id) WHERE status = 'failed';
