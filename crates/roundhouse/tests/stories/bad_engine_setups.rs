//! Story 8, for the engine alone: configurations that it refuses to start with, and those with which it starts but
//! reports a fault.

use std::collections::BTreeMap;
use std::fs;

use rusqlite::Connection;
use rustix::process::Signal;

use crate::support::turn::{assert_completed, assert_errored};
use crate::support::{StandaloneEngine, TestEnv};

#[tokio::test]
async fn all_missing_variables_of_an_engine_are_named_at_once() {
    let home = TestEnv::new();
    let exit = home.run(&["engine"], &BTreeMap::new()).wait().await;
    exit.assert_failure(2, &["ENGINE_KEY_HASH", "SQLITE_DB_PATH", "CATALOG_DIR"]);
}

#[tokio::test]
async fn a_malformed_key_hash_is_refused_without_being_shown() {
    let hash = "A1b2".repeat(16);
    let output = StandaloneEngine::new()
        .with_env("ENGINE_KEY_HASH", &hash)
        .launch()
        .wait()
        .await
        .assert_failure(2, &["ENGINE_KEY_HASH"]);
    assert!(!output.contains(&hash), "{output}");
}

#[tokio::test]
async fn a_second_engine_on_one_brain_is_refused_and_disturbs_nothing() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    assert_completed(&engine.execute("task", "Hello!").await.collect().await);

    let mut variables = setup.variables.clone();
    variables.insert("ENGINE_PORT".to_owned(), (setup.test_env.ports.first() + 1).to_string());
    let exit = setup.test_env.run(&["engine"], &variables).wait().await;
    assert_ne!(exit.code, Some(0), "{}", exit.output);
    assert_ne!(exit.code, None, "{}", exit.output);
    assert!(exit.output.contains(setup.brain().to_str().unwrap()), "{}", exit.output);
    assert_completed(&engine.execute("task", "Hello again!").await.collect().await);
}

#[tokio::test]
async fn a_brain_full_of_garbage_is_named_and_left_alone() {
    let setup = StandaloneEngine::new();
    let garbage = b"no database ".repeat(1_000);
    fs::write(setup.brain(), &garbage).unwrap();
    let exit = setup.launch().wait().await;
    assert!(exit.code.is_some_and(|code| code != 0), "{exit:?}");
    assert!(exit.output.contains(setup.brain().to_str().unwrap()), "{}", exit.output);
    assert!(fs::read(setup.brain()).unwrap() == garbage, "the unreadable file was changed");
}

#[tokio::test]
async fn a_brain_of_a_later_version_is_named_and_left_alone() {
    let setup = StandaloneEngine::new();
    let (program, engine) = setup.start().await;
    assert_completed(&engine.execute("task", "Hello!").await.collect().await);
    program.signal_and_wait(Signal::TERM).await.assert_success();
    let brain = Connection::open(setup.brain()).unwrap();
    let version: i64 = brain.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    brain.pragma_update(None, "user_version", 9_999).unwrap();

    let exit = setup.launch().wait().await;
    assert!(exit.code.is_some_and(|code| code != 0), "{exit:?}");
    assert!(exit.output.contains("9999"), "{}", exit.output);
    let found: i64 = brain.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(found, 9_999);

    brain.pragma_update(None, "user_version", version).unwrap();
    drop(brain);
    let (_program, engine) = setup.start().await;
    assert_completed(&engine.replay("task", 0).await.collect().await);
}

#[tokio::test]
async fn a_port_in_use_ends_the_engine_with_its_name() {
    let setup = StandaloneEngine::new();
    let _holder = std::net::TcpListener::bind(("127.0.0.1", setup.test_env.ports.first())).unwrap();
    let exit = setup.launch().wait().await;
    assert!(exit.code.is_some_and(|code| code != 0), "{exit:?}");
    assert!(exit.output.contains(&setup.test_env.ports.first().to_string()), "{}", exit.output);
}

/// Asserts that an engine that cannot use its provider still serves requests, and reports the reason in its health
/// and in every turn.
async fn assert_degraded(setup: StandaloneEngine, reason: &str) {
    let (_program, engine) = setup.start().await;
    let health = engine.health().await;
    assert_eq!(health["status"], "degraded", "{health}");
    assert_eq!(
        (&health["subsystems"]["database"], &health["subsystems"]["asset_directory"]),
        (&"ok".into(), &"ok".into())
    );
    let reported = health["subsystems"]["llm_provider"].as_str().unwrap();
    assert!(reported.contains(reason), "{health}");

    for task in ["one", "one", "two"] {
        let events = engine.execute(task, "Hello!").await.collect().await;
        let error = assert_errored(&events);
        assert_eq!(error["code"], "PROVIDER_NOT_CONFIGURED", "{error}");
        assert!(
            error["message"].as_str().unwrap().contains(reported),
            "health says {reported:?}, the turn {error}"
        );
        assert_eq!(error["retryable"], false, "nothing changes until it is configured: {error}");
        assert_eq!(engine.replay(task, events[0].ts() - 1).await.collect().await, events);
    }
}

#[tokio::test]
async fn an_engine_with_an_unknown_provider_starts_and_says_so() {
    assert_degraded(StandaloneEngine::new().with_env("LLM_PROVIDER", "oracle"), "oracle").await;
}

#[tokio::test]
async fn an_engine_without_its_provider_key_starts_and_says_so() {
    assert_degraded(StandaloneEngine::new().with_env("LLM_PROVIDER", "anthropic"), "ANTHROPIC_API_KEY").await;
    assert_degraded(StandaloneEngine::new().with_env("LLM_PROVIDER", "openai"), "OPENAI_API_KEY").await;
}

#[tokio::test]
async fn an_engine_ends_well_at_sigterm_and_keeps_its_brain() {
    let setup = StandaloneEngine::new();
    let (program, engine) = setup.start().await;
    let events = engine.execute("task", "Hello!").await.collect().await;
    program.signal_and_wait(Signal::TERM).await.assert_success();
    let (_program, engine) = setup.start().await;
    assert_eq!(engine.replay("task", 0).await.collect().await, events);
}
