-- The turns of a day by the time until their first text.
CREATE TABLE first_deltas (
    day      INTEGER NOT NULL,
    -- The place of the time among the bounds of the histogram.
    bucket   INTEGER NOT NULL,
    turns    INTEGER NOT NULL,
    total_ms INTEGER NOT NULL,
    PRIMARY KEY (day, bucket)
) WITHOUT ROWID;
CREATE TRIGGER usage_day_removed AFTER DELETE ON usage_days BEGIN
    DELETE FROM first_deltas WHERE day = old.day;
END;
