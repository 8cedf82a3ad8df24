//! The statements of the schema: that of the first version, and the migrations since then.

/// The statements that turn an empty file into a brain of the first version.
pub(super) const BASE_SCHEMA: &str = "
    CREATE TABLE tasks (
        task       INTEGER PRIMARY KEY,
        task_id    TEXT NOT NULL UNIQUE,
        created_at INTEGER NOT NULL
    );
    CREATE TABLE turns (
        turn      INTEGER PRIMARY KEY,
        turn_id   TEXT NOT NULL UNIQUE,
        task      INTEGER NOT NULL REFERENCES tasks,
        -- The user's message, which every phase of the turn names.
        message_id TEXT NOT NULL,
        opened_at INTEGER NOT NULL,
        ended_at  INTEGER,
        -- How many starts of the engine have taken the turn up since its last step.
        starts    INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX turns_open ON turns (turn) WHERE ended_at IS NULL;
    -- The journal, which is also the thread: what a turn did, in order. Nothing here is ever changed.
    CREATE TABLE steps (
        step INTEGER PRIMARY KEY,
        task INTEGER NOT NULL REFERENCES tasks,
        turn INTEGER NOT NULL REFERENCES turns,
        at   INTEGER NOT NULL,
        -- The task's newest event when the step was on record: what comes after it belongs to the next step.
        ts   INTEGER NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX steps_of_task ON steps (task, step);
    -- What clients see, in the order of their task's clock.
    CREATE TABLE events (
        task INTEGER NOT NULL REFERENCES tasks,
        ts   INTEGER NOT NULL,
        turn INTEGER NOT NULL REFERENCES turns,
        kind TEXT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (task, ts)
    ) WITHOUT ROWID;
    CREATE TABLE working_memory (
        task  INTEGER NOT NULL REFERENCES tasks,
        key   TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (task, key)
    ) WITHOUT ROWID;
";

/// The additions to the format since then, in order.
pub(super) const MIGRATIONS: [&str; 22] = [
    "
    ALTER TABLE tasks ADD COLUMN message_count INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX tasks_by_change ON tasks (updated_at, task);
    UPDATE tasks SET
        message_count = (
            SELECT COUNT(*) FROM steps
            WHERE steps.task = tasks.task AND body ->> '$.step' IN ('opened', 'answered')
        ),
        updated_at = COALESCE((SELECT MAX(at) FROM steps WHERE steps.task = tasks.task), created_at);
    -- The request that began the turn, by the caller's own name for it, and a hash of what it asked for.
    ALTER TABLE turns ADD COLUMN client_request_id TEXT;
    ALTER TABLE turns ADD COLUMN request_hash TEXT;
    -- The `ts` of the turn's first event.
    ALTER TABLE turns ADD COLUMN opened_ts INTEGER;
    -- Whether the turn's deltas have been taken out of `events`.
    ALTER TABLE turns ADD COLUMN folded INTEGER NOT NULL DEFAULT 0;
    CREATE UNIQUE INDEX turns_of_request ON turns (task, client_request_id) WHERE client_request_id IS NOT NULL;
    CREATE INDEX turns_of_task ON turns (task, turn);
    CREATE INDEX turns_to_fold ON turns (ended_at) WHERE folded = 0 AND ended_at IS NOT NULL;
    -- What waits for a person: of each turn at most one.
    CREATE TABLE pending (
        request_id TEXT PRIMARY KEY,
        task       INTEGER NOT NULL REFERENCES tasks,
        turn       INTEGER NOT NULL UNIQUE REFERENCES turns,
        kind       TEXT NOT NULL,
        question   TEXT NOT NULL,
        created_at INTEGER NOT NULL
    );
    -- What a person has allowed for good; in all tasks where there is none.
    CREATE TABLE grants (
        grant_id   TEXT PRIMARY KEY,
        tool       TEXT NOT NULL,
        task       INTEGER REFERENCES tasks,
        prefix     TEXT,
        created_at INTEGER NOT NULL
    );
    -- What people attached, once each.
    CREATE TABLE media (
        hash TEXT PRIMARY KEY,
        data BLOB NOT NULL
    );
    CREATE TABLE media_uses (
        task INTEGER NOT NULL REFERENCES tasks,
        hash TEXT NOT NULL REFERENCES media,
        PRIMARY KEY (task, hash)
    ) WITHOUT ROWID;
    CREATE INDEX media_uses_of_hash ON media_uses (hash);
",
    "
    -- What was set while the engine ran and is to stay.
    CREATE TABLE settings (
        name  TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) WITHOUT ROWID;
    -- What each call of a model has spent, for a day. It outlives its task: deleting one earns no budget.
    CREATE TABLE spending (
        at          INTEGER NOT NULL,
        model       TEXT NOT NULL,
        input       INTEGER NOT NULL,
        output      INTEGER NOT NULL,
        cache_read  INTEGER NOT NULL,
        cache_write INTEGER NOT NULL
    );
    -- All that a budget needs: it is asked before every call of a model.
    CREATE INDEX spending_by_time ON spending (at, input, output);
    INSERT INTO spending
        SELECT at, COALESCE(body ->> '$.model', ''), COALESCE(body ->> (place || '.input'), 0),
               COALESCE(body ->> (place || '.output'), 0), COALESCE(body ->> (place || '.cache_read'), 0),
               COALESCE(body ->> (place || '.cache_write'), 0)
        FROM (
            SELECT at, body, iif(body ->> '$.step' = 'spent', '$.tokens', '$.answer.usage') AS place
            FROM steps WHERE at > (unixepoch('now') - 86400) * 1000 AND body ->> '$.step' IN ('answered', 'spent')
        );
",
    "
    -- What is known beyond a task. A record is in force until another one takes its place.
    CREATE TABLE knowledge (
        record      INTEGER PRIMARY KEY,
        id          TEXT NOT NULL UNIQUE,
        content     TEXT NOT NULL,
        tags        TEXT NOT NULL,
        source      TEXT NOT NULL,
        created_at  INTEGER NOT NULL,
        valid_until INTEGER,
        supersedes  TEXT,
        -- Where it was drawn from: going back behind that step takes it out.
        task        INTEGER REFERENCES tasks,
        step        INTEGER
    );
    CREATE INDEX knowledge_of_task ON knowledge (task, step) WHERE task IS NOT NULL;
    CREATE VIRTUAL TABLE knowledge_words USING fts5 (
        content, tags, content = 'knowledge', content_rowid = 'record',
        tokenize = 'porter unicode61 remove_diacritics 2'
    );
    -- An index is in step with its table whoever writes that, an earlier version of the engine too.
    CREATE TRIGGER knowledge_added AFTER INSERT ON knowledge BEGIN
        INSERT INTO knowledge_words (rowid, content, tags) VALUES (new.record, new.content, new.tags);
    END;
    CREATE TRIGGER knowledge_removed AFTER DELETE ON knowledge BEGIN
        INSERT INTO knowledge_words (knowledge_words, rowid, content, tags)
            VALUES ('delete', old.record, old.content, old.tags);
    END;
    -- What became of turns that have ended, in short.
    CREATE TABLE episodes (
        episode    INTEGER PRIMARY KEY,
        id         TEXT NOT NULL UNIQUE,
        task       INTEGER NOT NULL REFERENCES tasks,
        turn       INTEGER NOT NULL REFERENCES turns,
        -- The last step of the turn.
        step       INTEGER NOT NULL,
        content    TEXT NOT NULL,
        source     TEXT NOT NULL,
        created_at INTEGER NOT NULL
    );
    CREATE INDEX episodes_of_task ON episodes (task, step);
    CREATE VIRTUAL TABLE episode_words USING fts5 (
        content, content = 'episodes', content_rowid = 'episode',
        tokenize = 'porter unicode61 remove_diacritics 2'
    );
    CREATE TRIGGER episode_added AFTER INSERT ON episodes BEGIN
        INSERT INTO episode_words (rowid, content) VALUES (new.episode, new.content);
    END;
    CREATE TRIGGER episode_removed AFTER DELETE ON episodes BEGIN
        INSERT INTO episode_words (episode_words, rowid, content) VALUES ('delete', old.episode, old.content);
    END;
    -- What turns did, with their outcome: what is learned from.
    CREATE TABLE trajectories (
        turn    INTEGER PRIMARY KEY REFERENCES turns,
        task    INTEGER NOT NULL REFERENCES tasks,
        step    INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        did     TEXT NOT NULL,
        at      INTEGER NOT NULL
    );
    CREATE INDEX trajectories_of_task ON trajectories (task, step);
    -- The messages in force of turns that have ended, each by its place in their conversation. One that is followed
    -- by the results of its calls is two messages long.
    CREATE TABLE said (
        task       INTEGER NOT NULL REFERENCES tasks,
        place      INTEGER NOT NULL,
        length     INTEGER NOT NULL,
        message_id TEXT NOT NULL,
        step       INTEGER NOT NULL REFERENCES steps,
        -- The how-manieth of those with words in them it is, counted from 0.
        nth        INTEGER,
        PRIMARY KEY (task, place)
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX said_in_words ON said (task, nth) WHERE nth IS NOT NULL;
    -- Overlapping runs of those with words, each by its first one.
    CREATE TABLE windows (
        window INTEGER PRIMARY KEY,
        task   INTEGER NOT NULL REFERENCES tasks,
        first  INTEGER NOT NULL,
        UNIQUE (task, first)
    );
    CREATE VIRTUAL TABLE window_words USING fts5 (
        content, content = '', contentless_delete = 1, tokenize = 'porter unicode61 remove_diacritics 2'
    );
    CREATE TRIGGER window_removed AFTER DELETE ON windows BEGIN
        DELETE FROM window_words WHERE rowid = old.window;
    END;
    -- What turns of a task were told of what is remembered: its conversation shows it.
    CREATE TABLE recalled (
        task INTEGER NOT NULL REFERENCES tasks,
        step INTEGER NOT NULL,
        kind TEXT NOT NULL,
        id   TEXT NOT NULL
    );
    CREATE INDEX recalled_of_task ON recalled (task, step);
    -- The last step that memory has taken in, and how many messages a conversation no longer shows, as was found
    -- when it had so many.
    ALTER TABLE tasks ADD COLUMN taken_in INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN covered INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE tasks ADD COLUMN covered_at INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE turns ADD COLUMN taken_in INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX turns_to_take_in ON turns (turn) WHERE taken_in = 0 AND ended_at IS NOT NULL;
    -- What was said in a task goes with it; what is known stays.
    CREATE TRIGGER task_removed AFTER DELETE ON tasks BEGIN
        DELETE FROM windows WHERE task = old.task;
        DELETE FROM said WHERE task = old.task;
        DELETE FROM episodes WHERE task = old.task;
        DELETE FROM trajectories WHERE task = old.task;
        DELETE FROM recalled WHERE task = old.task;
        UPDATE knowledge SET task = NULL, step = NULL WHERE task = old.task;
    END;
",
    "
    -- What takes the place of what.
    CREATE INDEX knowledge_superseding ON knowledge (supersedes) WHERE supersedes IS NOT NULL;
    -- Skills that the user made, each as JSON.
    CREATE TABLE skills (
        name       TEXT PRIMARY KEY,
        -- What a list shows: before the skill itself, which may be large and is then not read.
        summary    TEXT NOT NULL GENERATED ALWAYS AS (json_remove(skill, '$.prompt', '$.scripts')) STORED,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        skill      TEXT NOT NULL
    ) WITHOUT ROWID;
    -- What people said of turns, each as JSON, and the batch that is done with it.
    CREATE TABLE feedback (
        feedback   INTEGER PRIMARY KEY,
        id         TEXT NOT NULL UNIQUE,
        task       INTEGER REFERENCES tasks,
        -- The last turn of the task when it was given, and its last step.
        turn       INTEGER,
        step       INTEGER,
        said       TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        batch      INTEGER REFERENCES batches
    );
    CREATE INDEX feedback_of_task ON feedback (task, step);
    CREATE INDEX feedback_to_learn ON feedback (feedback) WHERE batch IS NULL;
    -- Of all knowledge what turns are told unasked.
    CREATE INDEX knowledge_taught ON knowledge (source)
        WHERE source IN ('feedback', 'learned') AND valid_until IS NULL;
    -- Runs of the learning component: how far each came, as JSON.
    CREATE TABLE batches (
        batch      INTEGER PRIMARY KEY,
        id         TEXT NOT NULL UNIQUE,
        state      TEXT NOT NULL,
        started_at INTEGER NOT NULL,
        ended_at   INTEGER
    );
    CREATE INDEX batches_under_way ON batches (batch) WHERE ended_at IS NULL;
    -- What lessons, which are records of knowledge, were drawn from, as JSON.
    CREATE TABLE lessons (
        id       TEXT PRIMARY KEY,
        evidence TEXT NOT NULL,
        batch    INTEGER REFERENCES batches
    ) WITHOUT ROWID;
    CREATE TRIGGER lesson_removed AFTER DELETE ON knowledge BEGIN
        DELETE FROM lessons WHERE id = old.id;
    END;
    CREATE TRIGGER task_with_feedback_removed AFTER DELETE ON tasks BEGIN
        UPDATE feedback SET task = NULL, turn = NULL, step = NULL WHERE task = old.task;
    END;
",
    "
    -- Connections to tool servers, one per server; credentials are sealed. What is here leaves the engine in no export.
    CREATE TABLE connections (
        connection  INTEGER PRIMARY KEY,
        id          TEXT NOT NULL UNIQUE,
        server      TEXT NOT NULL UNIQUE,
        status      TEXT NOT NULL,
        error       TEXT,
        -- A hash of which server it is to: the catalog may come to mean another one by the name.
        identity    TEXT NOT NULL,
        -- The server's tools as it last listed them, as JSON.
        tools       TEXT NOT NULL,
        created_at  INTEGER NOT NULL,
        credentials TEXT
    );
    -- Authorizations that were begun, by the hash of their `state`; what finishes them is sealed.
    CREATE TABLE authorizations (
        state      TEXT PRIMARY KEY,
        server     TEXT NOT NULL,
        begun      TEXT NOT NULL,
        created_at INTEGER NOT NULL
    ) WITHOUT ROWID;
    -- Who the engine is at authorization servers, sealed.
    CREATE TABLE registrations (
        issuer       TEXT PRIMARY KEY,
        registration TEXT NOT NULL
    ) WITHOUT ROWID;
",
    "
    -- Deletions of which something may still be left in a file, and where that is, as JSON.
    CREATE TABLE erasures (
        erasure INTEGER PRIMARY KEY,
        remains TEXT NOT NULL
    );
",
    "
    -- Conversations as they were at the end of a turn, from which their journals are read on.
    CREATE TABLE checkpoints (
        task INTEGER PRIMARY KEY REFERENCES tasks,
        step INTEGER NOT NULL REFERENCES steps,
        -- Which versions of the engine can read it.
        form INTEGER NOT NULL,
        body TEXT NOT NULL
    );
    CREATE TRIGGER task_with_checkpoint_removed AFTER DELETE ON tasks BEGIN
        DELETE FROM checkpoints WHERE task = old.task;
    END;
",
    "
    -- A hash of what the tool was that a person allowed for good.
    ALTER TABLE grants ADD COLUMN binding TEXT;
",
    "
    -- The terms of messages and knowledge: posting lists alone, of which a row is named by its place. That is the
    -- number of its task shifted left by 20 bits, plus its index in the task (`said.nth`). A record of knowledge is
    -- a task of its own: 2^41 plus `knowledge.record`.
    CREATE VIRTUAL TABLE terms USING fts5 (
        content, content = '', detail = none, contentless_delete = 1, tokenize = 'ascii'
    );
    -- What is in that index.
    CREATE TABLE indexed (
        place      INTEGER PRIMARY KEY,
        -- Of what a result shows of it.
        characters INTEGER NOT NULL,
        -- When it was said or saved, in days since 1970-01-01.
        day        INTEGER NOT NULL
    );
    -- How much that is: of messages, and of knowledge.
    CREATE TABLE indexed_counts (
        is_knowledge INTEGER PRIMARY KEY,
        places    INTEGER NOT NULL,
        tasks     INTEGER NOT NULL
    );
    INSERT INTO indexed_counts VALUES (0, 0, 0), (1, 0, 0);
    CREATE TRIGGER place_indexed AFTER INSERT ON indexed BEGIN
        UPDATE indexed_counts SET places = places + 1, tasks = tasks + (new.place & 1048575 = 0)
        WHERE is_knowledge = (new.place >= 1 << 61);
    END;
    CREATE TRIGGER place_removed AFTER DELETE ON indexed BEGIN
        DELETE FROM terms WHERE rowid = old.place;
        UPDATE indexed_counts SET places = places - 1, tasks = tasks - (old.place & 1048575 = 0)
        WHERE is_knowledge = (old.place >= 1 << 61);
    END;
    -- What is not in it yet, whichever version of the engine wrote it.
    CREATE TABLE to_index (place INTEGER PRIMARY KEY);
    CREATE TRIGGER message_said AFTER INSERT ON said WHEN new.nth IS NOT NULL BEGIN
        INSERT OR IGNORE INTO to_index VALUES (new.task << 20 | new.nth);
    END;
    CREATE TRIGGER message_withdrawn AFTER DELETE ON said WHEN old.nth IS NOT NULL BEGIN
        DELETE FROM to_index WHERE place = (old.task << 20 | old.nth);
        DELETE FROM indexed WHERE place = (old.task << 20 | old.nth);
    END;
    -- Only knowledge in force is searched.
    CREATE TRIGGER knowledge_saved AFTER INSERT ON knowledge WHEN new.valid_until IS NULL BEGIN
        INSERT OR IGNORE INTO to_index VALUES ((1 << 41) + new.record << 20);
    END;
    CREATE TRIGGER knowledge_restored AFTER UPDATE OF valid_until ON knowledge
    WHEN old.valid_until IS NOT NULL AND new.valid_until IS NULL BEGIN
        INSERT OR IGNORE INTO to_index VALUES ((1 << 41) + new.record << 20);
    END;
    CREATE TRIGGER knowledge_superseded AFTER UPDATE OF valid_until ON knowledge
    WHEN new.valid_until IS NOT NULL BEGIN
        DELETE FROM to_index WHERE place = ((1 << 41) + old.record << 20);
        DELETE FROM indexed WHERE place = ((1 << 41) + old.record << 20);
    END;
    CREATE TRIGGER knowledge_deleted AFTER DELETE ON knowledge BEGIN
        DELETE FROM to_index WHERE place = ((1 << 41) + old.record << 20);
        DELETE FROM indexed WHERE place = ((1 << 41) + old.record << 20);
    END;
    INSERT INTO to_index SELECT task << 20 | nth FROM said WHERE nth IS NOT NULL ORDER BY task, nth;
    INSERT INTO to_index SELECT (1 << 41) + record << 20 FROM knowledge WHERE valid_until IS NULL ORDER BY record;
    -- The indexes before it. An earlier version finds them empty, and fills that of messages with what it sees.
    DROP TRIGGER knowledge_added;
    DROP TRIGGER knowledge_removed;
    DROP TRIGGER episode_added;
    DROP TRIGGER episode_removed;
    INSERT INTO knowledge_words (knowledge_words) VALUES ('delete-all');
    INSERT INTO episode_words (episode_words) VALUES ('delete-all');
    DROP TRIGGER window_removed;
    DELETE FROM windows;
    INSERT INTO window_words (window_words) VALUES ('delete-all');
    CREATE TRIGGER window_removed AFTER DELETE ON windows BEGIN
        DELETE FROM window_words WHERE rowid = old.window;
    END;
",
    "
    -- Messages that wait for their turn, in this order, each as the request that brought it. One that left the queue
    -- without a turn has an outcome and no words.
    CREATE TABLE queued_turns (
        entry      INTEGER PRIMARY KEY,
        task       INTEGER NOT NULL REFERENCES tasks,
        turn_id    TEXT NOT NULL UNIQUE,
        queued_at  INTEGER NOT NULL,
        bytes      INTEGER NOT NULL,
        client_request_id TEXT,
        request_hash      TEXT,
        ended_at   INTEGER,
        outcome    TEXT,
        body       TEXT
    );
    CREATE INDEX queued_turns_of_task ON queued_turns (task, entry);
    CREATE INDEX queued_turns_waiting ON queued_turns (entry) WHERE ended_at IS NULL;
    CREATE TRIGGER task_with_queue_removed AFTER DELETE ON tasks BEGIN
        DELETE FROM queued_turns WHERE task = old.task;
    END;
    -- When the message of the turn was queued.
    ALTER TABLE turns ADD COLUMN queued_at INTEGER;
",
    "
    -- What a product shows of a conversation, beside its messages.
    CREATE TABLE conversations (
        task         INTEGER PRIMARY KEY REFERENCES tasks,
        title        TEXT,
        title_source TEXT,
        -- Whether a model was asked for a title, which happens once.
        title_asked  INTEGER NOT NULL DEFAULT 0,
        metadata     TEXT NOT NULL DEFAULT '{}',
        pinned       INTEGER NOT NULL DEFAULT 0,
        archived     INTEGER NOT NULL DEFAULT 0,
        -- The task that it continues, and the last message that was copied.
        origin       INTEGER REFERENCES tasks,
        forked_after TEXT,
        -- What a conversation and its forks have in common; calls of the one may be calls of the other.
        family       TEXT,
        -- Whether what was copied came from a tool in part.
        tainted      INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX conversations_of_family ON conversations (family) WHERE family IS NOT NULL;
    CREATE INDEX conversations_of_origin ON conversations (origin) WHERE origin IS NOT NULL;
    -- Tasks for which a model is to make a title.
    CREATE TABLE title_requests (
        task  INTEGER PRIMARY KEY REFERENCES tasks,
        tries INTEGER NOT NULL DEFAULT 0
    );
    -- Messages of forks that searches find in another task: of equal messages only one is indexed.
    CREATE TABLE copies (
        message_id TEXT NOT NULL,
        task       INTEGER NOT NULL REFERENCES tasks,
        nth        INTEGER NOT NULL,
        PRIMARY KEY (message_id, task)
    ) WITHOUT ROWID;
    CREATE INDEX copies_of_task ON copies (task);
    -- Where the one that is indexed goes, another one takes its place.
    CREATE TRIGGER copy_or_original_withdrawn AFTER DELETE ON said WHEN old.nth IS NOT NULL BEGIN
        INSERT OR IGNORE INTO to_index
            SELECT task << 20 | nth FROM copies
            WHERE message_id = old.message_id AND NOT EXISTS (
                SELECT 1 FROM copies WHERE message_id = old.message_id AND task = old.task
            )
            ORDER BY task LIMIT 1;
        DELETE FROM copies WHERE message_id = old.message_id AND task = COALESCE(
            (SELECT task FROM copies WHERE message_id = old.message_id AND task = old.task),
            (SELECT MIN(task) FROM copies WHERE message_id = old.message_id)
        );
    END;
    CREATE TRIGGER task_with_conversation_removed AFTER DELETE ON tasks BEGIN
        DELETE FROM conversations WHERE task = old.task;
        DELETE FROM title_requests WHERE task = old.task;
        UPDATE conversations SET origin = NULL, forked_after = NULL WHERE origin = old.task;
    END;
",
    "
    -- The messages of a fork are indexed like any others.
    INSERT OR IGNORE INTO to_index SELECT task << 20 | nth FROM copies
        WHERE NOT EXISTS (SELECT 1 FROM indexed WHERE place = (copies.task << 20 | copies.nth));
    DROP TRIGGER copy_or_original_withdrawn;
    DROP TABLE copies;
",
    "
    -- Whether the message takes the place of the running turn: such ones come before all others of their task.
    ALTER TABLE queued_turns ADD COLUMN interrupts INTEGER NOT NULL DEFAULT 0;
",
    include_str!("schedules.sql"),
    "
    -- The tool calls that a person was asked about. What was asked stays until it is decided or the turn ends.
    CREATE TABLE approvals (
        request_id TEXT PRIMARY KEY,
        task       INTEGER NOT NULL REFERENCES tasks,
        turn       INTEGER NOT NULL REFERENCES turns,
        call_id    TEXT NOT NULL,
        data       TEXT,
        decision   TEXT
    );
    CREATE INDEX approvals_of_task ON approvals (task);
    CREATE INDEX approvals_of_turn ON approvals (turn);
    -- Whichever version of the engine ends or deletes the turn.
    CREATE TRIGGER turn_with_approvals_ended AFTER UPDATE OF ended_at ON turns WHEN new.ended_at IS NOT NULL BEGIN
        UPDATE approvals SET data = NULL WHERE turn = new.turn;
    END;
    CREATE TRIGGER turn_with_approvals_removed BEFORE DELETE ON turns BEGIN
        DELETE FROM approvals WHERE turn = old.turn;
    END;
    -- The request with whose answer it was given.
    ALTER TABLE grants ADD COLUMN request_id TEXT;
",
    "
    -- What model calls and tools have used, in quarters of an hour since 1970: time zones differ by whole quarters.
    CREATE TABLE usage (
        quarter     INTEGER NOT NULL,
        -- 0: outside any task, or of one that was deleted.
        task        INTEGER NOT NULL,
        model       TEXT NOT NULL,
        -- The name of a sub-agent, or nothing.
        agent       TEXT NOT NULL,
        purpose     TEXT NOT NULL,
        -- The name of a tool that the model called; nothing for the calls of the model.
        tool        TEXT NOT NULL,
        calls       INTEGER NOT NULL,
        failed      INTEGER NOT NULL,
        input       INTEGER NOT NULL,
        output      INTEGER NOT NULL,
        cache_read  INTEGER NOT NULL,
        cache_write INTEGER NOT NULL,
        reasoning   INTEGER NOT NULL,
        -- In US dollars / 10^9, and the calls whose cost is unknown.
        cost        INTEGER NOT NULL,
        unpriced    INTEGER NOT NULL,
        time_ms     INTEGER NOT NULL,
        PRIMARY KEY (quarter, task, model, agent, purpose, tool)
    ) WITHOUT ROWID;
    CREATE INDEX usage_of_task ON usage (task) WHERE task <> 0;
    -- The sums stay, without what names the task.
    CREATE TRIGGER task_with_usage_removed AFTER DELETE ON tasks BEGIN
        INSERT INTO usage
            SELECT quarter, 0, model, agent, purpose, tool, calls, failed, input, output, cache_read, cache_write,
                   reasoning, cost, unpriced, time_ms
            FROM usage WHERE task = old.task AND task <> 0
            ON CONFLICT DO UPDATE SET
                calls = calls + excluded.calls, failed = failed + excluded.failed, input = input + excluded.input,
                output = output + excluded.output, cache_read = cache_read + excluded.cache_read,
                cache_write = cache_write + excluded.cache_write, reasoning = reasoning + excluded.reasoning,
                cost = cost + excluded.cost, unpriced = unpriced + excluded.unpriced,
                time_ms = time_ms + excluded.time_ms;
        DELETE FROM usage WHERE task = old.task AND task <> 0;
    END;
",
    "
    -- What counts towards caps: of a day in UTC (task 0), and of a task as long as it exists (day 0). Unlike usage,
    -- old days are not combined, and an import changes no day.
    CREATE TABLE cap_use (
        day            INTEGER NOT NULL,
        task           INTEGER NOT NULL,
        tokens         INTEGER NOT NULL,
        -- In US dollars / 10^9.
        cost           INTEGER NOT NULL,
        -- The caps about which clients were told, in the units of the sums; 0: none.
        tokens_warned  INTEGER NOT NULL DEFAULT 0,
        tokens_reached INTEGER NOT NULL DEFAULT 0,
        cost_warned    INTEGER NOT NULL DEFAULT 0,
        cost_reached   INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (task, day)
    ) WITHOUT ROWID;
    INSERT INTO cap_use (day, task, tokens, cost)
        SELECT quarter / 96, 0, SUM(input + output), SUM(cost) FROM usage
        WHERE quarter >= (SELECT MAX(quarter) FROM usage) / 96 * 96 GROUP BY 1;
    INSERT INTO cap_use (day, task, tokens, cost)
        SELECT 0, task, SUM(input + output), SUM(cost) FROM usage WHERE task <> 0 GROUP BY task;
    CREATE TRIGGER task_with_cap_use_removed AFTER DELETE ON tasks BEGIN
        DELETE FROM cap_use WHERE task = old.task;
    END;
    -- By number, not by age: a clock that is set ahead for a moment removes no day that still counts.
    CREATE TRIGGER cap_use_of_day_added AFTER INSERT ON cap_use WHEN new.task = 0 BEGIN
        DELETE FROM cap_use WHERE task = 0 AND day < (
            SELECT day FROM cap_use WHERE task = 0 ORDER BY day DESC LIMIT 1 OFFSET 31);
    END;
",
    include_str!("schedule_requests.sql"),
    include_str!("user_servers.sql"),
    include_str!("webhooks.sql"),
    include_str!("usage_days.sql"),
    include_str!("first_deltas.sql"),
];
