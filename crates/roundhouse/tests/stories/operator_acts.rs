//! The commands that change something: products, policies, engines, a turn.

use mock_llm::{Gate, MockProvider, Reply};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::command_line::{command, document, start_command};
use crate::support::{Fleet, Product, processes};

#[tokio::test]
async fn a_product_is_registered_and_its_policy_replaced_once_the_difference_was_shown() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let dir = fleet.folder().to_str().unwrap();
    let policy = fleet.test_env.path().join("policy.json");
    let policy = policy.to_str().unwrap();
    std::fs::write(policy, r#"{"max_engines": 1}"#).unwrap();

    let shown = command(&fleet, &["product", "register", "acme", "--policy", policy]).await.assert_success();
    assert!(shown.contains("max_engines 1") && shown.contains("shown only now"), "{shown}");
    let key = shown.split_whitespace().find(|word| word.starts_with("pk-svc-")).unwrap();
    let product = Product::new(&up.base, key);
    product.engine("ada").await;
    let taken = command(&fleet, &["product", "register", "acme"]).await;
    taken.assert_failure(4, &["PRODUCT_SLUG_EXISTS"]);
    let json = command(&fleet, &["product", "register", "other", "--name", "The other", "--json"]).await;
    assert_eq!(document(&json.assert_success())["display_name"], "The other");

    let set = ["product", "policy", "set", "acme"];
    let unasked = command(&fleet, &[&set[..], &[policy]].concat()).await.assert_success();
    assert!(unasked.contains("the same as before"), "{unasked}");
    std::fs::write(policy, r#"{"max_engines": 2, "rate_limit_rpm": 60}"#).unwrap();
    command(&fleet, &[&set[..], &[policy]].concat())
        .await
        .assert_failure(2, &["-   \"max_engines\": 1", "+   \"max_engines\": 2", "--yes"]);
    let line = format!("{} product policy set acme - --yes --dir {dir}", env!("CARGO_BIN_EXE_roundhouse"));
    let program = fleet.test_env.run_shell_with_input(&line, r#"{"rate_limit_rpm": 60}"#);
    let replaced = program.wait().await.assert_success();
    assert!(replaced.contains("in force since") && replaced.contains("rate_limit_rpm 60"), "{replaced}");
    let stored = command(&fleet, &["product", "policy", "get", "acme", "--json"]).await.assert_success();
    assert_eq!(document(&stored), json!({"rate_limit_rpm": 60}));
    std::fs::write(policy, r#"{"max_engine": 2}"#).unwrap();
    command(&fleet, &[&set[..], &[policy, "--yes"]].concat()).await.assert_failure(2, &["max_engine"]);
    std::fs::write(policy, "[").unwrap();
    command(&fleet, &[&set[..], &[policy]].concat()).await.assert_failure(2, &["is not JSON", policy]);
}

#[tokio::test]
async fn an_engine_is_taken_through_its_life() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let user = "ada/日本";
    let run = async |words: &[&str]| command(&fleet, &[&["engine"], words].concat()).await;
    let provisioned = run(&["provision", user]).await.assert_success();
    assert!(provisioned.contains("running at http://"), "{provisioned}");
    run(&["provision", user]).await.assert_failure(4, &["ENGINE_ALREADY_EXISTS"]);
    run(&["start", user]).await.assert_failure(4, &["ENGINE_ALREADY_RUNNING"]);
    let key = |record: &Value| record["api_key"].clone();
    let before = key(&document(&run(&["get", user, "--json"]).await.assert_success()));
    let rotated = run(&["rotate-key", user]).await.assert_success();
    assert!(rotated.contains("a new key") && !rotated.contains("sk-svc-"), "{rotated}");
    assert_ne!(key(&document(&run(&["get", user, "--json"]).await.assert_success())), before);
    run(&["stop", user]).await.assert_success();
    assert_eq!(product.status(user).await, "stopped");
    run(&["stop", user]).await.assert_failure(4, &["ENGINE_NOT_RUNNING"]);
    let started = document(&run(&["start", user, "--json"]).await.assert_success());
    assert_eq!(started["status"], "running");
    run(&["destroy", user]).await.assert_failure(2, &["cannot be undone", "no terminal", "--yes"]);
    assert_eq!(product.status(user).await, "running");
    let destroyed = document(&run(&["destroy", user, "--yes", "--json"]).await.assert_success());
    assert_eq!(destroyed["status"], "destroyed");
    run(&["destroy", user, "--yes"]).await.assert_failure(3, &["ENGINE_NOT_FOUND"]);
}

#[tokio::test]
async fn a_turn_is_shown_as_it_goes_and_cancelled_by_ctrl_c() {
    let provider = MockProvider::start().await.unwrap();
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let exec = |words: &[&str]| -> Vec<String> {
        [&["engine", "exec-turn"], words].concat().into_iter().map(str::to_owned).collect()
    };
    let run = async |words: &[&str]| {
        let words = exec(words);
        command(&fleet, &words.iter().map(String::as_str).collect::<Vec<_>>()).await
    };
    run(&["ada", "hello"]).await.assert_failure(3, &["ENGINE_NOT_FOUND"]);
    up.product().engine("ada").await;
    provider.enqueue(Reply::from_text("Hello\u{1b}[2J Ada."));
    assert_eq!(run(&["ada", "hello"]).await.assert_success(), "Hello\\u{1b}[2J Ada.\n");
    provider.enqueue(Reply::from_text("Again."));
    let events = run(&["ada", "and as JSON", "--json"]).await.assert_success();
    let kinds: Vec<Value> =
        events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].clone()).collect();
    assert!(kinds.contains(&json!("text_delta")) && kinds.last().unwrap() == "thread_lifecycle", "{kinds:?}");

    let gate = Gate::new();
    provider.enqueue(Reply::from_text("one two three four").deltas(4).hold(2, &gate));
    let mut program = start_command(&fleet, &["engine", "exec-turn", "ada", "count"]);
    gate.reached().await;
    program.wait_for_output("one ").await.unwrap();
    processes::signal(program.pid(), Signal::INT);
    program.wait().await.assert_failure(130, &["cancelled"]);
    let question = json!({"question": "Which colour?", "options": ["red", "green"]});
    provider.enqueue(Reply::new().tool_use("ask_user", question));
    run(&["ada", "ask me", "--task", "other"]).await.assert_failure(1, &["Which colour?", "roundhouse chat"]);
}
