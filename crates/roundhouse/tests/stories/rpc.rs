//! Story 4: the orchestrator's control interface of an engine: replacing its key, quiescing it, and its activity.

use api::{EngineKey, Timestamp};
use mock_llm::{Gate, Reply};
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{ask_user_reply, wait_gate_reached, write_file_reply};
use crate::support::http::send_raw;
use crate::support::turn::assert_completed;
use crate::support::{Engine, EngineFixture, StandaloneEngine, eventually};

/// The engine with another key for requests.
fn with_key(engine: &Engine, key: &EngineKey) -> Engine {
    let mut engine = engine.clone();
    key.expose().clone_into(&mut engine.key);
    engine
}

/// Waits until no turn is running; returns the activity.
async fn wait_until_idle(engine: &Engine) -> Value {
    eventually("no turn is running", async || {
        let activity = engine.activity().await;
        (activity["running_turns"] == 0).then_some(activity)
    })
    .await
}

fn last_activity_time(activity: &Value) -> Timestamp {
    activity["last_activity_at"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_new_key_opens_the_engine_at_once_and_the_old_one_opens_nothing() {
    let fixture = EngineFixture::new([]).await;
    let key = EngineKey::generate().unwrap();
    let (old, new) = (fixture.engine.clone(), with_key(&fixture.engine, &key));
    new.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
    new.control("set_key_hash", json!({"key_hash": key.hash().to_hex()}))
        .await
        .assert_flat_error(401, "INVALID_ENGINE_KEY");
    let replaced = old.control("set_key_hash", json!({"key_hash": key.hash().to_hex()})).await;
    assert_eq!(replaced.assert_ok("result:object")["result"], json!({}));
    for path in ["/tasks", "/hitl/pending", "/openapi.json"] {
        old.get(path).await.assert_error(401, "INVALID_ENGINE_KEY");
        assert_eq!(new.get(path).await.status, 200);
    }
    old.post_execute(&direct_message("task", "Hello!")).await.assert_error(401, "INVALID_ENGINE_KEY");
    new.run_turn("task", "Hello!").await;
    // At every start the hash in the environment applies.
    let fixture = fixture.stop_and_start().await;
    new.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
    fixture.engine.run_turn("task", "Hello again!").await;
}

#[tokio::test]
async fn a_turn_that_is_watched_goes_on_when_the_key_changes() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("This takes a while.").hold(1, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Hello!")).await;
    wait_gate_reached(&gate).await;
    let key = EngineKey::generate().unwrap();
    fixture
        .engine
        .control("set_key_hash", json!({"key_hash": key.hash().to_hex()}))
        .await
        .assert_ok("result:object");
    gate.release();
    let events = stream.collect().await;
    assert_eq!(assert_completed(&events), "This takes a while.");
    assert_eq!(with_key(&fixture.engine, &key).replay("task", 0).await.collect().await, events);
}

#[tokio::test]
async fn what_is_no_hash_changes_no_key() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let hash = EngineKey::generate().unwrap().hash().to_hex();
    for wrong in [json!(hash.to_uppercase()), json!(hash[1..]), json!(7), json!(null), json!({})] {
        let answer = engine.control("set_key_hash", json!({"key_hash": wrong})).await;
        assert!(answer.assert_flat_error(400, "INVALID_REQUEST").contains("key_hash"));
    }
    engine.control("set_key_hash", json!({})).await.assert_flat_error(400, "INVALID_REQUEST");
    engine.get("/tasks").await.assert_ok("tasks:array total:int");
}

#[tokio::test]
async fn an_engine_with_a_running_turn_is_not_quiesced() {
    let gate = Gate::new();
    let fixture = EngineFixture::new([Reply::from_text("This takes a while.").hold(1, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Hello!")).await;
    wait_gate_reached(&gate).await;
    assert_eq!(fixture.engine.activity().await["running_turns"], 1);
    assert!(!fixture.engine.quiesce().await);
    // The refused quiesce changed nothing.
    fixture.engine.run_turn("other", "Hello!").await;
    gate.release();
    assert_completed(&stream.collect().await);
    assert!(fixture.engine.quiesce().await);
}

#[tokio::test]
async fn a_quiesced_engine_begins_no_turn_until_that_is_lifted() {
    let fixture = EngineFixture::new([]).await;
    let events = fixture.engine.run_turn("task", "Hello!").await;
    assert!(fixture.engine.quiesce().await);
    assert!(fixture.engine.quiesce().await);
    let message_id = &events[0].data["message_id"];
    for body in [
        direct_message("task", "More."),
        direct_message("new", "Hello!"),
        json!({"task_id": "task", "message": "Better.", "edit_message_id": message_id}),
        json!({"task_id": "task", "message": "", "retry_message_id": message_id}),
    ] {
        let answer = fixture.engine.post_execute(&body).await;
        answer.assert_error(503, "QUIESCED");
        assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    }
    assert_eq!(fixture.model_calls(), 1);
    // Stored events can still be read, and the engine is healthy.
    assert_eq!(fixture.engine.replay("task", 0).await.collect().await, events);
    assert_eq!(fixture.engine.health().await["status"], "ok");
    fixture.engine.lift_quiesce().await;
    fixture.engine.run_turn("task", "More.").await;
    // A restart ends the quiesce.
    assert!(fixture.engine.quiesce().await);
    let fixture = fixture.stop_and_start().await;
    fixture.engine.run_turn("task", "And more.").await;
}

#[tokio::test]
async fn a_turn_that_waits_for_a_person_may_be_put_to_sleep_and_goes_on_later() {
    let fixture = EngineFixture::new([write_file_reply("notes.txt"), Reply::from_text("Done.")]).await;
    let (stream, request) = fixture.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    assert_eq!(wait_until_idle(&fixture.engine).await["pending_hitl"], 1);
    assert!(fixture.engine.quiesce().await);
    let answer = fixture.engine.respond("task", "yes").await;
    answer.assert_error(503, "QUIESCED");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(fixture.engine.task_status("task").await, "paused");
    assert!(!fixture.setup.workspace().join("notes.txt").exists());

    drop(stream);
    let fixture = fixture.stop_and_start().await;
    assert_eq!(wait_until_idle(&fixture.engine).await["pending_hitl"], 1);
    let missed = fixture.engine.replay("task", request.ts()).await;
    fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    assert_eq!(missed.collect().await.last().unwrap().data["text"], "Done.");
    assert!(fixture.setup.workspace().join("notes.txt").exists());
    assert_eq!(fixture.engine.activity().await["pending_hitl"], 0);
}

#[tokio::test]
async fn a_turn_that_a_start_takes_up_counts_as_running() {
    let (first, second) = (Gate::new(), Gate::new());
    let slow = |gate: &Gate| Reply::from_text("This takes a while.").hold(1, gate);
    let fixture = EngineFixture::new([slow(&first), slow(&second)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Hello!")).await;
    wait_gate_reached(&first).await;
    let fixture = fixture.kill_and_start().await;
    drop(stream);
    assert_eq!(fixture.engine.activity().await["running_turns"], 1);
    assert!(!fixture.engine.quiesce().await);
    wait_gate_reached(&second).await;
    assert!(!fixture.engine.quiesce().await);
    second.release();
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(events.last().unwrap().data["text"], "This takes a while.");
    assert!(fixture.engine.quiesce().await);
}

#[tokio::test]
async fn activity_tells_what_the_engine_is_at_and_when_it_last_did_something() {
    let fixture =
        EngineFixture::new([ask_user_reply("One?"), ask_user_reply("Two?"), Reply::from_text("I see.")])
            .await;
    let mut activity = fixture.engine.activity().await;
    // The confinement depends on the machine.
    let confinement = activity["confinement"].take();
    assert!(confinement.as_str().is_some_and(|level| !level.is_empty()), "{confinement}");
    let idle = json!({"running_turns": 0, "pending_hitl": 0, "last_activity_at": null, "confinement": null});
    assert_eq!(activity, idle);
    for task in ["one", "two"] {
        fixture.engine.run_until_hitl_request(&direct_message(task, "Ask.")).await;
    }
    let paused = wait_until_idle(&fixture.engine).await;
    assert_eq!(paused["pending_hitl"], 2);
    // Reading is not activity.
    fixture.engine.get("/tasks").await.assert_ok("tasks:array total:int");
    fixture.engine.replay("one", i64::MAX).await;
    assert_eq!(fixture.engine.activity().await, paused);

    fixture.engine.respond("one", "Yes.").await.assert_ok("status:text request_id:hitl");
    let answered = wait_until_idle(&fixture.engine).await;
    assert!(last_activity_time(&answered) > last_activity_time(&paused), "{answered} {paused}");
    assert_eq!(answered["pending_hitl"], 1);
    let fixture = fixture.stop_and_start().await;
    let after_restart = wait_until_idle(&fixture.engine).await;
    assert!(
        last_activity_time(&after_restart) > last_activity_time(&paused)
            && last_activity_time(&after_restart) <= last_activity_time(&answered),
        "{after_restart} {answered}"
    );
}

#[tokio::test]
async fn a_call_has_one_form_and_its_refusals_are_flat() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let listed = engine.post("/rpc", &json!({"method": "rpc.methods", "params": {}})).await;
    let result = &listed.assert_ok("result:object")["result"];
    assert_eq!(result["methods"][0]["method"], "rpc.methods");
    for body in [
        json!({}),
        json!({"method": "rpc.methods", "params": {}, "subsystem": "telemetry", "op": "activity"}),
        json!({"method": "rpc.methods"}),
        json!({"subsystem": "telemetry"}),
        json!({"subsystem": "control", "op": "quiesce", "lift": "yes"}),
    ] {
        engine.post("/rpc", &body).await.assert_flat_error(400, "INVALID_REQUEST");
    }
    for body in [
        json!({"method": "memory.forget_everything", "params": {}}),
        json!({"subsystem": "control", "op": "activity"}),
        json!({"subsystem": "telemetry", "op": "quiesce"}),
        json!({"subsystem": "engine", "op": "activity"}),
    ] {
        engine.post("/rpc", &body).await.assert_flat_error(404, "METHOD_NOT_FOUND");
    }
    for body in ["{", "[]", "nonsense"] {
        // The key is checked first.
        send_raw(&engine.url, "POST /rpc", &[], body.as_bytes())
            .await
            .assert_flat_error(401, "INVALID_ENGINE_KEY");
        let key = [("x-engine-key", engine.key.as_str())];
        let answer = send_raw(&engine.url, "POST /rpc", &key, body.as_bytes()).await;
        answer.assert_flat_error(400, "INVALID_REQUEST");
    }
    // None of these quiesced it.
    engine.run_turn("task", "Hello!").await;
}
