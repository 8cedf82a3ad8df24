//! Story 4: what an orchestrator asks of an engine: another key, to hold still, and what it is at.

use api::{EngineKey, Timestamp};
use mock_llm::{Gate, Reply};
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{ask_user_reply, wait_gate_reached, write_file_reply};
use crate::support::http::send_raw;
use crate::support::turn::assert_completed;
use crate::support::{Engine, EngineFixture, StandaloneEngine, eventually};

/// The engine, as a holder of `key` reaches it.
fn with_key(engine: &Engine, key: &EngineKey) -> Engine {
    let mut engine = engine.clone();
    key.expose().clone_into(&mut engine.key);
    engine
}

/// Waits until no turn is at work.
async fn wait_until_idle(engine: &Engine) -> Value {
    eventually("no turn is at work", async || {
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
    let rig = EngineFixture::new([]).await;
    let key = EngineKey::generate().unwrap();
    let (old, new) = (rig.engine.clone(), with_key(&rig.engine, &key));
    new.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
    new.control("set_key_hash", json!({"key_hash": key.hash().to_hex()}))
        .await
        .assert_flat_error(401, "INVALID_ENGINE_KEY");
    let swapped = old.control("set_key_hash", json!({"key_hash": key.hash().to_hex()})).await;
    assert_eq!(swapped.assert_ok("result:object")["result"], json!({}));
    for path in ["/tasks", "/hitl/pending", "/openapi.json"] {
        old.get(path).await.assert_error(401, "INVALID_ENGINE_KEY");
        assert_eq!(new.get(path).await.status, 200);
    }
    old.post_execute(&direct_message("task", "Hello!")).await.assert_error(401, "INVALID_ENGINE_KEY");
    new.run_turn("task", "Hello!").await;
    // It is the hash in the environment that counts at every start.
    let rig = rig.stop_and_start().await;
    new.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
    rig.engine.run_turn("task", "Hello again!").await;
}

#[tokio::test]
async fn a_turn_that_is_watched_goes_on_when_the_key_changes() {
    let gate = Gate::new();
    let rig = EngineFixture::new([Reply::from_text("This takes a while.").hold(1, &gate)]).await;
    let stream = rig.engine.execute_with(&direct_message("task", "Hello!")).await;
    wait_gate_reached(&gate).await;
    let key = EngineKey::generate().unwrap();
    rig.engine
        .control("set_key_hash", json!({"key_hash": key.hash().to_hex()}))
        .await
        .assert_ok("result:object");
    gate.release();
    let events = stream.collect().await;
    assert_eq!(assert_completed(&events), "This takes a while.");
    assert_eq!(with_key(&rig.engine, &key).replay("task", 0).await.collect().await, events);
}

#[tokio::test]
async fn what_is_no_hash_changes_no_key() {
    let place = StandaloneEngine::new();
    let (_program, engine) = place.start().await;
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
    let rig = EngineFixture::new([Reply::from_text("This takes a while.").hold(1, &gate)]).await;
    let stream = rig.engine.execute_with(&direct_message("task", "Hello!")).await;
    wait_gate_reached(&gate).await;
    assert_eq!(rig.engine.activity().await["running_turns"], 1);
    assert!(!rig.engine.quiesce().await);
    // It changed nothing.
    rig.engine.run_turn("other", "Hello!").await;
    gate.release();
    assert_completed(&stream.collect().await);
    assert!(rig.engine.quiesce().await);
}

#[tokio::test]
async fn a_quiesced_engine_begins_no_turn_until_that_is_lifted() {
    let rig = EngineFixture::new([]).await;
    let events = rig.engine.run_turn("task", "Hello!").await;
    assert!(rig.engine.quiesce().await);
    assert!(rig.engine.quiesce().await);
    let asked = &events[0].data["message_id"];
    for body in [
        direct_message("task", "More."),
        direct_message("new", "Hello!"),
        json!({"task_id": "task", "message": "Better.", "edit_message_id": asked}),
        json!({"task_id": "task", "message": "", "retry_message_id": asked}),
    ] {
        let answer = rig.engine.post_execute(&body).await;
        answer.assert_error(503, "QUIESCED");
        assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    }
    assert_eq!(rig.model_calls(), 1);
    // What there is can still be read, and it is as healthy as before.
    assert_eq!(rig.engine.replay("task", 0).await.collect().await, events);
    assert_eq!(rig.engine.health().await["status"], "ok");
    rig.engine.lift_quiesce().await;
    rig.engine.run_turn("task", "More.").await;
    // A start begins anew.
    assert!(rig.engine.quiesce().await);
    let rig = rig.stop_and_start().await;
    rig.engine.run_turn("task", "And more.").await;
}

#[tokio::test]
async fn a_turn_that_waits_for_a_person_may_be_put_to_sleep_and_goes_on_later() {
    let rig = EngineFixture::new([write_file_reply("notes.txt"), Reply::from_text("Done.")]).await;
    let (stream, request) = rig.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    assert_eq!(wait_until_idle(&rig.engine).await["pending_hitl"], 1);
    assert!(rig.engine.quiesce().await);
    let answer = rig.engine.respond("task", "yes").await;
    answer.assert_error(503, "QUIESCED");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(rig.engine.task_status("task").await, "paused");
    assert!(!rig.setup.workspace().join("notes.txt").exists());

    drop(stream);
    let rig = rig.stop_and_start().await;
    assert_eq!(wait_until_idle(&rig.engine).await["pending_hitl"], 1);
    let missed = rig.engine.replay("task", request.ts()).await;
    rig.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    assert_eq!(missed.collect().await.last().unwrap().data["text"], "Done.");
    assert!(rig.setup.workspace().join("notes.txt").exists());
    assert_eq!(rig.engine.activity().await["pending_hitl"], 0);
}

#[tokio::test]
async fn a_turn_that_a_start_takes_up_counts_as_running() {
    let (first, second) = (Gate::new(), Gate::new());
    let slow = |gate: &Gate| Reply::from_text("This takes a while.").hold(1, gate);
    let rig = EngineFixture::new([slow(&first), slow(&second)]).await;
    let stream = rig.engine.execute_with(&direct_message("task", "Hello!")).await;
    wait_gate_reached(&first).await;
    let rig = rig.kill_and_start().await;
    drop(stream);
    assert_eq!(rig.engine.activity().await["running_turns"], 1);
    assert!(!rig.engine.quiesce().await);
    wait_gate_reached(&second).await;
    assert!(!rig.engine.quiesce().await);
    second.release();
    let events = rig.engine.replay("task", 0).await.collect().await;
    assert_eq!(events.last().unwrap().data["text"], "This takes a while.");
    assert!(rig.engine.quiesce().await);
}

#[tokio::test]
async fn activity_tells_what_the_engine_is_at_and_when_it_last_did_something() {
    let rig =
        EngineFixture::new([ask_user_reply("One?"), ask_user_reply("Two?"), Reply::from_text("I see.")])
            .await;
    let mut activity = rig.engine.activity().await;
    // How far it is confined is the machine's affair.
    let confinement = activity["confinement"].take();
    assert!(confinement.as_str().is_some_and(|level| !level.is_empty()), "{confinement}");
    let idle = json!({"running_turns": 0, "pending_hitl": 0, "last_activity_at": null, "confinement": null});
    assert_eq!(activity, idle);
    for task in ["one", "two"] {
        rig.engine.run_until_hitl_request(&direct_message(task, "Ask.")).await;
    }
    let asked = wait_until_idle(&rig.engine).await;
    assert_eq!(asked["pending_hitl"], 2);
    // To look is no activity.
    rig.engine.get("/tasks").await.assert_ok("tasks:array total:int");
    rig.engine.replay("one", i64::MAX).await;
    assert_eq!(rig.engine.activity().await, asked);

    rig.engine.respond("one", "Yes.").await.assert_ok("status:text request_id:hitl");
    let answered = wait_until_idle(&rig.engine).await;
    assert!(last_activity_time(&answered) > last_activity_time(&asked), "{answered} {asked}");
    assert_eq!(answered["pending_hitl"], 1);
    let rig = rig.stop_and_start().await;
    let kept = wait_until_idle(&rig.engine).await;
    assert!(
        last_activity_time(&kept) > last_activity_time(&asked)
            && last_activity_time(&kept) <= last_activity_time(&answered),
        "{kept} {answered}"
    );
}

#[tokio::test]
async fn a_call_has_one_form_and_its_refusals_are_flat() {
    let place = StandaloneEngine::new();
    let (_program, engine) = place.start().await;
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
        // The key is looked at first.
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
