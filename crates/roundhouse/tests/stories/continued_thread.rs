//! Story 6: a conversation continues where it was, unless its engine was deleted.

use mock_llm::{MockProvider, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::http::send;
use crate::support::schema::PROVISIONED;
use crate::support::turn::assert_completed;
use crate::support::{Engine, Fleet};

/// Runs a turn of one model call; returns its text.
async fn run_turn_text(engine: &Engine, task: &str, message: &str) -> String {
    let body = json!({"task_id": task, "message": message, "direct": true});
    assert_completed(&engine.execute_with(&body).await.collect().await).to_owned()
}

/// The messages of a request to the model, without cache markers.
fn messages(request: &Value) -> Vec<Value> {
    fn remove_cache_control(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("cache_control");
                fields.values_mut().for_each(remove_cache_control);
            }
            Value::Array(items) => items.iter_mut().for_each(remove_cache_control),
            _ => {}
        }
    }
    let mut messages = request["messages"].clone();
    remove_cache_control(&mut messages);
    messages.as_array().unwrap().clone()
}

#[tokio::test]
async fn a_thread_goes_on_after_stop_and_start() {
    let provider = MockProvider::start().await.unwrap();
    let answers = ["Nice to meet you, Ada.", "Your name is Ada.", "Still Ada."];
    provider.enqueue_all(answers.map(Reply::from_text));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    assert_eq!(run_turn_text(&engine, "task", "My name is Ada.").await, answers[0]);

    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(product.status("ada").await, "stopped");
    let denied = product.admit("ada").await.assert_ok("admitted:bool engine:null reason:text");
    assert_eq!((&denied["admitted"], &denied["reason"]), (&json!(false), &json!("engine_stopped")));
    product.stop("ada").await.assert_error(409, "ENGINE_NOT_RUNNING");
    assert_eq!(product.start("ada").await.assert_ok("status:text url:url")["status"], "running");
    product.start("ada").await.assert_error(409, "ENGINE_ALREADY_RUNNING");

    let again = product.engine("ada").await;
    assert_eq!((&again.id, &again.key), (&engine.id, &engine.key));
    assert_eq!(run_turn_text(&again, "task", "What is my name?").await, answers[1]);
    up.signal_and_wait(rustix::process::Signal::TERM).await.assert_success();
    let up = fleet.start_up().await;
    let again = up.product().engine("ada").await;
    assert_eq!(run_turn_text(&again, "task", "And now?").await, answers[2]);

    let requests: Vec<Value> = provider.requests().into_iter().map(|request| request.body).collect();
    assert_eq!(requests.len(), 3);
    let second = requests[1]["messages"].to_string();
    assert!(second.contains("My name is Ada.") && second.contains(answers[0]), "{second}");
    for pair in requests.windows(2) {
        let (before, after) = (messages(&pair[0]), messages(&pair[1]));
        assert_eq!(after[..before.len()], before, "each request has the one before as a prefix");
        assert_eq!((&pair[0]["system"], &pair[0]["tools"]), (&pair[1]["system"], &pair[1]["tools"]));
    }
}

#[tokio::test]
async fn another_task_begins_anew_and_is_told_what_is_remembered() {
    let provider = MockProvider::start().await.unwrap();
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    run_turn_text(&engine, "one", "The word is quicksilver.").await;
    run_turn_text(&engine, "two", "What is the word?").await;
    run_turn_text(&engine, "three", "How is the weather?").await;
    let requests: Vec<Value> = provider.requests().into_iter().map(|request| request.body).collect();
    let sent = messages(&requests[1]);
    assert_eq!(sent.len(), 1, "tasks share no conversation: {sent:?}");
    assert!(sent[0].to_string().contains("quicksilver"), "{sent:?}");
    // Memory that is not relevant is not sent.
    assert!(!requests[2].to_string().contains("quicksilver"), "{}", requests[2]);
}

#[tokio::test]
async fn a_deleted_engine_comes_back_empty() {
    let provider = MockProvider::start().await.unwrap();
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    run_turn_text(&engine, "task", "The word is quicksilver.").await;
    let folder = fleet.engine_folder(&engine.id);
    assert!(folder.join("brain.sqlite").exists());

    let destroyed = product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert_eq!((&destroyed["status"], &destroyed["engine_id"]), (&json!("destroyed"), &json!(engine.id)));
    assert!(!folder.exists(), "the data is removed");
    assert_eq!(fleet.engine_processes(), []);
    product.delete("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
    product.get("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
    product.start("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
    product.stop("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
    assert_eq!(product.list("").await, (Vec::new(), 0));

    let provisioned = product.provision("ada").await.assert_ok(PROVISIONED);
    let fresh = Engine::new(&provisioned);
    assert_ne!(fresh.id, engine.id);
    assert_ne!(fresh.key, engine.key);
    send(fresh.request(Method::GET, "/execute/replay?task_id=task"))
        .await
        .assert_error(404, "TASK_NOT_FOUND");
    run_turn_text(&fresh, "task", "What is the word?").await;
    assert!(!provider.requests().last().unwrap().body.to_string().contains("quicksilver"));
    // The deleted engine's key does not work for the new one.
    let mut stale = fresh;
    stale.key = engine.key;
    send(stale.request(Method::GET, "/execute/replay")).await.assert_error(401, "INVALID_ENGINE_KEY");
}

#[tokio::test]
async fn a_stopped_engine_can_be_deleted() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let engine = product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert!(!fleet.engine_folder(&engine.id).exists());
    assert_eq!(fleet.audit_rows("destroy").len(), 1);
}
