//! Story 4: an engine that crashes or hangs is noticed and restarted, with all of its data.

use std::fs;
use std::time::Instant;

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::support::schema::ENGINE_RECORD;
use crate::support::turn::assert_completed;
use crate::support::{Deployment, Engine, Product, assert_within, eventually, processes};

/// Waits until ada's engine runs as another process than `before`, and asserts that its id and key are unchanged.
async fn wait_until_back(deployment: &Deployment, product: &Product, before: (&Engine, Pid)) -> Pid {
    let now = eventually("another process runs", async || {
        let status = product.status("ada").await;
        deployment.process_of(before.0).filter(|now| *now != before.1 && status == "running")
    })
    .await;
    assert!(!processes::is_alive(before.1), "the old process has ended");
    let engine = product.engine("ada").await;
    assert_eq!((&engine.id, &engine.key), (&before.0.id, &before.0.key));
    now
}

/// The details of the audit log's rows of an event, of which there must be `N`.
async fn details<const N: usize>(product: &Product, event: &str) -> [Value; N] {
    let rows: Vec<Value> = product.audit_rows(event).await.into_iter().map(|(_, detail)| detail).collect();
    rows.try_into().unwrap_or_else(|rows| panic!("{N} rows of {event}, not {rows:?}"))
}

#[tokio::test]
async fn an_engine_that_dies_is_failed_at_once_and_back_after_its_back_off() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "1");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    let mut process = deployment.process_of(&engine).unwrap();

    // One second to see whether it comes back by itself, then the back-off: the base, then twice the base.
    // A kill and an exit are treated alike.
    for (attempt, wait, signal) in [(0, 1.0, Signal::KILL), (1, 2.0, Signal::TERM)] {
        let start = Instant::now();
        processes::signal(process, signal);
        product.wait_for_status("ada", "failed").await;
        assert_within("the exit is noticed", start.elapsed(), 1.0..3.0);
        product.stop("ada").await.assert_error(409, "ENGINE_NOT_RUNNING");
        product.rotate_key("ada").await.assert_error(409, "ENGINE_NOT_RUNNING");
        let explained = product.explain("ada").await;
        assert_eq!(
            (&explained["status"], &explained["next_action"]["action"]),
            (&json!("failed"), &json!("restart"))
        );
        assert_eq!(explained["restart_attempt"]["max"], 8, "{explained}");
        assert_eq!(explained["last_transition"]["event"], "crash", "{explained}");
        assert!(explained["awake_because"].is_null(), "{explained}");

        // An admit waits for the scheduled restart, and does not bring it forward.
        let admission = product.admit_existing("ada").await.assert_ok("admitted:bool engine:object");
        assert_eq!(
            (&admission["admitted"], &admission["engine"]["status"]),
            (&json!(true), &json!("running"))
        );
        // The wait has a jitter of 20 %.
        assert_within("the engine is back", start.elapsed(), 1.0 + 0.8 * wait..1.0 + 1.2 * wait + 6.0);
        process = wait_until_back(&deployment, &product, (&engine, process)).await;
        assert_eq!(product.audit_rows("restart").await.len(), attempt + 1);
    }
    let engine = product.engine("ada").await;
    assert_eq!(engine.messages("task").await, messages);
    assert_completed(&engine.execute("task", "Hello again!").await.collect().await);

    let explained = product.explain("ada").await;
    let last = &explained["last_transition"];
    assert_eq!(
        (&last["event"], &last["from"], &last["to"]),
        (&json!("restart"), &json!("failed"), &json!("running"))
    );
    for crash in details::<2>(&product, "crash").await {
        assert_eq!(
            (&crash["cause"], &crash["from"], &crash["to"]),
            (&json!("exit"), &json!("running"), &json!("failed"))
        );
        assert!(crash["reason"].is_string(), "{crash}");
    }
    let attempts = details::<2>(&product, "restart").await.map(|row| {
        assert_eq!((&row["from"], &row["to"]), (&json!("failed"), &json!("running")), "{row}");
        assert!(row["outcome"].is_string() && row["reason"].is_string(), "{row}");
        row["attempt"].as_u64().expect("a number")
    });
    assert_eq!(attempts[1], attempts[0] + 1);
    assert!(product.audit_rows("start").await.is_empty() && product.audit_rows("wake").await.is_empty());
}

#[tokio::test]
async fn an_engine_that_hangs_is_ended_and_comes_back() {
    let deployment = Deployment::new()
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.3")
        .with_env("ORCH_HEALTH_CHECK_TIMEOUT_S", "0.7")
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    // Health checks are made and pass: `last_health_at` advances.
    let checked = async || product.get("ada").await.assert_ok(ENGINE_RECORD)["last_health_at"].clone();
    let first = checked().await;
    eventually("it is checked again", async || (checked().await != first).then_some(())).await;

    let process = deployment.process_of(&engine).unwrap();
    let start = Instant::now();
    processes::signal(process, Signal::STOP);
    eventually("the hung process is ended", async || (!processes::is_alive(process)).then_some(())).await;
    // Three failed checks in a row, each of which takes until its timeout.
    assert_within("three checks failed", start.elapsed(), 2.1..12.0);
    wait_until_back(&deployment, &product, (&engine, process)).await;
    let engine = product.engine("ada").await;
    assert_eq!(engine.messages("task").await, messages);
    let [crash] = details(&product, "crash").await;
    assert_eq!((&crash["cause"], &crash["to"]), (&json!("health"), &json!("failed")));
    let [_restart] = details(&product, "restart").await;
}

#[tokio::test]
async fn nobody_waits_for_a_restart_that_is_far_off() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "300");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let process = deployment.kill_engine(&engine);
    product.wait_for_status("ada", "failed").await;
    let start = Instant::now();
    assert_eq!(product.denial_reason("ada").await, "engine_unhealthy");
    assert_within("the denial is immediate", start.elapsed(), 0.0..5.0);
    assert_eq!(product.explain("ada").await["next_action"]["action"], "restart");
    product.start("ada").await.assert_ok("status:text url:url");
    wait_until_back(&deployment, &product, (&engine, process)).await;
    assert!(product.audit_rows("restart").await.is_empty());
}

/// Replaces an engine's brain with garbage; returns a closure that restores it.
fn corrupt_brain(deployment: &Deployment, engine: &Engine) -> impl FnOnce() {
    let folder = deployment.data_folder(&engine.id).unwrap();
    let aside = deployment.fleet.test_env.path().join("aside");
    fs::create_dir(&aside).unwrap();
    let files = ["brain.sqlite", "brain.sqlite-wal", "brain.sqlite-shm"];
    let present = files.map(|name| fs::rename(folder.join(name), aside.join(name)).is_ok());
    assert!(present[0], "there was a brain");
    fs::write(folder.join(files[0]), b"no database ".repeat(1_000)).unwrap();
    move || {
        for (name, present) in files.into_iter().zip(present) {
            let _ = fs::remove_file(folder.join(name));
            if present {
                fs::rename(aside.join(name), folder.join(name)).unwrap();
            }
        }
        fs::remove_dir(&aside).unwrap();
    }
}

#[tokio::test]
async fn an_engine_that_cannot_come_back_is_given_up_until_it_is_started() {
    let deployment = Deployment::new()
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2")
        .with_env("ORCH_RESTART_BACKOFF_MAX_S", "0.3")
        .with_env("ORCH_RESTART_MAX_ATTEMPTS", "2")
        .with_env("ORCH_BOOT_TIMEOUT_S", "10");
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    deployment.kill_engine(&engine);
    let repair = corrupt_brain(&deployment, &engine);
    eventually("both attempts were made", async || {
        (product.audit_rows("restart").await.len() == 2).then_some(())
    })
    .await;
    for row in details::<2>(&product, "restart").await {
        assert_eq!((&row["from"], &row["to"]), (&json!("failed"), &json!("failed")), "{row}");
    }

    // The engine is given up, also by the next orchestrator. No admit waits for a restart that will not come.
    let assert_given_up = async || {
        let start = Instant::now();
        assert_eq!(product.denial_reason("ada").await, "engine_unhealthy");
        assert_within("the admit does not wait", start.elapsed(), 0.0..5.0);
        assert_eq!(product.status("ada").await, "failed");
        let explained = product.explain("ada").await;
        let next = &explained["next_action"];
        assert!(next.is_null() || next["action"] == "none", "{explained}");
        assert_eq!(explained["restart_attempt"], json!({"n": 2, "max": 2}));
    };
    assert_given_up().await;
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    assert_given_up().await;
    let answer = product.start("ada").await;
    assert!([502, 504].contains(&answer.status), "{answer:?}");
    assert_eq!(product.status("ada").await, "failed");
    // A failed attempt is no further crash.
    let [_crash] = details(&product, "crash").await;

    // `start` tries again and resets the count: when the engine dies again, it is restarted.
    eventually("no attempt is under way", async || deployment.process_of(&engine).is_none().then_some(()))
        .await;
    repair();
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(product.engine("ada").await.messages("task").await, messages);
    let process = deployment.kill_engine(&engine);
    product.wait_for_status("ada", "failed").await;
    wait_until_back(&deployment, &product, (&engine, process)).await;
    let [_, _] = details(&product, "crash").await;
    drop(orchestrator);
}

#[tokio::test]
async fn an_engine_that_cannot_come_back_is_no_trouble_for_others() {
    let deployment = Deployment::new()
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2")
        .with_env("ORCH_BOOT_TIMEOUT_S", "10");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let broken = product.engine("broken").await;
    let engine = product.engine("ada").await;
    deployment.kill_engine(&broken);
    let _repair = corrupt_brain(&deployment, &broken);
    let process = deployment.kill_engine(&engine);
    eventually("the broken one was tried", async || {
        product.audit_rows("restart").await.iter().any(|(user, _)| user == "broken").then_some(())
    })
    .await;
    wait_until_back(&deployment, &product, (&engine, process)).await;
    assert_completed(&product.engine("ada").await.execute("task", "Hello!").await.collect().await);
    // A broken engine can be deleted.
    product.delete("broken").await.assert_ok("status:text engine_id:engine");
    assert_eq!(product.list("").await.1, 1);
    assert_eq!(deployment.data_folder(&broken.id), None);
}

#[tokio::test]
async fn what_was_stopped_stays_stopped_and_what_died_unseen_comes_back() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let (orchestrator, product) = deployment.start_with_product().await;
    let stopped = product.engine("stopped").await;
    product.stop("stopped").await.assert_ok("status:text");
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    orchestrator.signal_and_wait(Signal::KILL).await;
    let process = deployment.kill_engine(&engine);

    let orchestrator = deployment.start().await;
    wait_until_back(&deployment, &product, (&engine, process)).await;
    assert_eq!(product.engine("ada").await.messages("task").await, messages);
    // By now everything that should be restarted is running.
    assert_eq!(product.status("stopped").await, "stopped");
    assert_eq!(product.denial_reason("stopped").await, "engine_stopped");
    assert_eq!(deployment.process_of(&stopped), None);
    let crashed: Vec<String> = product.audit_rows("crash").await.into_iter().map(|(user, _)| user).collect();
    assert_eq!(crashed, ["ada"], "a stop is no crash");

    // The end of the orchestrator, also a clean one, is no crash either.
    let process = deployment.process_of(&engine).unwrap();
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
    let _orchestrator = deployment.start().await;
    assert_eq!(product.status("ada").await, "running");
    assert_eq!(deployment.process_of(&engine), Some(process));
    assert_eq!(product.audit_rows("crash").await.len(), 1);
}

#[tokio::test]
async fn a_back_off_goes_on_where_it_was_when_the_orchestrator_is_killed() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "2");
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let start = Instant::now();
    let process = deployment.kill_engine(&engine);
    product.wait_for_status("ada", "failed").await;
    let before = product.explain("ada").await;
    let _orchestrator = deployment.kill_and_start(orchestrator).await;
    let after = product.explain("ada").await;
    assert_eq!((&after["status"], &after["next_action"]), (&before["status"], &before["next_action"]));
    wait_until_back(&deployment, &product, (&engine, process)).await;
    assert_within("the engine is back", start.elapsed(), 1.0 + 0.8 * 2.0..15.0);
    let [_crash] = details(&product, "crash").await;
    assert_eq!(before["restart_attempt"], after["restart_attempt"]);
}

#[tokio::test]
async fn a_turn_that_its_engine_died_in_ends_without_anybodys_help() {
    let provider = mock_llm::MockProvider::start().await.unwrap();
    let gate = mock_llm::Gate::new();
    let text = "One two three four five six seven eight nine ten.";
    provider.enqueue(mock_llm::Reply::from_text(text).hold(5, &gate));
    provider.enqueue(mock_llm::Reply::from_text(text));
    let deployment =
        Deployment::new().with_provider(&provider).with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let stream = engine.execute("task", "Tell me.").await;
    // No client admits or starts the engine after its death.
    crate::support::engine_fixture::wait_gate_reached(&gate).await;
    let process = deployment.kill_engine(&engine);
    drop(stream);
    provider.wait_for_requests(2).await;
    let restarted_process = wait_until_back(&deployment, &product, (&engine, process)).await;
    let events = product.engine("ada").await.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), text);
    assert_eq!(deployment.process_of(&engine), Some(restarted_process));
}
