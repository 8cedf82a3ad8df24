-- The events that are reported to the product, and their deliveries.
CREATE TABLE webhook_events (
    event TEXT PRIMARY KEY
) WITHOUT ROWID;
-- Until when the receiver is left alone after a fault of its own.
CREATE TABLE webhook_pause (
    until INTEGER NOT NULL
);
CREATE TABLE webhook_deliveries (
    delivery        INTEGER PRIMARY KEY,
    id              TEXT NOT NULL UNIQUE,
    event           TEXT NOT NULL,
    task            INTEGER NOT NULL,
    turn_id         TEXT NOT NULL,
    -- The request to the person, for which the turn waits.
    request_id      TEXT,
    state           TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    give_up_at      INTEGER NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    -- Those attempts that have failed since it was queued, or was to be sent again.
    failures        INTEGER NOT NULL DEFAULT 0,
    -- None unless it is pending; 0 for at once.
    next_attempt_at INTEGER,
    last_attempt_at INTEGER,
    error           TEXT
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_attempt_at) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_of_task ON webhook_deliveries (task);
CREATE TRIGGER task_with_webhook_deliveries_removed AFTER DELETE ON tasks BEGIN
    DELETE FROM webhook_deliveries WHERE task = old.task;
END;
