-- What the engine has used by day in UTC, for the sums of the orchestrator. Unlike usage, it counts only what this engine
-- did: an import changes nothing, and each count only grows.
CREATE TABLE usage_days (
    -- Days since 1970.
    day        INTEGER PRIMARY KEY,
    turns      INTEGER NOT NULL DEFAULT 0,
    calls      INTEGER NOT NULL DEFAULT 0,
    failed     INTEGER NOT NULL DEFAULT 0,
    input      INTEGER NOT NULL DEFAULT 0,
    output     INTEGER NOT NULL DEFAULT 0,
    cache_read INTEGER NOT NULL DEFAULT 0,
    -- In US dollars / 10^9, and the calls whose cost is unknown.
    cost       INTEGER NOT NULL DEFAULT 0,
    unpriced   INTEGER NOT NULL DEFAULT 0,
    tool_calls INTEGER NOT NULL DEFAULT 0
);
-- The engine that has used it.
CREATE TABLE usage_days_owner (
    engine_id TEXT NOT NULL
);
-- Whichever statement ends a turn; one that is imported has ended already.
CREATE TRIGGER turn_of_day_ended AFTER UPDATE OF ended_at ON turns
WHEN old.ended_at IS NULL AND new.ended_at IS NOT NULL BEGIN
    INSERT INTO usage_days (day, turns) VALUES (MAX(new.ended_at, 0) / 86400000, 1)
        ON CONFLICT DO UPDATE SET turns = turns + 1;
END;
-- By number, not by age: a clock that is set ahead for a moment removes no day that still counts.
CREATE TRIGGER usage_day_added AFTER INSERT ON usage_days BEGIN
    DELETE FROM usage_days WHERE day < (SELECT day FROM usage_days ORDER BY day DESC LIMIT 1 OFFSET 399);
END;
