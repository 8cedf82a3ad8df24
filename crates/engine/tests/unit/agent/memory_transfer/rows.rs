//! Rows that the actions of [`BrainModel`](super::BrainModel) do not create: of every table that an export contains,
//! and of some that it leaves out.

use api::schedules::ScheduleDefinition;
use api::user_servers::UserServerDefinition;
use api::{BatchId, CallId, FeedbackId, HitlId, MessageId, TaskId, Timestamp, TurnId};
use rusqlite::{ToSql, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use store::steps::Step;
use store::testing::row_number;
use store::{Brain, IdempotencyKey, NewQueuedTurn, NewTurn, StoreError, TaskRow, WriteTx};

const ABC_SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// A time in the tests' brains, which begin at 1970.
const AT: Timestamp = Timestamp::from_unix_ms(1_000_000);

/// A task of its own, with a turn that has every kind of step which the actions do not have.
struct ExtraTask {
    row: TaskRow,
    task_id: TaskId,
    turn_id: TurnId,
    question: MessageId,
}

/// Adds the rows. Some have the same ids in every brain, and others new ones, so that a merge meets both.
pub(super) async fn insert(brain: &Brain) {
    let row = brain.reserve_task();
    brain
        .write(move |tx| {
            // A commit that is retried begins with another task.
            let turn_id = TurnId::new();
            let task_id = TaskId::new(format!("extra-{turn_id}")).unwrap();
            let extra = ExtraTask { row, task_id, turn_id, question: MessageId::new() };
            insert_turn(tx, &extra)?;
            insert_memory(tx)?;
            insert_conversations(tx, &extra)?;
            insert_of_engine(tx, &extra)?;
            insert_schedules(tx, &extra)?;
            insert_usage(tx)?;
            insert_queue(tx, &extra)
        })
        .await
        .unwrap();
}

fn execute(tx: &WriteTx<'_>, sql: &str, values: &[&dyn ToSql]) -> Result<(), StoreError> {
    Ok(tx.transaction().execute(sql, values).map(drop)?)
}

/// JSON as the engine stores it, which has its fields in their order.
fn stored<T: DeserializeOwned + Serialize>(value: Value) -> String {
    serde_json::to_string(&serde_json::from_value::<T>(value).unwrap()).unwrap()
}

/// A turn with options of its own, whose call was approved, changed by a hook and shows pages, one of which its answer
/// cites. Its message was queued.
fn insert_turn(tx: &WriteTx<'_>, extra: &ExtraTask) -> Result<(), StoreError> {
    let ExtraTask { row, task_id, turn_id, question } = extra;
    tx.insert_task(*row, task_id, AT)?;
    let request = IdempotencyKey { id: "once".into(), hash: "hash".into() };
    let turn = NewTurn { turn_id: *turn_id, message_id: *question, request: Some(request) };
    tx.insert_turn(*row, &turn, AT.unix_ms(), AT)?;
    execute(tx, "UPDATE turns SET queued_at = 999000 WHERE turn_id = ?1", params![turn_id.to_string()])?;
    let (call_id, request_id, denied) = (CallId::new(), HitlId::new(), HitlId::new());
    let (asking, answer, correction) = (MessageId::new(), MessageId::new(), MessageId::new());
    let page = json!({"n": 1, "url": "https://a.example/%C3%B6l", "title": "Öl \"1\""});
    let cited = json!({"n": 1, "url": "https://a.example/%C3%B6l", "title": "Öl", "ranges": [{"start": 0, "end": 3}]});
    let call = json!({"type": "tool_use", "call_id": call_id, "provider_id": "p", "name": "look", "input": {"a": 1}});
    let answered = |message_id: MessageId, blocks: Value| {
        let usage = json!({"input": 5, "output": 7, "cache_read": 1, "cache_write": 2, "reasoning": 3});
        let answer = json!({"blocks": blocks, "usage": usage, "stop": "done"});
        json!({"step": "answered", "message_id": message_id, "model": "m", "answer": answer, "cost_usd": 0.25})
    };
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    let overrides = json!({
        "model": "m", "effort": "high", "max_tokens": 900, "max_cost_usd": 1.5, "metadata": {"ticket": "7"},
        "response_format": {"type": "json_schema", "name": "place", "schema": {"type": "object"}, "strict": true},
    });
    let options = json!({"max_turns": 9, "super_thinking": true, "direct": true, "overrides": overrides});
    let steps = [
        json!({"step": "opened", "message_id": question, "message": "Which 油?", "options": options, "notes": ["Noted."]}),
        answered(asking, json!([call])),
        json!({"step": "hooked", "call_id": call_id, "input": {"a": 2}, "notes": ["Filed."]}),
        json!({"step": "asked", "request_id": request_id, "call_id": call_id, "kind": "permission", "question": "Look?",
               "reason": "permission"}),
        json!({"step": "input_changed", "request_id": request_id, "call_id": call_id, "input": {"a": 3},
               "answer": "yes"}),
        json!({"step": "intended", "call_id": call_id}),
        json!({"step": "numbered", "call_id": call_id, "pages": [page]}),
        json!({"step": "resulted", "call_id": call_id, "outcome": {"output": "[1] Öl", "duration_ms": 4},
               "memory": [{"key": "seen", "value": [1, 2.5, null]}], "source": "tool"}),
        answered(MessageId::new(), text("No JSON.")),
        json!({"step": "output_rejected", "message_id": correction, "errors": "it is no JSON"}),
        answered(answer, text("[1]")),
        json!({"step": "cited", "message_id": answer, "citations": [cited]}),
        json!({"step": "ended", "outcome": {"outcome": "completed", "stop_reason": "end_turn"}}),
    ];
    for (at, step) in (1..).zip(steps) {
        let step: Step = serde_json::from_value(step.clone()).unwrap_or_else(|e| panic!("{step}: {e}"));
        assert_ne!(step, Step::Unknown, "the tests know the steps");
        let at = Timestamp::from_unix_ms(AT.unix_ms() + at);
        tx.insert_step(*row, *turn_id, at, at.unix_ms(), &step)?;
    }
    execute(
        tx,
        "INSERT INTO approvals (request_id, task, turn, call_id, decision)
         SELECT id, task, turn, ?3, decision FROM turns, (SELECT ?1 AS id, 'allow_once' AS decision UNION SELECT ?2, 'deny')
         WHERE turn_id = ?4",
        params![request_id.to_string(), denied.to_string(), call_id.to_string(), turn_id.to_string()],
    )
}

/// Skills, and what was learned and said of turns.
fn insert_memory(tx: &WriteTx<'_>) -> Result<(), StoreError> {
    execute(
        tx,
        "INSERT INTO skills (name, skill, created_at, updated_at) VALUES ('tea', ?1, 1, 2)",
        params![r#"{"prompt":"Make tea.","scripts":{"a.sh":"echo"}}"#],
    )?;
    let batches = [BatchId::new(), BatchId::new()];
    execute(
        tx,
        "INSERT INTO batches (id, state, started_at, ended_at) VALUES (?1, '{\"a\":1}', 3, 4), (?2, '{}', 5, NULL)",
        params![batches[0].to_string(), batches[1].to_string()],
    )?;
    let evidence = json!({"batch_id": batches[0], "corrections": [], "verdicts": []}).to_string();
    execute(
        tx,
        "INSERT INTO lessons SELECT id, ?1, 1 FROM knowledge WHERE task IS NULL ORDER BY record LIMIT 2",
        params![evidence],
    )?;
    let rating = r#"{"type":"rating","rating":2}"#;
    let feedback_id = FeedbackId::new().to_string();
    execute(
        tx,
        "INSERT INTO feedback (id, said, created_at, batch) VALUES (?1, ?2, 6, 2)",
        params![feedback_id, rating],
    )?;
    // The feedback id is derived from the turn's id.
    execute(
        tx,
        "INSERT INTO feedback (id, task, turn, step, said, created_at, batch)
         SELECT replace(turn_id, 'turn_', 'fb-'), steps.task, turn, MAX(step), ?1, 7, 1
         FROM steps JOIN tasks USING (task) JOIN turns USING (turn) GROUP BY turn",
        params![rating],
    )?;
    execute(
        tx,
        "INSERT INTO recalled SELECT task, step, 'knowledge', 'mem' FROM steps JOIN tasks USING (task)",
        &[],
    )
}

/// What tasks have beside their turns.
fn insert_conversations(tx: &WriteTx<'_>, extra: &ExtraTask) -> Result<(), StoreError> {
    execute(tx, "INSERT INTO media VALUES (?1, ?2)", params![ABC_SHA256, b"abc"])?;
    execute(tx, "INSERT INTO media_uses SELECT task, ?1 FROM tasks", params![ABC_SHA256])?;
    execute(
        tx,
        "INSERT INTO working_memory SELECT task, 'colour', '{\"z\":1,\"a\":[\"green \\\"\\u00e9\"]}' FROM tasks",
        &[],
    )?;
    let events =
        "INSERT INTO events (task, ts, turn, kind, data) SELECT task, opened_at + 1000 * turn, turn, ?1, ?2
                  FROM turns JOIN tasks USING (task)";
    execute(tx, events, params!["thread_lifecycle", r#"{"phase":"started"}"#])?;
    let deltas = events.replace("* turn,", "* turn + 1,");
    execute(tx, &deltas, params!["text_delta", r#"{"text":"no"}"#])?;
    execute(
        tx,
        "INSERT INTO conversations (task, title, title_source, title_asked, metadata, pinned, archived, family)
         SELECT task, 'A title', 'model', 1, '{\"key\":\"value\"}', 1, 1, 'family' FROM tasks",
        &[],
    )?;
    // It is a fork of itself: any task of the document will do.
    execute(
        tx,
        "UPDATE conversations SET origin = ?1, forked_after = ?2, tainted = 1 WHERE task = ?1",
        params![row_number(extra.row), extra.question.to_string()],
    )?;
    execute(
        tx,
        "UPDATE tasks SET covered = 1, covered_at = 2 WHERE task = ?1",
        params![row_number(extra.row)],
    )
}

/// The user's servers, and what belongs to the engine.
fn insert_of_engine(tx: &WriteTx<'_>, extra: &ExtraTask) -> Result<(), StoreError> {
    let turn_id = extra.turn_id.to_string();
    let server = stored::<UserServerDefinition>(json!({
        "url": "https://mcp.example.com/", "description": "Заметки", "auth": "api_key", "api_key_header": "X-Key",
        "enabled": true,
    }));
    let pins = r#"[{"name":"look","description":"Sieht \"nach\". 見る","input_schema":{"type":"object"}}]"#;
    execute(
        tx,
        "INSERT INTO user_servers (name, definition, pins, created_at, updated_at)
         VALUES ('notes', ?1, ?2, 3, 4), (?3, ?1, '[]', 5, 5)",
        params![server, pins, format!("own-{}", &turn_id[turn_id.len() - 8..])],
    )?;
    execute(
        tx,
        "INSERT INTO grants (grant_id, tool, prefix, created_at) VALUES ('grant_1', 'shell', 'ls', 1)",
        &[],
    )?;
    execute(tx, "INSERT INTO settings VALUES ('gateway', 'secret-config')", &[])?;
    execute(tx, "INSERT INTO spending VALUES (1, 'm', 1, 1, 0, 0)", &[])
}

/// Schedules of every form and state, one with a run.
fn insert_schedules(tx: &WriteTx<'_>, extra: &ExtraTask) -> Result<(), StoreError> {
    let task_id = &extra.task_id;
    let options = json!({"direct": true, "metadata": {"by": "me"}});
    let cron = json!({"cron": "0 8 * * mon-fri", "time_zone": "Europe/Berlin"});
    for (id, when, task_id, state, last_due_at) in [
        ("news".to_owned(), cron.clone(), None, "active", None),
        (format!("own-{}", extra.turn_id), cron, Some(task_id), "active", Some(8)),
        (
            format!("once-{}", extra.turn_id),
            json!({"at": "1970-01-01T00:00:01Z"}),
            None,
            "finished",
            Some(1_000),
        ),
        (format!("often-{}", extra.turn_id), json!({"every_seconds": 60}), Some(task_id), "paused", None),
    ] {
        let definition = json!({"name": "Nachrichten \"früh\"", "when": when, "message": "Report.", "missed": "skip",
                                "task_id": task_id, "options": options});
        execute(
            tx,
            "INSERT INTO schedules (id, task_id, definition, state, created_at, updated_at, last_due_at, next_due_at)
             VALUES (?1, ?2, ?3, ?4, 11, 12, ?5, iif(?4 = 'active', 9000000, NULL))",
            params![
                id,
                task_id.map(TaskId::as_str),
                stored::<ScheduleDefinition>(definition),
                state,
                last_due_at
            ],
        )?;
    }
    let run = "INSERT INTO schedule_runs (schedule, due_at, at, outcome) SELECT schedule, 1000, 1001, 'run' FROM schedules
               WHERE id LIKE 'once-%'";
    execute(tx, run, &[])
}

/// Usage of each task, and of none.
fn insert_usage(tx: &WriteTx<'_>) -> Result<(), StoreError> {
    execute(
        tx,
        "INSERT INTO usage (quarter, task, model, agent, purpose, tool, calls, failed, input, output, cache_read,
                            cache_write, reasoning, cost, unpriced, time_ms)
         SELECT task % 3, task, 'm \"1\"', 'finder', 'extra', '', 9, 1, 100, 20, 5, 4, 3, 1500000, 2, 77 FROM tasks
         UNION ALL SELECT 1, task, 'm', '', 'turn', 'look', 3, 0, 0, 0, 0, 0, 0, 0, 0, 9 FROM tasks
         UNION ALL SELECT 2, 0, 'm', '', 'extra', '', 2, 0, 30, 40, 0, 0, 0, 0, 0, 5",
        &[],
    )
}

/// Messages that wait, and one that was taken out of the queue.
fn insert_queue(tx: &WriteTx<'_>, extra: &ExtraTask) -> Result<(), StoreError> {
    for (entry, interrupts) in [(1, false), (2, true), (3, false)] {
        let turn_id = TurnId::new();
        let body = format!(r#"{{"task_id":"{}","message":"Queued {entry}."}}"#, extra.task_id);
        let queued = NewQueuedTurn { entry, turn_id, body, request: None, interrupts };
        assert!(tx.insert_queued_turn(extra.row, &queued, AT)?);
    }
    let sql = "UPDATE queued_turns SET ended_at = 1, outcome = 'cancelled', body = NULL WHERE entry = 3";
    execute(tx, sql, &[])
}
