-- When sleeping engines are to be woken for their schedules.

-- When a schedule of the engine is due; null if none is, as of its last sleep.
ALTER TABLE engines ADD COLUMN wake_at BIGINT;
-- The generation of the sleep in which the engine was asked.
ALTER TABLE engines ADD COLUMN wake_asked BIGINT;

CREATE INDEX engines_to_wake ON engines (wake_at) WHERE wake_at IS NOT NULL AND status = 'sleeping';
