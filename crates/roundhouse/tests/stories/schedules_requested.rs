//! A schedule is run on request, beside its due times.

use mock_llm::Reply;
use reqwest::Method;
use serde_json::{Value, json};

use crate::schedules::{create, read, schedule, wait_completed};
use crate::support::http::{HttpResponse, send};
use crate::support::schema::SCHEDULE_RUN;
use crate::support::{Engine, EngineFixture, assert_fields, eventually};

/// A schedule that is not due as long as a test takes.
fn yearly() -> Value {
    json!({"cron": "0 0 1 1 *"})
}

async fn run(engine: &Engine, id: &str, request: &str) -> HttpResponse {
    let query = if request.is_empty() { String::new() } else { format!("?client_request_id={request}") };
    send(engine.request(Method::POST, &format!("/schedules/{id}/run{query}"))).await
}

#[tokio::test]
async fn a_run_on_request_leaves_the_due_times_as_they_are() {
    let fixture = EngineFixture::new((0..3).map(|_| Reply::from_text("Done."))).await;
    let engine = &fixture.engine;
    let created = create(engine, &schedule("yearly", &yearly(), json!({}))).await;
    let first = run(engine, "yearly", "").await;
    assert_eq!(first.status, 202, "{}", first.body);
    assert_fields(&first.body, SCHEDULE_RUN);
    assert_eq!((&first.body["outcome"], &first.body["turn_state"]), (&json!("requested"), &json!("queued")));
    // Named by its turn: any number of runs can be requested at one time.
    let turn = first.body["turn_id"].as_str().unwrap();
    assert_eq!(first.body["task_id"], format!("schedule-yearly-requested-{turn}"));
    let done = wait_completed(engine, "yearly").await;
    for field in ["state", "next_due_at", "last_due_at", "updated_at"] {
        assert_eq!(done[field], created[field], "{field}");
    }
    let run_of = |schedule: &Value| schedule["runs"][0].clone();
    for field in ["due_at", "at", "outcome", "task_id", "turn_id"] {
        assert_eq!(run_of(&done)[field], first.body[field], "{field}");
    }
    // A paused one too.
    let paused = engine.request(Method::PATCH, "/schedules/yearly").json(&json!({"paused": true}));
    assert_eq!(send(paused).await.status, 200);
    let second = run(engine, "yearly", "").await;
    assert_eq!(second.status, 202, "{}", second.body);
    assert_ne!(second.body["task_id"], first.body["task_id"], "each run has a task of its own");
    let done = wait_completed(engine, "yearly").await;
    assert_eq!((&done["state"], done["runs"].as_array().unwrap().len()), (&json!("paused"), 2));
    assert_eq!(fixture.provider.requests().len(), 2);

    run(engine, "none", "").await.assert_error(404, "SCHEDULE_NOT_FOUND");
    let long = "x".repeat(300);
    let refused = run(engine, "yearly", &long).await;
    assert!(refused.assert_error(400, "INVALID_REQUEST").contains("client_request_id"), "{}", refused.body);
}

#[tokio::test]
async fn a_repeated_request_begins_one_run_also_after_a_kill() {
    let fixture = EngineFixture::new((0..3).map(|_| Reply::from_text("Done."))).await;
    create(&fixture.engine, &schedule("yearly", &yearly(), json!({"task_id": "task"}))).await;
    let (one, two) = tokio::join!(run(&fixture.engine, "yearly", "a"), run(&fixture.engine, "yearly", "a"));
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert_eq!((statuses, &one.body["turn_id"]), ([200, 202], &two.body["turn_id"]));
    let fixture = fixture.kill_and_start().await;
    let again = run(&fixture.engine, "yearly", "a").await;
    assert_eq!((again.status, &again.body["turn_id"]), (200, &one.body["turn_id"]));
    wait_completed(&fixture.engine, "yearly").await;
    let turns = fixture.engine.get("/tasks/task/turns").await.assert_ok("turns:array");
    assert_eq!(turns["turns"].as_array().unwrap().len(), 1, "{turns}");
    let other = run(&fixture.engine, "yearly", "b").await;
    assert_eq!(other.status, 202, "{}", other.body);
    assert_eq!(read(&fixture.engine, "yearly").await["runs"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn many_runs_requested_at_once_all_run_in_their_task() {
    const RUNS: usize = 16;
    let fixture = EngineFixture::new((0..RUNS).map(|_| Reply::from_text("Done."))).await;
    create(&fixture.engine, &schedule("yearly", &yearly(), json!({"task_id": "task"}))).await;
    let requested = (0..RUNS).map(|_| run(&fixture.engine, "yearly", ""));
    for answer in futures::future::join_all(requested).await {
        assert_eq!(answer.status, 202, "{}", answer.body);
    }
    eventually("all runs complete", async || {
        let runs = read(&fixture.engine, "yearly").await["runs"].clone();
        runs.as_array()?.iter().all(|run| run["turn_state"] == "completed").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_run_whose_request_id_is_taken_does_not_hold_up_the_queue() {
    let fixture = EngineFixture::new((0..2).map(|_| Reply::from_text("Done."))).await;
    let engine = &fixture.engine;
    let when = json!({"at": crate::schedules::in_seconds(3)});
    let created = create(engine, &schedule("once", &when, json!({"task_id": "task"}))).await;
    let time = |field: &str| created[field].as_str().unwrap().parse::<api::Timestamp>().unwrap();
    let id = format!("schedule-once-{}-{}", time("created_at").unix_ms(), time("next_due_at"));
    let mut message = crate::support::engine_calls::direct_message("task", "First.");
    message["client_request_id"] = json!(id);
    engine.execute_with(&message).await.collect().await;
    eventually("the run is given up", async || {
        (read(engine, "once").await["runs"][0]["turn_state"] == "failed").then_some(())
    })
    .await;
    assert_eq!(engine.queued("task").await, [""; 0]);
    engine.run_turn("task", "Last.").await;
    assert_eq!(fixture.provider.requests().len(), 2);
}

#[tokio::test]
async fn the_record_of_runs_does_not_name_a_deleted_task() {
    let fixture = EngineFixture::new([Reply::from_text("Done.")]).await;
    create(&fixture.engine, &schedule("yearly", &yearly(), json!({}))).await;
    let task = run(&fixture.engine, "yearly", "").await.body["task_id"].as_str().unwrap().to_owned();
    wait_completed(&fixture.engine, "yearly").await;
    assert_eq!(fixture.engine.delete(&format!("/tasks/{task}")).await.status, 200);
    let run = read(&fixture.engine, "yearly").await["runs"][0].clone();
    assert_eq!((run.get("task_id"), run.get("turn_id"), &run["outcome"]), (None, None, &json!("requested")));
}

#[tokio::test]
async fn two_requests_for_one_schedule_at_the_same_time_set_it_once() {
    let fixture = EngineFixture::new([]).await;
    for when in [yearly(), json!({"every_seconds": 86_400})] {
        let id = when.as_object().unwrap().keys().next().unwrap().clone();
        let body = schedule(&id, &when, json!({}));
        let answers =
            futures::future::join_all((0..8).map(|_| fixture.engine.post("/schedules", &body))).await;
        let mut statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 201], "{id}");
        assert!(answers.iter().all(|answer| answer.body["created_at"] == answers[0].body["created_at"]));
    }
}

#[tokio::test]
async fn no_import_brings_more_than_an_engine_may_have() {
    let fixture = EngineFixture::new([]).await;
    create(&fixture.engine, &schedule("mine", &yearly(), json!({}))).await;
    let export = fixture.engine.get("/memory/export").await.body;
    let import = async |schedules: Vec<Value>, mode: &str| {
        let mut document = export.clone();
        document["schedules"] = json!(schedules);
        send(
            fixture
                .engine
                .request(Method::POST, &format!("/memory/import?mode={mode}"))
                .body(document.to_string()),
        )
        .await
    };
    let numbered = |number: usize| {
        let mut schedule = export["schedules"][0].clone();
        schedule["id"] = json!(format!("s{number}"));
        schedule
    };
    let ids = async || {
        let listed = fixture.engine.get("/schedules").await.assert_ok("schedules:array limit:int");
        let ids = listed["schedules"].as_array().unwrap().iter().map(|schedule| schedule["id"].clone());
        ids.collect::<Vec<_>>()
    };
    // What an engine has too many of is left out.
    assert_eq!(import((0..102).map(numbered).collect(), "replace").await.status, 200);
    let kept = ids().await;
    assert_eq!((kept.len(), &kept[99]), (100, &json!("s99")));
    assert_eq!(import(export["schedules"].as_array().unwrap().clone(), "replace").await.status, 200);
    let mut large = numbered(0);
    large["definition"]["options"] = json!({"direct": true, "instructions": "x".repeat(130 * 1024)});
    let refused = import(vec![large], "replace").await;
    assert!(refused.assert_error(400, "INVALID_REQUEST").contains("definition"), "{}", refused.body);
    assert_eq!(import((0..100).map(numbered).collect(), "merge").await.status, 200);
    let ids = ids().await;
    assert_eq!(
        (ids.len(), &ids[0], &ids[99]),
        (100, &json!("mine"), &json!("s98")),
        "the last one has no place"
    );
    eventually("all are planned", async || {
        let listed = fixture.engine.get("/schedules").await.body;
        let schedules = listed["schedules"].as_array()?.clone();
        schedules.iter().all(|schedule| schedule["next_due_at"].is_string()).then_some(())
    })
    .await;
}
