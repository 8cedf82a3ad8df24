-- Messages that the engine sends itself at given times.
CREATE TABLE schedules (
    schedule    INTEGER PRIMARY KEY,
    id          TEXT NOT NULL UNIQUE,
    -- The task of all runs; none if each run has a task of its own.
    task_id     TEXT,
    definition  TEXT NOT NULL,
    state       TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    -- Up to here every due time is decided.
    last_due_at INTEGER,
    -- None while it is active means that it is to be computed.
    next_due_at INTEGER
);
CREATE INDEX schedules_due ON schedules (next_due_at) WHERE state = 'active';
CREATE INDEX schedules_of_task ON schedules (task_id) WHERE task_id IS NOT NULL;
-- What became of due times. Each is run at most once.
CREATE TABLE schedule_runs (
    run         INTEGER PRIMARY KEY,
    schedule    INTEGER NOT NULL REFERENCES schedules,
    due_at      INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    outcome     TEXT NOT NULL,
    task_id     TEXT,
    turn_id     TEXT,
    missed      INTEGER,
    last_due_at INTEGER,
    UNIQUE (schedule, due_at)
);
CREATE TRIGGER schedule_removed AFTER DELETE ON schedules BEGIN
    DELETE FROM schedule_runs WHERE schedule = old.schedule;
END;
CREATE TRIGGER task_with_schedules_removed AFTER DELETE ON tasks BEGIN
    DELETE FROM schedules WHERE task_id = old.task_id;
END;
