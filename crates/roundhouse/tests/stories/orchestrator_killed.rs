//! Story 3: a SIGKILL of the orchestrator affects no engine.

use mock_llm::{Gate, MockProvider, Reply};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use crate::support::turn::{assert_complete_turn, assert_completed};
use crate::support::{Fleet, eventually, processes, with_deadline};

#[tokio::test]
async fn a_stream_outlives_the_orchestrator_and_its_engine_is_adopted() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    let text = "The answer is longer than the orchestrator's life.";
    provider.enqueue(Reply::from_text(text).chars_per_delta(5).hold(4, &gate));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    let process = fleet.engine_process();

    let body = json!({"task_id": "task", "message": "Tell me.", "direct": true});
    let mut stream = engine.execute_with(&body).await;
    let watcher = engine.replay("task", 0).await;
    stream.read_until("the first delta", |event| event.kind == "text_delta").await;
    with_deadline("the provider holds the answer", gate.reached()).await;
    assert_eq!(up.signal_and_wait(Signal::KILL).await.code, None);
    assert_eq!(fleet.engine_process(), process, "the engine keeps running");

    let up = fleet.start_up().await;
    let product = up.product();
    let adopted = product.engine("ada").await;
    assert_eq!((&adopted.id, &adopted.url, &adopted.key), (&engine.id, &engine.url, &engine.key));
    assert_eq!(fleet.engine_process(), process, "it was adopted, not restarted");

    gate.release();
    let events = stream.collect().await;
    assert_eq!(assert_completed(&events), text);
    assert_eq!(watcher.collect().await, events);
    assert_eq!(adopted.replay("task", 0).await.collect().await, events);
    for event in ["start", "wake", "sleep", "crash", "restart"] {
        assert_eq!(fleet.audit_rows(event), [], "{event}: nothing happened to the engine");
    }

    // The adopted engine can be stopped and started.
    product.stop("ada").await.assert_ok("status:text");
    assert!(!processes::is_alive(process));
    product.start("ada").await.assert_ok("status:text url:url");
    assert_ne!(fleet.engine_process(), process);
}

#[tokio::test]
async fn an_engine_that_died_while_the_orchestrator_was_dead_is_no_longer_running() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    up.product().engine("ada").await;
    up.signal_and_wait(Signal::KILL).await;
    processes::kill(fleet.engine_process());

    let up = fleet.start_up().await;
    let product = up.product();
    eventually("the engine is failed", async || (product.status("ada").await == "failed").then_some(()))
        .await;
    product.start("ada").await.assert_ok("status:text url:url");
    product.engine("ada").await.health().await;
    assert_eq!(fleet.engine_processes().len(), 1);
}

#[tokio::test]
async fn a_kill_amid_first_boots_leaves_no_orphan() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let users: Vec<String> = (0..12).map(|number| format!("user-{number}")).collect();
    let calls: Vec<_> = users
        .iter()
        .map(|user| {
            let request = product.request(Method::POST, "/engines/provision");
            tokio::spawn(request.json(&json!({"user_id": user})).send())
        })
        .collect();
    eventually("an engine starts", async || fleet.engine_processes().first().copied()).await;
    up.signal_and_wait(Signal::KILL).await;
    for call in calls {
        call.abort();
    }

    let up = fleet.start_up().await;
    let product = up.product();
    eventually("rows and processes match, all of them settled", async || {
        let (engines, total) = product.list("").await;
        let settled = engines.iter().all(|engine| engine["status"] == "running");
        (settled && fleet.engine_processes().len() as u64 == total).then_some(())
    })
    .await;
    let (engines, _) = product.list("").await;
    let mut rows: Vec<_> =
        engines.iter().map(|engine| engine["engine_id"].as_str().unwrap().to_owned()).collect();
    let folders = std::fs::read_dir(fleet.folder().join("engines")).unwrap();
    let mut folders: Vec<_> =
        folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    rows.sort();
    folders.sort();
    assert_eq!(folders, rows, "no folder of a rolled-back provision is left");
    for user in &users {
        let engine = product.engine(user).await;
        assert_complete_turn(&engine.execute("task", "Hello!").await.collect().await);
    }
}
