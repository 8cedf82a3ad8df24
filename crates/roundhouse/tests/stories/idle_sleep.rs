//! Story 4: an idle engine sleeps, and wakes as if it had not slept.

use std::time::{Duration, Instant};

use api::Timestamp;
use mock_llm::{Gate, MockProvider, Reply};
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{wait_gate_reached, write_file_reply};
use crate::support::schema::ENGINE_SUMMARY;
use crate::support::turn::{assert_completed, of_kind};
use crate::support::{
    Backend, Deployment, Engine, Product, assert_fields, assert_within, eventually, with_deadline,
};

/// A deployment whose engines sleep after `seconds`, or later where engines are slow to start.
fn deployment_with_idle_threshold(seconds: f64) -> Deployment {
    let seconds = seconds * Backend::from_env().slowness();
    Deployment::new().with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", seconds.to_string())
}

/// Admits a user now and waits until their engine sleeps: an engine that was idle earlier would sleep before it.
async fn wait_until_newcomer_sleeps(product: &Product, user: &str) {
    product.engine(user).await;
    product.wait_for_status(user, "sleeping").await;
}

/// The sentences that explain why a user's engine is awake.
async fn awake_because(product: &Product, user: &str) -> Vec<String> {
    let explanation = product.explain(user).await;
    let sentences =
        explanation["awake_because"].as_array().unwrap_or_else(|| panic!("no sentences: {explanation}"));
    sentences.iter().map(|sentence| sentence.as_str().unwrap().to_owned()).collect()
}

/// Asserts that a user's engine has slept once and was woken once, by an admit.
async fn assert_slept_and_woke_once(product: &Product, user: &str) {
    for (event, from, to) in [("sleep", "running", "sleeping"), ("wake", "sleeping", "running")] {
        let rows = product.audit_rows(event).await;
        let details: Vec<&Value> = rows.iter().filter(|row| row.0 == user).map(|row| &row.1).collect();
        let [row] = details.as_slice() else { panic!("one {event}, not {details:?}") };
        assert_eq!((&row["from"], &row["to"]), (&json!(from), &json!(to)), "{row}");
        assert!(row["reason"].is_string(), "{row}");
    }
    assert!(product.audit_rows("crash").await.is_empty() && product.audit_rows("start").await.is_empty());
}

#[tokio::test]
async fn an_idle_engine_sleeps_and_nothing_but_an_admit_wakes_it() {
    let deployment = deployment_with_idle_threshold(1.5);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let start = Instant::now();
    // Before it sleeps, the explanation says when it will.
    let explanation = product.explain("ada").await;
    assert_eq!(
        (&explanation["status"], &explanation["next_action"]["action"]),
        (&json!("running"), &json!("sleep"))
    );
    let time = |value: &Value| -> Timestamp { value.as_str().unwrap().parse().unwrap() };
    assert!(
        time(&explanation["next_action"]["at"]) > time(&explanation["last_transition"]["at"]),
        "{explanation}"
    );
    assert!(!awake_because(&product, "ada").await.iter().any(String::is_empty));
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    let asleep_after = async || {
        // Frequent reads are no activity.
        product.list("").await;
        product.explain("ada").await;
        (product.status("ada").await == "sleeping").then(|| start.elapsed())
    };
    let elapsed = eventually("it sleeps", asleep_after).await;
    assert_within("it slept", elapsed, 1.4..8.0 * Backend::from_env().slowness());
    assert_eq!(deployment.process_of(&engine), None);

    // Nothing but an admit with `auto_wake` wakes it.
    let (listed, total) = product.list("?status=sleeping").await;
    assert_eq!((listed[0]["engine_id"].as_str(), total), (Some(engine.id.as_str()), 1));
    assert_fields(&listed[0], ENGINE_SUMMARY);
    let explanation = product.explain("ada").await;
    assert_eq!(
        (&explanation["status"], &explanation["last_transition"]["event"]),
        (&json!("sleeping"), &json!("sleep"))
    );
    assert!(explanation["awake_because"].is_null(), "{explanation}");
    assert!(
        explanation["next_action"].is_null() || explanation["next_action"]["action"] == "none",
        "{explanation}"
    );
    product.stop("ada").await.assert_error(409, "ENGINE_NOT_RUNNING");
    product.rotate_key("ada").await.assert_error(409, "ENGINE_NOT_RUNNING");
    product.provision("ada").await.assert_error(409, "ENGINE_ALREADY_EXISTS");
    assert_eq!(product.denial_reason("ada").await, "engine_sleeping");
    assert_eq!((product.status("ada").await.as_str(), deployment.process_of(&engine)), ("sleeping", None));

    let again = product.engine("ada").await;
    assert_eq!((&again.id, &again.key), (&engine.id, &engine.key));
    assert_eq!(product.status("ada").await, "running");
    assert_eq!(again.messages("task").await, messages);
    again.run_turn("task", "Hello again!").await;
    assert_slept_and_woke_once(&product, "ada").await;

    // `start` wakes it as well, and is recorded as a start.
    product.wait_for_status("ada", "sleeping").await;
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(product.audit_rows("start").await.len(), 1);
    product.engine("ada").await.run_turn("task", "Good morning!").await;
}

#[tokio::test]
async fn a_running_turn_keeps_its_engine_awake_also_when_nobody_listens() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    provider.enqueue(Reply::from_text("This takes a while.").hold(2, &gate));
    let deployment = deployment_with_idle_threshold(1.0)
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "1")
        .with_provider(&provider);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let stream = engine.execute_with(&direct_message("task", "Go.")).await;
    wait_gate_reached(&gate).await;
    let before = awake_because(&product, "ada").await;
    assert!(!before.is_empty());
    drop(stream);
    let process = deployment.process_of(&engine);
    // Twice the time after which it would sleep.
    wait_until_newcomer_sleeps(&product, "bob").await;
    wait_until_newcomer_sleeps(&product, "bob").await;
    assert_eq!((product.status("ada").await.as_str(), deployment.process_of(&engine)), ("running", process));
    assert!(!awake_because(&product, "ada").await.is_empty());
    assert!(product.audit_rows("sleep").await.iter().all(|row| row.0 == "bob"));
    // It was not quiesced for long either: it accepts turns.
    engine.run_turn("other", "Hello!").await;

    gate.release();
    product.wait_for_status("ada", "sleeping").await;
    let events = product.engine("ada").await.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "This takes a while.");
    assert!(!events.iter().any(|event| event.phase() == Some("resumed")), "it was never interrupted");
}

#[tokio::test]
async fn a_turn_that_waits_for_a_person_sleeps_and_can_be_answered_after() {
    let provider = MockProvider::start().await.unwrap();
    provider.enqueue_all([write_file_reply("notes.txt"), Reply::from_text("Done.")]);
    let deployment = deployment_with_idle_threshold(1.0).with_provider(&provider);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let (stream, request) = engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    let pending = engine.pending().await;
    assert_eq!(pending.len(), 1);
    product.wait_for_status("ada", "sleeping").await;
    assert_eq!(deployment.process_of(&engine), None);
    drop(stream);

    let again = product.engine("ada").await;
    assert_eq!(again.pending().await, pending);
    assert_eq!(again.task_status("task").await, "paused");
    let answer = again.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    assert_eq!(answer["request_id"], request.data["request_id"]);
    let events = again.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "Done.");
    assert_eq!(of_kind(&events, "hitl_request"), [&request]);
    assert_slept_and_woke_once(&product, "ada").await;
    assert!(deployment.data_folder(&engine.id).unwrap().join("workspace/notes.txt").exists());
}

#[tokio::test]
async fn who_is_admitted_again_and_again_stays_awake() {
    let deployment = deployment_with_idle_threshold(1.5);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine: Engine = product.engine("ada").await;
    let process = deployment.process_of(&engine);
    product.engine("bob").await;
    eventually("bob sleeps", async || {
        // An admit of an awake engine is activity as well.
        let admission = product.admit_existing("ada").await.assert_ok("admitted:bool engine:object");
        assert_eq!(admission["admitted"], true, "{admission}");
        (product.status("bob").await == "sleeping").then_some(())
    })
    .await;
    assert_eq!((product.status("ada").await.as_str(), deployment.process_of(&engine)), ("running", process));
    assert!(product.audit_rows("sleep").await.iter().all(|row| row.0 == "bob"));
}

#[tokio::test]
async fn many_admits_of_a_sleeper_wake_it_once() {
    let deployment = deployment_with_idle_threshold(1.0);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    product.wait_for_status("ada", "sleeping").await;
    let admits = futures::future::join_all((0..20).map(|_| product.engine("ada")));
    for again in with_deadline("all are admitted", admits).await {
        assert_eq!((&again.id, &again.key), (&engine.id, &engine.key));
    }
    assert_slept_and_woke_once(&product, "ada").await;
}

#[tokio::test]
async fn who_is_admitted_at_the_moment_of_sleep_gets_an_engine_that_works() {
    let deployment = deployment_with_idle_threshold(1.0);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let users = (0..6).map(|number| {
        // The pauses end before, at and after the moment when each engine would sleep.
        let pause = Duration::from_millis(850 + 50 * number).mul_f64(Backend::from_env().slowness());
        let (product, user) = (product.clone(), format!("user-{number}"));
        async move {
            for _ in 0..2 {
                product.engine(&user).await.run_turn("task", "Hello!").await;
                tokio::time::sleep(pause).await;
            }
            product.engine(&user).await.messages("task").await.len()
        }
    });
    assert_eq!(with_deadline("all have had their turns", futures::future::join_all(users)).await, [4; 6]);
    assert!(product.audit_rows("crash").await.is_empty());
    assert!(!product.audit_rows("sleep").await.is_empty(), "some slept");
}

#[tokio::test]
async fn a_product_sets_its_own_time_and_nothing_means_never() {
    let deployment = deployment_with_idle_threshold(1.0);
    let (orchestrator, product) = deployment.start_with_product().await;
    let never = orchestrator.register("never", json!({"idle_sleep_threshold_s": 0})).await;
    let later = orchestrator.register("later", json!({"idle_sleep_threshold_s": 3600})).await;
    let engines = [never.engine("ada").await, later.engine("ada").await];
    wait_until_newcomer_sleeps(&product, "bob").await;
    wait_until_newcomer_sleeps(&product, "bob").await;
    for (product, engine) in [&never, &later].into_iter().zip(&engines) {
        assert_eq!(product.status("ada").await, "running");
        assert!(deployment.process_of(engine).is_some());
    }
    let explanation = never.explain("ada").await;
    assert!(
        explanation["next_action"].is_null() || explanation["next_action"]["action"] == "none",
        "{explanation}"
    );
    assert_eq!(later.explain("ada").await["next_action"]["action"], "sleep");
}
