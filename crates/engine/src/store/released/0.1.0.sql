-- A brain as version 0.1.0 left it when it was killed: the task `kept` has a noted value, an answer and a failure;
-- the task `open` has a turn in the middle of its answer.
PRAGMA foreign_keys = OFF;
PRAGMA user_version = 1;
BEGIN;
CREATE TABLE events (
        task INTEGER NOT NULL REFERENCES tasks,
        ts   INTEGER NOT NULL,
        turn INTEGER NOT NULL REFERENCES turns,
        kind TEXT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (task, ts)
    ) WITHOUT ROWID;
INSERT INTO "events" VALUES(1,1795186837249,1,'thread_lifecycle','{"phase":"started","message_id":"msg_01a1f9794701778689cc8ab646739d72"}');
INSERT INTO "events" VALUES(1,1795186837254,1,'content_block_start','{"index":0,"block_type":"thinking"}');
INSERT INTO "events" VALUES(1,1795186837255,1,'thinking_delta','{"text":"I keep it."}');
INSERT INTO "events" VALUES(1,1795186837256,1,'content_block_stop','{"index":0}');
INSERT INTO "events" VALUES(1,1795186837257,1,'content_block_start','{"index":1,"block_type":"tool_use"}');
INSERT INTO "events" VALUES(1,1795186837258,1,'content_block_stop','{"index":1}');
INSERT INTO "events" VALUES(1,1795186837259,1,'usage','{"model":"scripted","input_tokens":43,"output_tokens":15,"cache_read_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0}');
INSERT INTO "events" VALUES(1,1795186837260,1,'tool_call','{"tool_call_id":"call_01a1f979470673d69f90d7d72971a30a","tool":"working_memory_set","input":{"key":"note","value":"blue"}}');
INSERT INTO "events" VALUES(1,1795186837261,1,'working_memory_update','{"key":"note","value":"blue"}');
INSERT INTO "events" VALUES(1,1795186837262,1,'tool_result','{"tool_call_id":"call_01a1f979470673d69f90d7d72971a30a","tool":"working_memory_set","output":"kept under `note`","duration_ms":0}');
INSERT INTO "events" VALUES(1,1795186837263,1,'content_block_start','{"index":2,"block_type":"text"}');
INSERT INTO "events" VALUES(1,1795186837264,1,'text_delta','{"text":"Kept: kept under `note`"}');
INSERT INTO "events" VALUES(1,1795186837265,1,'content_block_stop','{"index":2}');
INSERT INTO "events" VALUES(1,1795186837266,1,'usage','{"model":"scripted","input_tokens":104,"output_tokens":21,"cache_read_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0}');
INSERT INTO "events" VALUES(1,1795186837267,1,'thread_lifecycle','{"phase":"completed","message_id":"msg_01a1f9794701778689cc8ab646739d72","answer_message_id":"msg_01a1f9794707734ea2f796daa8d8f902","text":"Kept: kept under `note`","stop_reason":"end_turn"}');
INSERT INTO "events" VALUES(1,1795186837268,2,'thread_lifecycle','{"phase":"started","message_id":"msg_01a1f9794712779c8b21d6760eca61da"}');
INSERT INTO "events" VALUES(1,1795186837269,2,'content_block_start','{"index":0,"block_type":"text"}');
INSERT INTO "events" VALUES(1,1795186837270,2,'text_delta','{"text":"You said something."}');
INSERT INTO "events" VALUES(1,1795186837271,2,'content_block_stop','{"index":0}');
INSERT INTO "events" VALUES(1,1795186837272,2,'usage','{"model":"scripted","input_tokens":68,"output_tokens":5,"cache_read_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0}');
INSERT INTO "events" VALUES(1,1795186837273,2,'thread_lifecycle','{"phase":"completed","message_id":"msg_01a1f9794712779c8b21d6760eca61da","answer_message_id":"msg_01a1f97947147107bc681a575042d975","text":"You said something.","stop_reason":"end_turn"}');
INSERT INTO "events" VALUES(1,1795186837278,3,'thread_lifecycle','{"phase":"started","message_id":"msg_01a1f979471e71189119c9c58c7dcd7c"}');
INSERT INTO "events" VALUES(1,1795186837279,3,'thread_lifecycle','{"phase":"errored","message_id":"msg_01a1f979471e71189119c9c58c7dcd7c"}');
INSERT INTO "events" VALUES(1,1795186837280,3,'error','{"code":"PROVIDER_REFUSED","message":"the script refuses the request","retryable":false}');
INSERT INTO "events" VALUES(2,1795186837288,4,'thread_lifecycle','{"phase":"started","message_id":"msg_01a1f97947287173bce2b1cb6f213f45"}');
INSERT INTO "events" VALUES(2,1795186837289,4,'content_block_start','{"index":0,"block_type":"text"}');
INSERT INTO "events" VALUES(2,1795186837290,4,'text_delta','{"text":"You "}');
INSERT INTO "events" VALUES(2,1795186837291,4,'text_delta','{"text":"said "}');
INSERT INTO "events" VALUES(2,1795186837292,4,'text_delta','{"text":"something."}');
INSERT INTO "events" VALUES(2,1795186837293,4,'content_block_stop','{"index":0}');
INSERT INTO "events" VALUES(2,1795186837294,4,'usage','{"model":"scripted","input_tokens":42,"output_tokens":5,"cache_read_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0}');
INSERT INTO "events" VALUES(2,1795186837295,4,'thread_lifecycle','{"phase":"completed","message_id":"msg_01a1f97947287173bce2b1cb6f213f45","answer_message_id":"msg_01a1f97947287173bce2b1cc64b7a2cf","text":"You said something.","stop_reason":"end_turn"}');
INSERT INTO "events" VALUES(2,1795186837302,5,'thread_lifecycle','{"phase":"started","message_id":"msg_01a1f979473677c6a970718aa438b8b2"}');
INSERT INTO "events" VALUES(2,1795186837304,5,'content_block_start','{"index":0,"block_type":"text"}');
INSERT INTO "events" VALUES(2,1795186839306,5,'text_delta','{"text":"one "}');
INSERT INTO "events" VALUES(2,1795186841307,5,'text_delta','{"text":"two "}');
CREATE TABLE steps (
        step INTEGER PRIMARY KEY,
        task INTEGER NOT NULL REFERENCES tasks,
        turn INTEGER NOT NULL REFERENCES turns,
        at   INTEGER NOT NULL,
        -- The task's newest event when the step was on record: what comes after it belongs to the next step.
        ts   INTEGER NOT NULL,
        body TEXT NOT NULL
    );
INSERT INTO "steps" VALUES(1,1,1,1795186837249,1795186837249,'{"step":"opened","message_id":"msg_01a1f9794701778689cc8ab646739d72","message":"note blue","options":{"max_turns":50,"super_thinking":false}}');
INSERT INTO "steps" VALUES(2,1,1,1795186837254,1795186837259,'{"step":"answered","message_id":"msg_01a1f979470673d69f90d7d832c9d7ca","model":"scripted","answer":{"blocks":[{"type":"thinking","thinking":"I keep it."},{"type":"tool_use","call_id":"call_01a1f979470673d69f90d7d72971a30a","provider_id":"scripted-call_01a1f979470673d69f90d7d72971a30a","name":"working_memory_set","input":{"key":"note","value":"blue"}}],"usage":{"input":43,"output":15,"cache_read":0,"cache_write":0,"reasoning":0}}}');
INSERT INTO "steps" VALUES(3,1,1,1795186837255,1795186837260,'{"step":"intended","call_id":"call_01a1f979470673d69f90d7d72971a30a"}');
INSERT INTO "steps" VALUES(4,1,1,1795186837255,1795186837262,'{"step":"resulted","call_id":"call_01a1f979470673d69f90d7d72971a30a","outcome":{"output":"kept under `note`","duration_ms":0}}');
INSERT INTO "steps" VALUES(5,1,1,1795186837255,1795186837266,'{"step":"answered","message_id":"msg_01a1f9794707734ea2f796daa8d8f902","model":"scripted","answer":{"blocks":[{"type":"text","text":"Kept: kept under `note`"}],"usage":{"input":61,"output":6,"cache_read":0,"cache_write":0,"reasoning":0}}}');
INSERT INTO "steps" VALUES(6,1,1,1795186837256,1795186837267,'{"step":"ended","outcome":{"outcome":"completed","stop_reason":"end_turn"}}');
INSERT INTO "steps" VALUES(7,1,2,1795186837267,1795186837268,'{"step":"opened","message_id":"msg_01a1f9794712779c8b21d6760eca61da","message":"hello","options":{"max_turns":50,"super_thinking":false}}');
INSERT INTO "steps" VALUES(8,1,2,1795186837269,1795186837272,'{"step":"answered","message_id":"msg_01a1f97947147107bc681a575042d975","model":"scripted","answer":{"blocks":[{"type":"text","text":"You said something."}],"usage":{"input":68,"output":5,"cache_read":0,"cache_write":0,"reasoning":0}}}');
INSERT INTO "steps" VALUES(9,1,2,1795186837269,1795186837273,'{"step":"ended","outcome":{"outcome":"completed","stop_reason":"end_turn"}}');
INSERT INTO "steps" VALUES(10,1,3,1795186837278,1795186837278,'{"step":"opened","message_id":"msg_01a1f979471e71189119c9c58c7dcd7c","message":"fail","options":{"max_turns":50,"super_thinking":false}}');
INSERT INTO "steps" VALUES(11,1,3,1795186837279,1795186837280,'{"step":"ended","outcome":{"outcome":"errored","failure":{"code":"PROVIDER_REFUSED","message":"the script refuses the request","retryable":false}}}');
INSERT INTO "steps" VALUES(12,2,4,1795186837288,1795186837288,'{"step":"opened","message_id":"msg_01a1f97947287173bce2b1cb6f213f45","message":"hello","options":{"max_turns":50,"super_thinking":false}}');
INSERT INTO "steps" VALUES(13,2,4,1795186837289,1795186837294,'{"step":"answered","message_id":"msg_01a1f97947287173bce2b1cc64b7a2cf","model":"scripted","answer":{"blocks":[{"type":"text","text":"You said something."}],"usage":{"input":42,"output":5,"cache_read":0,"cache_write":0,"reasoning":0}}}');
INSERT INTO "steps" VALUES(14,2,4,1795186837289,1795186837295,'{"step":"ended","outcome":{"outcome":"completed","stop_reason":"end_turn"}}');
INSERT INTO "steps" VALUES(15,2,5,1795186837302,1795186837302,'{"step":"opened","message_id":"msg_01a1f979473677c6a970718aa438b8b2","message":"slow","options":{"max_turns":50,"super_thinking":false}}');
CREATE TABLE tasks (
        task       INTEGER PRIMARY KEY,
        task_id    TEXT NOT NULL UNIQUE,
        created_at INTEGER NOT NULL
    );
INSERT INTO "tasks" VALUES(1,'kept',1795186837249);
INSERT INTO "tasks" VALUES(2,'open',1795186837288);
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
INSERT INTO "turns" VALUES(1,'turn_01a1f9794701778689cc8ab522242d1f',1,'msg_01a1f9794701778689cc8ab646739d72',1795186837249,1795186837256,0);
INSERT INTO "turns" VALUES(2,'turn_01a1f9794712779c8b21d67537e941a3',1,'msg_01a1f9794712779c8b21d6760eca61da',1795186837267,1795186837269,0);
INSERT INTO "turns" VALUES(3,'turn_01a1f979471e71189119c9c4455de779',1,'msg_01a1f979471e71189119c9c58c7dcd7c',1795186837278,1795186837279,0);
INSERT INTO "turns" VALUES(4,'turn_01a1f97947287173bce2b1cadad792d7',2,'msg_01a1f97947287173bce2b1cb6f213f45',1795186837288,1795186837289,0);
INSERT INTO "turns" VALUES(5,'turn_01a1f979473677c6a9707189958d96d8',2,'msg_01a1f979473677c6a970718aa438b8b2',1795186837302,NULL,0);
CREATE TABLE working_memory (
        task  INTEGER NOT NULL REFERENCES tasks,
        key   TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (task, key)
    ) WITHOUT ROWID;
INSERT INTO "working_memory" VALUES(1,'note','"blue"');
CREATE INDEX turns_open ON turns (turn) WHERE ended_at IS NULL;
CREATE INDEX steps_of_task ON steps (task, step);
COMMIT;