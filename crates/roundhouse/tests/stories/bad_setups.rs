//! Story 8: a setup that cannot work is reported, ends the program with the right exit code, and loses no data.
//! This file covers `up` and its folder; `bad_engine_setups` covers the engine.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::Signal;

use crate::support::turn::assert_completed;
use crate::support::{Fleet, TestEnv, processes};

/// A deployment with one engine that has run a turn and was put to sleep.
async fn used_fleet() -> Fleet {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    assert_completed(&engine.execute("task", "Hello!").await.collect().await);
    up.signal_and_wait(Signal::TERM).await.assert_success();
    fleet
}

/// Asserts that the deployment works and has kept its data.
async fn assert_nothing_lost(fleet: &Fleet) {
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    assert_completed(&engine.replay("task", 0).await.collect().await);
    assert_eq!(fleet.audit_rows("provision").len(), 1);
    up.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn a_port_in_use_is_named_with_its_holder() {
    let fleet = used_fleet().await;
    let holder = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = holder.local_addr().unwrap().port().to_string();
    let mut program = {
        let mut variables = fleet.variables.clone();
        variables.insert("ORCH_PORT".to_owned(), port.clone());
        fleet.test_env.run(&["up", "--dir", fleet.folder().to_str().unwrap()], &variables)
    };
    let exit = program.wait_for_output("Ctrl-C").await.expect_err("the port is in use");
    let own = std::process::id().to_string();
    exit.assert_failure(2, &[&port, &own]);
    drop(holder);
    assert_nothing_lost(&fleet).await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_made_is_named() {
    let fleet = Fleet::in_folder("file/fleet");
    let file = fleet.test_env.path().join("file");
    fs::write(&file, "kept").unwrap();
    for folder in [fleet.folder().to_str().unwrap(), file.to_str().unwrap()] {
        let exit = fleet.test_env.run(&["up", "--dir", folder], &fleet.variables).wait().await;
        let output = exit.assert_failure(2, &[folder, "must be a folder", "--dir"]);
        assert!(!output.contains("gateway.json"), "{output}");
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "kept");
}

#[tokio::test]
async fn a_second_up_on_the_same_folder_is_refused_and_disturbs_nothing() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    let process = fleet.engine_process();

    let exit = fleet.run_failing_up().await;
    let holder = up.program.pid().as_raw_nonzero().to_string();
    exit.assert_failure(2, &[fleet.folder().to_str().unwrap(), &holder]);
    assert_eq!(fleet.engine_process(), process);
    assert_eq!(up.product().engine("ada").await.url, engine.url);
}

#[tokio::test]
async fn a_missing_master_key_is_not_replaced_by_a_new_one() {
    let fleet = used_fleet().await;
    let (file, aside) = (fleet.folder().join("master.key"), fleet.test_env.path().join("aside"));
    fs::rename(&file, &aside).unwrap();
    fleet.run_failing_up().await.assert_failure(2, &["master.key"]);
    assert!(!file.exists(), "a new key would make the old engine keys unreadable for good");
    fs::rename(&aside, &file).unwrap();
    assert_nothing_lost(&fleet).await;
}

#[tokio::test]
async fn another_master_key_is_refused_with_the_way_out() {
    let fleet = used_fleet().await;
    let file = fleet.folder().join("master.key");
    let right = fs::read_to_string(&file).unwrap();
    let wrong = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo".to_owned();
    fs::write(&file, &wrong).unwrap();
    let output = fleet.run_failing_up().await.assert_failure(2, &["MASTER_KEY", "roundhouse rekey"]);
    assert!(!output.contains(&wrong) && !output.contains(right.trim()), "a key is shown: {output}");
    fs::write(&file, right).unwrap();
    assert_nothing_lost(&fleet).await;
}

#[tokio::test]
async fn a_registry_full_of_garbage_is_named_at_once_and_left_alone() {
    let fleet = used_fleet().await;
    let file = fleet.folder().join("registry.sqlite");
    let right = fs::read(&file).unwrap();
    let garbage = b"no database ".repeat(1_000);
    fs::write(&file, &garbage).unwrap();
    let start = Instant::now();
    let output = fleet.run_failing_up().await.assert_failure(2, &[file.to_str().unwrap()]);
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}: {output}", start.elapsed());
    assert!(output.contains("database"), "the error is not explained: {output}");
    assert!(fs::read(&file).unwrap() == garbage, "the unreadable file was changed");
    fs::write(&file, right).unwrap();
    assert_nothing_lost(&fleet).await;
}

#[tokio::test]
async fn a_registry_of_a_later_version_is_left_alone() {
    let fleet = used_fleet().await;
    let file = fleet.folder().join("registry.sqlite");
    let set_version = |version: &str| {
        let registry = Connection::open(&file).unwrap();
        registry.execute("UPDATE meta SET value = ?1 WHERE name = 'schema_version'", [version]).unwrap()
    };
    let version = {
        let registry = Connection::open(&file).unwrap();
        let query = "SELECT value FROM meta WHERE name = 'schema_version'";
        registry.query_row(query, [], |row| row.get::<_, String>(0)).unwrap()
    };
    assert_eq!(set_version("999"), 1);
    fleet.run_failing_up().await.assert_failure(2, &[file.to_str().unwrap(), "later version", "999"]);
    set_version(&version);
    assert_nothing_lost(&fleet).await;
}

#[tokio::test]
async fn an_unknown_provider_is_named_with_those_that_exist() {
    let fleet = Fleet::new().with_env("LLM_PROVIDER", "oracle");
    let exit = fleet.run_failing_up().await;
    exit.assert_failure(2, &["LLM_PROVIDER", "oracle", "anthropic", "openai", "scripted"]);
}

#[tokio::test]
async fn a_missing_provider_key_is_named() {
    for (provider, variable) in [("anthropic", "ANTHROPIC_API_KEY"), ("openai", "OPENAI_API_KEY")] {
        let fleet = Fleet::new().with_env("LLM_PROVIDER", provider);
        fleet.run_failing_up().await.assert_failure(2, &[variable]);
    }
}

#[tokio::test]
async fn a_compatible_provider_needs_an_address() {
    let fleet = Fleet::new().with_env("LLM_PROVIDER", "openai-compatible").with_env("LLM_API_KEY", "key");
    let output = fleet.run_failing_up().await.assert_failure(2, &["LLM_BASE_URL"]);
    assert!(!output.contains("`key`"), "a secret is shown: {output}");
}

#[tokio::test]
async fn all_faults_of_a_configuration_are_named_at_once() {
    let fleet = Fleet::new()
        .with_env("ORCH_PORT", "door")
        .with_env("ORCH_PORT_MIN", "low")
        .with_env("ORCH_PORT_MAX", "70000");
    let output =
        fleet.run_failing_up().await.assert_failure(2, &["ORCH_PORT_MIN", "low", "ORCH_PORT_MAX", "70000"]);
    assert!(output.contains("ORCH_PORT ") && output.contains("door"), "{output}");
}

#[tokio::test]
async fn faults_of_the_provider_are_named_with_the_others() {
    let fleet = Fleet::new().with_env("ORCH_PORT_MIN", "low").with_env("LLM_PROVIDER", "oracle");
    fleet.run_failing_up().await.assert_failure(2, &["ORCH_PORT_MIN", "low", "LLM_PROVIDER", "oracle"]);
}

#[tokio::test]
async fn all_missing_variables_of_an_orchestrator_are_named_at_once() {
    let home = TestEnv::new();
    let exit = home.run(&["orchestrator"], &BTreeMap::new()).wait().await;
    exit.assert_failure(2, &["ORCH_DATABASE_URL", "ORCH_MASTER_KEY", "ORCH_ADMIN_KEY", "ORCH_ENGINE_IMAGE"]);
}

#[tokio::test]
async fn a_brain_of_a_later_version_keeps_its_engine_down_and_is_left_alone() {
    let fleet = used_fleet().await;
    let up = fleet.start_up().await;
    let product = up.product();
    let (engines, _) = product.list("").await;
    let folder = fleet.engine_folder(engines[0]["engine_id"].as_str().unwrap());
    let brain = folder.join("brain.sqlite");
    let version = |to: Option<i64>| -> i64 {
        let brain = Connection::open(&brain).unwrap();
        let before = brain.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
        if let Some(version) = to {
            brain.pragma_update(None, "user_version", version).unwrap();
        }
        before
    };
    let right = version(Some(9_999));

    let answer = product.start("ada").await;
    assert!(answer.status >= 500, "{answer:?}");
    assert_ne!(product.status("ada").await, "running");
    let log = fs::read_to_string(folder.join("engine.log")).unwrap();
    assert!(log.contains("9999") || log.contains("later version"), "the log does not say why: {log}");
    assert_eq!(version(None), 9_999, "the brain was not changed");
    assert_eq!(fleet.engine_processes(), []);

    version(Some(right));
    product.start("ada").await.assert_ok("status:text url:url");
    assert_completed(&product.engine("ada").await.replay("task", 0).await.collect().await);
}

#[tokio::test]
async fn a_port_that_something_else_holds_is_skipped() {
    let fleet = Fleet::new();
    let first: u16 = fleet.test_env.ports.first();
    let _holders: Vec<TcpListener> =
        (first..first + 3).filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).collect();
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    let port: u16 = engine.url.rsplit(':').next().unwrap().parse().unwrap();
    assert!(port >= first + 3 && port <= fleet.test_env.ports.last(), "{port}");
    assert_completed(&engine.execute("task", "Hello!").await.collect().await);
}

#[tokio::test]
async fn with_no_free_port_provision_says_so_and_leaves_nothing() {
    let fleet = Fleet::new();
    let last = fleet.test_env.ports.first() + 1;
    let fleet = fleet.with_env("ORCH_PORT_MAX", last.to_string());
    let up = fleet.start_up().await;
    let product = up.product();
    product.engine("one").await;
    product.engine("two").await;
    product.provision("three").await.assert_error(503, "PORT_EXHAUSTION");
    product.admit("three").await.assert_error(503, "PORT_EXHAUSTION");
    assert_eq!(product.list("").await.1, 2);
    assert_eq!(fs::read_dir(fleet.folder().join("engines")).unwrap().count(), 2);

    // A stopped engine's port may be given to another engine, and then its address is gone.
    product.stop("one").await.assert_ok("status:text");
    product.engine("three").await;
    assert_eq!(product.get("one").await.body["url"], serde_json::Value::Null);
    product.start("one").await.assert_error(503, "PORT_EXHAUSTION");
    assert_eq!(processes::engines_in(fleet.folder()).len(), 2);
}
