-- Rollouts of another engine image, newest last.

CREATE TABLE rollouts (
    rollout_id TEXT PRIMARY KEY,
    engine_version TEXT NOT NULL,
    -- The deployment's image when it began.
    previous_version TEXT NOT NULL,
    -- JSON: what was decided when it began.
    plan TEXT NOT NULL,
    phase TEXT NOT NULL,
    phase_since BIGINT NOT NULL,
    -- 1: nothing is moved for the time being.
    paused BIGINT NOT NULL,
    -- 1: on the way back, what engines were told since they were moved may be lost.
    discards_turns BIGINT NOT NULL,
    reason TEXT,
    started_at BIGINT NOT NULL,
    ended_at BIGINT
);

-- At most one is under way.
CREATE UNIQUE INDEX rollout_under_way ON rollouts ((1)) WHERE ended_at IS NULL;

-- The engines that a rollout has begun with.
CREATE TABLE rollout_engines (
    rollout_id TEXT NOT NULL REFERENCES rollouts (rollout_id),
    engine_id TEXT NOT NULL,
    product_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    previous_version TEXT NOT NULL,
    state TEXT NOT NULL,
    since BIGINT NOT NULL,
    -- The format of its brain before; null if it is unknown.
    brain_format BIGINT,
    -- What its row had when it was moved: a later generation means that it was used or has failed since.
    generation BIGINT,
    restarts BIGINT,
    -- JSON: why it failed, is skipped or is stuck.
    error TEXT,
    PRIMARY KEY (rollout_id, engine_id)
);

CREATE INDEX rollout_engines_by_state ON rollout_engines (rollout_id, state, engine_id);
