//! Story 4: after a rotation the old key never works again and the new one does, whatever happens meanwhile.

use std::collections::BTreeSet;
use std::time::Instant;

use futures::future::join_all;
use mock_llm::{Gate, MockProvider, Reply};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::schema::ENGINE_RECORD;
use crate::support::turn::assert_completed;
use crate::support::{
    Deployment, Engine, Fleet, HttpResponse, Product, assert_within, eventually, processes, with_deadline,
};

/// The fields of a rotation's response.
const ROTATED: &str = "new_api_key:engine-key";

/// The new key in a rotation's response.
#[track_caller]
fn new_key(answer: HttpResponse) -> String {
    answer.assert_ok(ROTATED)["new_api_key"].as_str().unwrap().to_owned()
}

/// Asserts that a user's engine accepts `key` and none of `old`, and that the orchestrator returns `key`.
async fn assert_only_key_accepted(product: &Product, user: &str, key: &str, old: &[String]) {
    let record = product.get(user).await.assert_ok(ENGINE_RECORD);
    assert_eq!(record["api_key"], key);
    let engine = product.engine(user).await;
    assert_eq!(engine.key, key);
    engine.get("/tasks").await.assert_ok("tasks:array total:int");
    for old in old {
        let mut former = engine.clone();
        former.key.clone_from(old);
        former.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
        former.post_execute(&direct_message("task", "Hello!")).await.assert_error(401, "INVALID_ENGINE_KEY");
    }
}

#[tokio::test]
async fn a_new_key_works_at_once_and_the_old_one_never_again() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let process = deployment.process_of(&engine);
    let mut old = vec![engine.key.clone()];
    let mut key = new_key(product.rotate_key("ada").await);
    assert_only_key_accepted(&product, "ada", &key, &old).await;
    assert_eq!(deployment.process_of(&engine), process, "the rotation did not restart it");

    // Through a stop and a start.
    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(product.get("ada").await.assert_ok(ENGINE_RECORD)["api_key"], key.as_str());
    product.start("ada").await.assert_ok("status:text url:url");
    assert_only_key_accepted(&product, "ada", &key, &old).await;
    // Through the death of the engine.
    old.push(std::mem::replace(&mut key, new_key(product.rotate_key("ada").await)));
    deployment.kill_engine(&engine);
    product.wait_for_status("ada", "failed").await;
    product.wait_for_status("ada", "running").await;
    assert_only_key_accepted(&product, "ada", &key, &old).await;
    // Through the death of the orchestrator, and of both.
    old.push(std::mem::replace(&mut key, new_key(product.rotate_key("ada").await)));
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    assert_only_key_accepted(&product, "ada", &key, &old).await;
    old.push(std::mem::replace(&mut key, new_key(product.rotate_key("ada").await)));
    orchestrator.signal_and_wait(Signal::KILL).await;
    deployment.kill_engine(&engine);
    let _orchestrator = deployment.start().await;
    product.wait_for_status("ada", "running").await;
    assert_only_key_accepted(&product, "ada", &key, &old).await;

    assert_eq!(product.audit_rows("rotate_key").await.len(), 4);
    let messages = product.engine("ada").await.messages("task").await;
    assert_eq!(messages.len(), 2, "{messages:?}");
    let keys: BTreeSet<&String> = old.iter().chain([&key]).collect();
    assert_eq!(keys.len(), 5, "all keys differ");
}

/// A holder of an engine's key can replace it without the orchestrator's knowledge.
#[tokio::test]
async fn an_engine_that_was_given_another_key_elsewhere_comes_back_with_its_own() {
    let deployment = Deployment::new()
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.2")
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let foreign = json!({"key_hash": "0".repeat(64)});
    assert_eq!(engine.control("set_key_hash", foreign).await.status, 200);
    // The orchestrator notices it at the first proxied call.
    product.call(Method::GET, "/engines/ada/proxy/tasks", None).await.assert_error(401, "INVALID_ENGINE_KEY");
    product.wait_for_status("ada", "failed").await;
    product.wait_for_status("ada", "running").await;
    assert_only_key_accepted(&product, "ada", &engine.key, &[]).await;
    product.call(Method::GET, "/engines/ada/proxy/tasks", None).await.assert_ok("tasks:array total:int");
    let crashes = product.audit_rows("crash").await;
    let reason = crashes[0].1["reason"].as_str().unwrap();
    assert_eq!(reason, "it refuses the key that the registry has for it");
}

#[tokio::test]
async fn an_engine_that_does_not_run_has_no_key_to_rotate() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    product.rotate_key("nobody").await.assert_error(404, "ENGINE_NOT_FOUND");
    let engine = product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    product.rotate_key("ada").await.assert_error(409, "ENGINE_NOT_RUNNING");
    product.start("ada").await.assert_ok("status:text url:url");
    assert_only_key_accepted(&product, "ada", &engine.key, &[]).await;
    // The same user id in another product is another user.
    let other = up.register("other", json!({})).await;
    other.rotate_key("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
    let mut unauthorized = product.clone();
    unauthorized.key.clone_from(&engine.key);
    unauthorized.rotate_key("ada").await.assert_error(401, "INVALID_PLATFORM_KEY");
    assert_only_key_accepted(&product, "ada", &engine.key, &[]).await;
    assert!(product.audit_rows("rotate_key").await.is_empty());
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    product.rotate_key("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
}

/// Rotates twenty times concurrently while others read the engine's record; returns the keys of the successful
/// rotations.
async fn rotate_at_once(product: &Product) -> Vec<String> {
    let rotations = join_all((0..20).map(|_| product.rotate_key("ada")));
    let reads = join_all((0..5).map(|_| product.get("ada")));
    let (rotations, reads) = with_deadline("all are answered", futures::future::join(rotations, reads)).await;
    for read in reads {
        read.assert_ok(ENGINE_RECORD);
    }
    let mut keys = Vec::new();
    for answer in rotations {
        match answer.status {
            200 => keys.push(new_key(answer)),
            409 => _ = answer.assert_error(409, "ENGINE_NOT_RUNNING"),
            _ => _ = answer.assert_error(502, "BACKEND_ERROR"),
        }
    }
    keys
}

#[tokio::test]
async fn of_many_rotations_at_once_the_last_key_counts() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let keys = rotate_at_once(&product).await;
    assert!(!keys.is_empty(), "at least one succeeds");
    let last = product.get("ada").await.assert_ok(ENGINE_RECORD)["api_key"].as_str().unwrap().to_owned();
    assert!(keys.contains(&last), "it is one of the returned keys");
    let mut old: Vec<String> = keys.iter().filter(|key| **key != last).cloned().collect();
    assert_eq!(old.len() + 1, keys.len(), "no key is returned twice");
    old.push(engine.key);
    assert_only_key_accepted(&product, "ada", &last, &old).await;
    assert_eq!(product.audit_rows("rotate_key").await.len(), keys.len());
    product.engine("ada").await.run_turn("task", "Hello!").await;
}

#[tokio::test]
async fn a_rotation_amid_stops_and_starts_leaves_one_key_that_works() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let first = product.engine("ada").await.key;
    let stops_and_starts = async {
        for _ in 0..2 {
            // Each waits for the operation under way, and then succeeds or is refused.
            let stop = product.stop("ada").await;
            assert!([200, 409].contains(&stop.status), "{stop:?}");
            let start = product.start("ada").await;
            assert!([200, 409].contains(&start.status), "{start:?}");
        }
    };
    let ((), keys) = futures::future::join(stops_and_starts, rotate_at_once(&product)).await;
    if product.status("ada").await != "running" {
        product.start("ada").await.assert_ok("status:text url:url");
    }
    let key = product.get("ada").await.assert_ok(ENGINE_RECORD)["api_key"].as_str().unwrap().to_owned();
    let mut old: Vec<String> = keys.into_iter().filter(|old_key| *old_key != key).collect();
    if key == first {
        assert!(old.is_empty(), "a key that was rotated away has come back");
    } else {
        old.push(first);
    }
    assert_only_key_accepted(&product, "ada", &key, &old).await;
}

#[tokio::test]
async fn a_rotation_that_the_orchestrator_dies_in_is_settled_by_the_next() {
    let deployment = Deployment::new();
    let (mut orchestrator, product) = deployment.start_with_product().await;
    let mut old = vec![product.engine("ada").await.key];
    for _ in 0..3 {
        let rotations: Vec<_> = (0..8)
            .map(|_| {
                let path = format!("{}/engines/ada/rotate-key", product.base);
                let request =
                    crate::support::http::client().post(path).header("x-platform-key", &product.key);
                tokio::spawn(async move { request.send().await.ok()?.json::<serde_json::Value>().await.ok() })
            })
            .collect();
        let before = old.last().unwrap().clone();
        eventually("a rotation is complete", async || {
            let key =
                product.get("ada").await.assert_ok(ENGINE_RECORD)["api_key"].as_str().unwrap().to_owned();
            (key != before).then_some(())
        })
        .await;
        orchestrator = deployment.kill_and_start(orchestrator).await;
        let key = product.engine("ada").await.key;
        for rotation in rotations {
            let answer = with_deadline("the call ends", rotation).await.unwrap();
            let acknowledged = answer.and_then(|answer| Some(answer["new_api_key"].as_str()?.to_owned()));
            old.extend(acknowledged.filter(|old_key| *old_key != key));
        }
        assert_only_key_accepted(&product, "ada", &key, &old).await;
        old.push(key);
    }
}

#[tokio::test]
async fn a_stream_goes_on_while_the_key_is_rotated() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    let text = "The answer is longer than the life of a key.";
    provider.enqueue(Reply::from_text(text).chars_per_delta(5).hold(3, &gate));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    let stream = engine.execute_with(&direct_message("task", "Tell me.")).await;
    let watcher = engine.replay("task", 0).await;
    wait_gate_reached(&gate).await;
    let key = new_key(product.rotate_key("ada").await);
    assert_only_key_accepted(&product, "ada", &key, std::slice::from_ref(&engine.key)).await;
    gate.release();
    let events = stream.collect().await;
    assert_eq!(assert_completed(&events), text);
    assert_eq!(watcher.collect().await, events);
    assert_eq!(product.engine("ada").await.replay("task", 0).await.collect().await, events);
}

#[tokio::test]
async fn an_engine_that_does_not_answer_keeps_a_key_that_works() {
    let deployment = Deployment::new();
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let process = deployment.process_of(&engine).unwrap();
    processes::signal(process, Signal::STOP);
    let start = Instant::now();
    let answer = product.rotate_key("ada").await;
    answer.assert_error(502, "BACKEND_ERROR");
    assert_within("the call is answered in time", start.elapsed(), 0.0..25.0);
    processes::signal(process, Signal::CONT);
    // The rotation is settled at the engine's next response; until then an admit waits.
    let Engine { key, .. } = product.engine("ada").await;
    let old = if key == engine.key { Vec::new() } else { vec![engine.key] };
    assert_only_key_accepted(&product, "ada", &key, &old).await;
    let next = new_key(product.rotate_key("ada").await);
    assert_only_key_accepted(&product, "ada", &next, &[key]).await;
}
