//! Story 35 (lesson o05): a Docker daemon that is down or hangs proves nothing about an engine. Calls that need
//! the daemon fail in time, others are not affected, and when it is back the state of the engines is read again.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::schema::ENGINE_RECORD;
use crate::support::{
    Deployment, DockerDaemon, Engine, LiveRestore, Product, assert_within, eventually, processes,
};

/// A deployment with a daemon of its own whose engines are checked very often.
fn frequently_checked_deployment(daemon: &DockerDaemon) -> Deployment {
    Deployment::with_docker(&daemon.docker)
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.5")
        .with_env("ORCH_RESTART_BACKOFF_MAX_S", "2")
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.3")
        .with_env("ORCH_HEALTH_CHECK_TIMEOUT_S", "0.7")
        .with_env("ORCH_BOOT_TIMEOUT_S", "30")
}

/// Asserts that every call that needs the daemon is refused in time, and that none of them changes anything.
async fn assert_unavailable(product: &Product) {
    let start = Instant::now();
    let states = async || {
        let mut states = Vec::new();
        for user in ["ada", "bob"] {
            states.push(product.status(user).await);
        }
        states
    };
    let before = states().await;
    // Concurrently: a call that hangs does not delay the others.
    let (stopped, started, deleted, provisioned) = futures::join!(
        product.stop("ada"),
        product.start("bob"),
        product.delete("bob"),
        product.provision("eve")
    );
    for answer in [stopped, started, deleted, provisioned] {
        answer.assert_error(502, "BACKEND_ERROR");
    }
    assert!(start.elapsed() < Duration::from_secs(75), "it took {:?}", start.elapsed());
    assert_eq!(states().await, before, "nothing has changed");
    product.get("eve").await.assert_error(404, "ENGINE_NOT_FOUND");
    // Calls that do not need the daemon work.
    assert_eq!(product.list("").await.1, 2);
    let admitted = product.admit_existing("ada").await.assert_ok("admitted:bool engine:object");
    assert_eq!(admitted["engine"]["status"], "running");
}

/// The time of the last successful health check of ada's engine.
async fn last_check(product: &Product) -> Value {
    product.get("ada").await.assert_ok(ENGINE_RECORD)["last_health_at"].clone()
}

/// Waits until ada's engine has failed more checks in a row than would be tolerated if they counted.
async fn wait_for_failed_checks(product: &Product) {
    // Three checks take two seconds, and the last successful one is stored a second later.
    let (mut last, mut since) = (last_check(product).await, Instant::now());
    eventually("no check succeeds any more", async || {
        let now = last_check(product).await;
        if now != last {
            (last, since) = (now, Instant::now());
        }
        (since.elapsed() > Duration::from_secs(5)).then_some(())
    })
    .await;
}

/// The audit rows of state changes that no caller requested.
async fn unrequested_transitions(product: &Product) -> Vec<(String, Value)> {
    let mut rows = Vec::new();
    for event in ["crash", "restart", "destroy", "sleep"] {
        rows.extend(product.audit_rows(event).await);
    }
    rows
}

/// Creates ada's running engine and bob's stopped one; returns ada's and its messages.
async fn two_engines(product: &Product) -> (Engine, Vec<Value>) {
    product.engine("bob").await;
    product.stop("bob").await.assert_ok("status:text");
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    (engine, messages)
}

#[tokio::test]
async fn regression_o05_a_daemon_that_hangs_harms_no_engine_and_holds_up_nobody() {
    let Some(daemon) = DockerDaemon::start(LiveRestore::Yes).await else { return };
    let deployment = frequently_checked_deployment(&daemon);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let (engine, messages) = two_engines(&product).await;
    let process = deployment.process_of(&engine);
    daemon.pause();
    assert_unavailable(&product).await;
    let last = last_check(&product).await;
    eventually("health checks continue", async || (last_check(&product).await != last).then_some(())).await;
    assert_eq!(engine.messages("task").await, messages);
    assert_eq!(unrequested_transitions(&product).await, []);
    daemon.resume();
    // The operations requested in the meantime do not happen after all, or are repaired.
    assert_eq!(product.status("ada").await, "running");
    eventually("engines can be operated again", async || {
        (product.start("bob").await.status == 200 || product.status("bob").await == "running").then_some(())
    })
    .await;
    product.wait_for_status("ada", "running").await;
    let again = product.engine("ada").await;
    assert_eq!(again.messages("task").await, messages);
    if unrequested_transitions(&product).await.is_empty() {
        assert_eq!(deployment.process_of(&engine), process);
    }
    product.stop("ada").await.assert_ok("status:text");
    product.provision("eve").await.assert_ok(crate::support::schema::PROVISIONED);
}

#[tokio::test]
async fn regression_o05_engines_outlive_a_daemon_that_is_stopped_and_started_again() {
    let Some(mut daemon) = DockerDaemon::start(LiveRestore::Yes).await else { return };
    let deployment = frequently_checked_deployment(&daemon);
    let (orchestrator, product) = deployment.start_with_product().await;
    let (engine, messages) = two_engines(&product).await;
    let (process, container) = (deployment.process_of(&engine), deployment.container_of(&engine).await);
    assert!(process.is_some());
    daemon.stop();
    assert_unavailable(&product).await;
    // The engine keeps running, behind a port that Docker's own forwarder no longer serves.
    assert_eq!(deployment.process_of(&engine), process);
    wait_for_failed_checks(&product).await;
    assert_eq!(
        (product.status("ada").await.as_str(), unrequested_transitions(&product).await),
        ("running", vec![])
    );

    // An orchestrator that starts meanwhile becomes ready and keeps its state.
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    let _orchestrator = deployment.start().await;
    assert_unavailable(&product).await;
    assert_eq!(
        (product.status("ada").await.as_str(), unrequested_transitions(&product).await),
        ("running", vec![])
    );

    daemon.launch().await;
    eventually("engines can be operated again", async || {
        (product.start("bob").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(deployment.process_of(&engine), process, "the engine has noticed nothing");
    assert_eq!(deployment.container_of(&engine).await, container);
    assert_eq!(product.engine("ada").await.messages("task").await, messages);
    assert_eq!(unrequested_transitions(&product).await, []);
}

#[tokio::test]
async fn regression_o05_ends_are_told_of_again_when_the_daemon_is_back() {
    let Some(mut daemon) = DockerDaemon::start(LiveRestore::Yes).await else { return };
    // Health checks are too rare to notice anything.
    let deployment = Deployment::with_docker(&daemon.docker)
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "600")
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.5");
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    for (number, crash) in [false, true].into_iter().enumerate() {
        if crash {
            daemon.crash();
        } else {
            daemon.stop();
        }
        daemon.launch().await;
        let container = deployment.container_of(&engine).await.expect("it outlived the daemon");
        let start = Instant::now();
        daemon.docker.run(&["kill", &container]).await;
        eventually("it is noticed", async || {
            (product.audit_rows("crash").await.len() > number).then_some(())
        })
        .await;
        assert_within("it is noticed", start.elapsed(), 0.0..20.0);
        product.wait_for_status("ada", "running").await;
        assert_eq!(product.audit_rows("crash").await[number].1["cause"], "exit");
    }
    // An exit that was never reported is noticed too: the daemon was down when it happened.
    let process = deployment.process_of(&engine).unwrap();
    daemon.stop();
    processes::kill(process);
    daemon.launch().await;
    eventually("it is noticed", async || (product.audit_rows("crash").await.len() == 3).then_some(())).await;
    product.wait_for_status("ada", "running").await;
    product.engine("ada").await.health().await;
}

#[tokio::test]
async fn regression_o05_engines_that_a_daemon_takes_along_are_brought_back_when_it_is_there_again() {
    let Some(mut daemon) = DockerDaemon::start(LiveRestore::No).await else { return };
    let deployment = frequently_checked_deployment(&daemon);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let (engine, messages) = two_engines(&product).await;
    for crash in [false, true] {
        let before = deployment.process_of(&engine);
        let (crashes, container) =
            (product.audit_rows("crash").await.len(), deployment.container_of(&engine).await);
        if crash {
            daemon.crash();
            assert_eq!(deployment.process_of(&engine), before, "the engine outlives its daemon");
        } else {
            // The daemon stops its containers and does not report it.
            daemon.stop();
            assert_eq!(deployment.process_of(&engine), None);
        }
        wait_for_failed_checks(&product).await;
        let reported = product.audit_rows("crash").await.len() - crashes;
        // An exit that the daemon reported before it went down is known.
        if reported == 0 {
            assert_eq!(product.status("ada").await, "running", "a silent daemon is no failure of the engine");
            assert_unavailable(&product).await;
        }
        assert_eq!(
            product.audit_rows("restart").await.len(),
            crashes,
            "nothing is restarted without a daemon"
        );

        // Then the state is read again: at its start the daemon removes the containers that survived it.
        daemon.launch().await;
        eventually("the engine is back", async || {
            let now = deployment.container_of(&engine).await;
            (now.is_some() && now != container && product.status("ada").await == "running").then_some(())
        })
        .await;
        assert_eq!(product.audit_rows("crash").await.len(), crashes + 1);
        assert_eq!(product.engine("ada").await.messages("task").await, messages);
        assert_eq!(product.status("bob").await, "stopped");
    }
    assert!(product.audit_rows("destroy").await.is_empty());
    let states = [json!("running"), json!("stopped")];
    let (engines, _) = product.list("").await;
    assert!(engines.iter().all(|engine| states.contains(&engine["status"])), "{engines:?}");
}
