-- A run that was requested has no due time.
DROP TRIGGER schedule_removed;
CREATE TABLE schedule_runs_new (
    run         INTEGER PRIMARY KEY,
    schedule    INTEGER NOT NULL REFERENCES schedules,
    due_at      INTEGER,
    at          INTEGER NOT NULL,
    outcome     TEXT NOT NULL,
    task_id     TEXT,
    turn_id     TEXT,
    missed      INTEGER,
    last_due_at INTEGER,
    -- The id of the request for the run, if it has one.
    request_id  TEXT,
    UNIQUE (schedule, due_at),
    UNIQUE (schedule, request_id)
);
INSERT INTO schedule_runs_new
    SELECT run, schedule, due_at, at, outcome, task_id, turn_id, missed, last_due_at, NULL FROM schedule_runs;
DROP TABLE schedule_runs;
ALTER TABLE schedule_runs_new RENAME TO schedule_runs;
CREATE TRIGGER schedule_removed AFTER DELETE ON schedules BEGIN
    DELETE FROM schedule_runs WHERE schedule = old.schedule;
END;
