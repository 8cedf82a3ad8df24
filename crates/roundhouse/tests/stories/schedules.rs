//! Schedules begin turns at their due times; they are listed, changed, paused, deleted and moved with the memory.

use std::fs;
use std::path::Path;
use std::time::Duration;

use api::Timestamp;
use http_service::clock::{Clock as _, SystemClock};
use mock_llm::{Gate, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::http::{HttpResponse, send};
use crate::support::schema::{SCHEDULE, SCHEDULE_RUN};
use crate::support::{Engine, EngineFixture, assert_fields, eventually};

/// The time `seconds` from now.
pub(crate) fn in_seconds(seconds: i64) -> Timestamp {
    let now = SystemClock::new().now().unix_ms();
    Timestamp::from_unix_ms((now / 1_000 + seconds) * 1_000)
}

/// A schedule with this `when`.
pub(crate) fn schedule(id: &str, when: &Value, fields: Value) -> Value {
    let schedule =
        json!({"id": id, "name": "Report", "when": when, "message": "Report.", "options": {"direct": true}});
    with_fields(schedule, fields)
}

/// Creates a schedule.
pub(crate) async fn create(engine: &Engine, body: &Value) -> Value {
    let created = engine.post("/schedules", body).await;
    assert_eq!(created.status, 201, "{}", created.body);
    assert_fields(&created.body, SCHEDULE);
    created.body
}

/// A schedule with its runs.
pub(crate) async fn read(engine: &Engine, id: &str) -> Value {
    let schedule = engine.get(&format!("/schedules/{id}")).await;
    assert_eq!(schedule.status, 200, "{}", schedule.body);
    assert_fields(&schedule.body, SCHEDULE);
    for run in schedule.body["runs"].as_array().unwrap() {
        assert_fields(run, SCHEDULE_RUN);
    }
    schedule.body
}

/// Waits until a schedule's newest run has completed its turn. Returns the schedule.
pub(crate) async fn wait_completed(engine: &Engine, id: &str) -> Value {
    eventually("the run completes", async || {
        let schedule = read(engine, id).await;
        (schedule["runs"][0]["turn_state"] == "completed").then_some(schedule)
    })
    .await
}

async fn patch(engine: &Engine, id: &str, body: Value) -> HttpResponse {
    send(engine.request(Method::PATCH, &format!("/schedules/{id}")).json(&body)).await
}

#[tokio::test]
async fn a_schedule_runs_once_at_its_time_in_a_task_of_its_own() {
    let fixture = EngineFixture::new([Reply::from_text("Done.")]).await;
    let at = in_seconds(2);
    let body =
        schedule("once", &json!({"at": at}), json!({"options": {"direct": true, "metadata": {"by": "me"}}}));
    let created = create(&fixture.engine, &body).await;
    assert_eq!((&created["state"], &created["next_due_at"]), (&json!("active"), &json!(at)));
    assert!(!fixture.engine.quiesce().await, "it is due soon");
    let done = wait_completed(&fixture.engine, "once").await;
    assert_eq!((&done["state"], &done["next_due_at"]), (&json!("finished"), &Value::Null));
    let [run] = done["runs"].as_array().unwrap().as_slice() else { panic!("one run: {done}") };
    assert_eq!((&run["outcome"], &run["due_at"]), (&json!("run"), &json!(at)));
    assert!(run["at"].as_str() >= run["due_at"].as_str(), "{run}");
    let task = run["task_id"].as_str().unwrap();
    let turn = fixture.engine.turn(task, &run["turn_id"]).await;
    assert_eq!((&turn["state"], &turn["text"]), (&json!("completed"), &json!("Done.")));
    assert_eq!(fixture.engine.messages(task).await[0]["content"], "Report.");
    assert!(fixture.engine.quiesce().await, "nothing is due any more");
}

#[tokio::test]
async fn a_schedule_of_a_busy_task_waits_in_its_queue_and_does_not_pile_up() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("First.").hold(1, &gate)]).await;
    fixture.engine.execute_in_background(direct_message("task", "Begin.")).await;
    wait_gate_reached(&gate).await;
    // Due now, and once more as soon as its next due time is set back.
    let when = json!({"every_seconds": 60, "start": in_seconds(1)});
    create(&fixture.engine, &schedule("often", &when, json!({"task_id": "task"}))).await;
    eventually("the message waits", async || {
        (fixture.engine.queued("task").await == ["Report."]).then_some(())
    })
    .await;
    assert_eq!(read(&fixture.engine, "often").await["runs"][0]["turn_state"], "queued");
    let EngineFixture { provider, setup, program, .. } = fixture;
    program.signal_and_wait(rustix::process::Signal::KILL).await;
    set_back(&setup.brain(), "often", Duration::from_mins(1));
    let held = Gate::new();
    provider.enqueue(Reply::from_text("First.").hold(1, &held));
    let (_program, engine) = setup.start().await;
    wait_gate_reached(&held).await;
    let schedule = eventually("it is decided", async || {
        let schedule = read(&engine, "often").await;
        (schedule["runs"].as_array().unwrap().len() == 2).then_some(schedule)
    })
    .await;
    assert_eq!(schedule["runs"][0]["outcome"], "previous_waiting");
    assert_eq!(engine.queued("task").await, ["Report."]);
    provider.enqueue(Reply::from_text("Second."));
    held.release();
    eventually("the run completes", async || {
        (read(&engine, "often").await["runs"][1]["turn_state"] == "completed").then_some(())
    })
    .await;
}

/// Lets a schedule of a stopped engine be due earlier by `time`, as if the engine had been down for so long.
fn set_back(brain: &Path, id: &str, time: Duration) {
    let connection = rusqlite::Connection::open(brain).unwrap();
    let changed = connection.execute(
        "UPDATE schedules SET next_due_at = next_due_at - ?2, last_due_at = last_due_at - ?2, definition = json_replace(
             definition, '$.when.start',
             strftime('%Y-%m-%dT%H:%M:%SZ', unixepoch(definition ->> '$.when.start') - ?2 / 1000, 'unixepoch')
         ) WHERE id = ?1",
        (id, i64::try_from(time.as_millis()).unwrap()),
    );
    assert_eq!(changed.unwrap(), 1);
    let runs = "UPDATE schedule_runs SET due_at = due_at - ?1";
    connection.execute(runs, [i64::try_from(time.as_millis()).unwrap()]).unwrap();
}

#[tokio::test]
async fn what_was_missed_is_made_up_for_once_or_left_out() {
    let fixture = EngineFixture::new([Reply::from_text("Late.")]).await;
    let when = json!({"every_seconds": 3_600, "start": in_seconds(3_000)});
    create(&fixture.engine, &schedule("made-up", &when, json!({}))).await;
    create(&fixture.engine, &schedule("left-out", &when, json!({"missed": "skip"}))).await;
    let EngineFixture { provider, setup, program, .. } = fixture;
    program.signal_and_wait(rustix::process::Signal::TERM).await.assert_success();
    for id in ["made-up", "left-out"] {
        set_back(&setup.brain(), id, Duration::from_hours(4));
    }
    let (_program, engine) = setup.start().await;
    let made_up = wait_completed(&engine, "made-up").await;
    let outcomes: Vec<&Value> =
        made_up["runs"].as_array().unwrap().iter().map(|run| &run["outcome"]).collect();
    assert_eq!(outcomes, ["run", "missed"]);
    assert_eq!(made_up["runs"][1]["count"], 3);
    assert!(made_up["runs"][1]["last_due_at"].as_str() < made_up["runs"][0]["due_at"].as_str());
    let left_out = eventually("it is decided", async || {
        let schedule = read(&engine, "left-out").await;
        schedule["runs"][0]["outcome"].is_string().then_some(schedule)
    })
    .await;
    let [missed] = left_out["runs"].as_array().unwrap().as_slice() else { panic!("{left_out}") };
    assert_eq!((&missed["outcome"], &missed["count"]), (&json!("missed"), &json!(4)));
    assert!(missed.get("turn_id").is_none());
    for schedule in [made_up, left_out] {
        let next: Timestamp = schedule["next_due_at"].as_str().unwrap().parse().unwrap();
        assert!(next > in_seconds(0) && schedule["state"] == "active", "{schedule}");
    }
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test]
async fn a_paused_schedule_does_not_run_and_misses_nothing() {
    let fixture = EngineFixture::new([Reply::from_text("Done.")]).await;
    let engine = &fixture.engine;
    let body = schedule("paused", &json!({"at": in_seconds(1)}), json!({"paused": true}));
    let paused = create(engine, &body).await;
    assert_eq!((&paused["state"], &paused["next_due_at"]), (&json!("paused"), &Value::Null));
    assert!(engine.quiesce().await, "a paused one keeps no engine awake");
    engine.lift_quiesce().await;
    // Another one that is due later shows that the time of the first has passed.
    create(engine, &schedule("later", &json!({"at": in_seconds(2)}), json!({}))).await;
    wait_completed(engine, "later").await;
    assert_eq!(read(engine, "paused").await["runs"], json!([]));
    let resumed = patch(engine, "paused", json!({"paused": false})).await;
    assert_eq!((resumed.status, &resumed.body["state"]), (200, &json!("finished")));
    let again =
        patch(engine, "paused", json!({"when": {"cron": "0 9 * * mon-fri", "time_zone": "Europe/Berlin"}}));
    let again = again.await;
    assert_eq!((again.status, &again.body["state"]), (200, &json!("active")), "{}", again.body);
    assert_eq!(read(engine, "paused").await["runs"], json!([]));
    let renamed = patch(engine, "paused", json!({"name": "Other", "task_id": "task", "options": null})).await;
    assert_eq!((&renamed.body["name"], &renamed.body["task_id"]), (&json!("Other"), &json!("task")));
    assert_eq!(renamed.body["next_due_at"], again.body["next_due_at"]);
    let own_task = patch(engine, "paused", json!({"task_id": null})).await;
    assert!(own_task.body.get("task_id").is_none(), "{}", own_task.body);
}

#[tokio::test]
async fn what_is_no_schedule_is_refused() {
    let fixture = EngineFixture::new([]).await;
    let engine = &fixture.engine;
    for (when, field) in [
        (json!({}), "when"),
        (json!({"cron": "* * * * *", "at": in_seconds(60)}), "when"),
        (json!({"cron": "61 * * * *"}), "when.cron"),
        (json!({"cron": "0 0 30 2 *"}), "when.cron"),
        (json!({"cron": "* * * * *", "time_zone": "Europe/Atlantis"}), "when.time_zone"),
        (json!({"at": in_seconds(60), "time_zone": "UTC"}), "when.time_zone"),
        (json!({"at": in_seconds(60), "start": in_seconds(60)}), "when.start"),
        (json!({"at": in_seconds(-60)}), "when"),
        (json!({"every_seconds": 59}), "every_seconds"),
        (json!({"every_seconds": 1e300}), "every_seconds"),
        (json!({"at": "tomorrow"}), "at"),
    ] {
        let refused = engine.post("/schedules", &schedule("bad", &when, json!({}))).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains(field), "{when}: {}", refused.body);
    }
    let when = json!({"cron": "0 9 * * *"});
    for (fields, code) in [
        (json!({"id": "a b"}), "INVALID_REQUEST"),
        (json!({"name": ""}), "INVALID_REQUEST"),
        (json!({"message": " "}), "INVALID_REQUEST"),
        (json!({"message": "x".repeat(32 * 1024 + 1)}), "INVALID_REQUEST"),
        (json!({"missed": "always"}), "INVALID_REQUEST"),
        (json!({"options": {"max_turns": 0}}), "INVALID_REQUEST"),
        (json!({"options": {"model": "unknown"}}), "MODEL_NOT_PERMITTED"),
        (json!({"options": {"allowed_tools": ["no_such_tool"]}}), "INVALID_REQUEST"),
    ] {
        let refused = engine.post("/schedules", &schedule("bad", &when, fields)).await;
        refused.assert_error(400, code);
    }
    for path in ["/schedules/none", "/schedules/a%20b"] {
        engine.get(path).await.assert_error(404, "SCHEDULE_NOT_FOUND");
        engine.delete(path).await.assert_error(404, "SCHEDULE_NOT_FOUND");
    }
    patch(engine, "none", json!({})).await.assert_error(404, "SCHEDULE_NOT_FOUND");

    let created = create(engine, &schedule("daily", &when, json!({}))).await;
    let same = engine.post("/schedules", &schedule("daily", &when, json!({}))).await;
    assert_eq!((same.status, &same.body["created_at"]), (200, &created["created_at"]));
    let other = engine.post("/schedules", &schedule("daily", &when, json!({"name": "Other"}))).await;
    other.assert_error(409, "SCHEDULE_EXISTS");
    let past = patch(engine, "daily", json!({"when": {"at": in_seconds(-60)}})).await;
    past.assert_error(400, "INVALID_REQUEST");
    for number in 1..100 {
        let body = schedule(&format!("s{number}"), &when, json!({}));
        assert_eq!(engine.post("/schedules", &body).await.status, 201);
    }
    let refused = engine.post("/schedules", &schedule("one-more", &when, json!({}))).await;
    assert!(refused.assert_error(429, "SCHEDULE_LIMIT").contains("100"), "{}", refused.body);
    let listed = engine.get("/schedules").await.assert_ok("schedules:array limit:int");
    assert_eq!(listed["schedules"].as_array().unwrap().len(), 100);
    listed["schedules"].as_array().unwrap().iter().for_each(|schedule| assert_fields(schedule, SCHEDULE));
}

/// Whether a file of the engine contains `text`.
pub(crate) fn is_in_a_file(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            return is_in_a_file(&path, text);
        }
        // The file may be gone by now.
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).contains(text)
    })
}

#[tokio::test]
async fn deleted_and_replaced_words_of_a_schedule_are_erased() {
    let fixture = EngineFixture::new([]).await;
    let engine = &fixture.engine;
    let folder = fixture.setup.test_env.path();
    let when = json!({"cron": "0 9 * * *"});
    create(engine, &schedule("a", &when, json!({"message": "About ambergate7q41x."}))).await;
    assert!(is_in_a_file(folder, "ambergate7q41x"));
    let changed = patch(engine, "a", json!({"message": "About birchlane8w52y."})).await;
    assert_eq!(changed.status, 200);
    assert!(!is_in_a_file(folder, "ambergate7q41x"));
    assert!(is_in_a_file(folder, "birchlane8w52y"));
    engine.delete("/schedules/a").await.assert_ok("status:text");
    assert!(!is_in_a_file(folder, "birchlane8w52y"));
    engine.get("/schedules/a").await.assert_error(404, "SCHEDULE_NOT_FOUND");

    // A task takes its schedules with it.
    fixture.provider.enqueue(Reply::from_text("Hello."));
    engine.run_turn("task", "Hello.").await;
    create(engine, &schedule("b", &when, json!({"task_id": "task", "message": "About cedarhill9e63z."})))
        .await;
    engine.delete("/tasks/task").await.assert_ok("status:text");
    engine.get("/schedules/b").await.assert_error(404, "SCHEDULE_NOT_FOUND");
    assert!(!is_in_a_file(folder, "cedarhill9e63z"));
}

#[tokio::test]
async fn schedules_move_with_the_memory_and_make_up_for_nothing() {
    let fixture = EngineFixture::new([Reply::from_text("Done.")]).await;
    create(&fixture.engine, &schedule("once", &json!({"at": in_seconds(1)}), json!({}))).await;
    let when = json!({"cron": "30 8 * * *", "time_zone": "America/New_York"});
    create(&fixture.engine, &schedule("daily", &when, json!({"task_id": "news"}))).await;
    create(&fixture.engine, &schedule("paused", &json!({"every_seconds": 60}), json!({"paused": true})))
        .await;
    wait_completed(&fixture.engine, "once").await;
    let export = fixture.engine.get("/memory/export").await;
    assert_eq!(export.status, 200);

    let other = EngineFixture::new([]).await;
    create(&other.engine, &schedule("mine", &json!({"cron": "0 9 * * *"}), json!({}))).await;
    for (mode, count) in [("merge", 4), ("merge", 4), ("replace", 3)] {
        let request = other.engine.request(Method::POST, &format!("/memory/import?mode={mode}"));
        assert_eq!(send(request.body(export.body.to_string())).await.status, 200);
        let listed = other.engine.get("/schedules").await.assert_ok("schedules:array limit:int");
        assert_eq!(listed["schedules"].as_array().unwrap().len(), count, "{mode}: {listed}");
    }
    let daily = eventually("it is planned", async || {
        let daily = read(&other.engine, "daily").await;
        daily["next_due_at"].is_string().then_some(daily)
    })
    .await;
    let original = read(&fixture.engine, "daily").await;
    for field in ["name", "when", "message", "task_id", "missed", "options", "next_due_at", "created_at"] {
        assert_eq!(daily[field], original[field], "{field}");
    }
    assert_eq!(read(&other.engine, "paused").await["state"], "paused");
    let once = read(&other.engine, "once").await;
    assert_eq!((&once["state"], &once["runs"]), (&json!("finished"), &json!([])));
    assert_eq!(other.provider.requests().len(), 0);
}
