//! Story 37: the registry is in PostgreSQL, and everything works as with a SQLite file.

use std::collections::BTreeMap;

use futures::future::join_all;
use mock_llm::{Gate, MockProvider, Reply};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::http::{client, send};
use crate::support::schema::{ENGINE_RECORD, PROVISIONED};
use crate::support::turn::assert_completed;
use crate::support::{Deployment, Product, ProgramExit, eventually, processes};

const NEW_MASTER_KEY: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA";
const OTHER_MASTER_KEY: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCA";
const PASSWORD: &str = "correct-horse-battery";

/// Runs a command of the binary with only these environment variables.
async fn command(deployment: &Deployment, arguments: &[&str], variables: &[(&str, &str)]) -> ProgramExit {
    let variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    deployment.fleet.test_env.run(arguments, &variables).wait().await
}

/// Runs `roundhouse audit verify`.
async fn verify_audit_log(deployment: &Deployment) -> ProgramExit {
    command(deployment, &["audit", "verify"], &[("ORCH_DATABASE_URL", &deployment.database().url())]).await
}

#[tokio::test]
async fn a_fleet_whose_registry_is_in_postgresql_lives_as_with_a_file() {
    let Some(deployment) = Deployment::postgres() else { return };
    let (orchestrator, product) = deployment.start_with_product().await;
    assert_eq!(product.provision("ada").await.assert_ok(PROVISIONED)["status"], "running");
    let engine = product.engine("ada").await;
    assert_eq!(assert_completed(&engine.execute("task", "Is it?").await.collect().await), "So it is.");
    product.provision("ada").await.assert_error(409, "ENGINE_ALREADY_EXISTS");
    let key = product.rotate_key("ada").await.assert_ok("new_api_key:engine-key")["new_api_key"].take();
    product.engine("bob").await;
    product.stop("bob").await.assert_ok("status:text");
    assert!(!deployment.fleet.folder().join("registry.sqlite").exists());
    let process = deployment.process_of(&engine);

    // After a kill and after a clean stop, the next orchestrator has all of the state.
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
    let _orchestrator = deployment.start().await;
    let record = product.get("ada").await.assert_ok(ENGINE_RECORD);
    assert_eq!((&record["status"], &record["api_key"]), (&json!("running"), &key));
    assert_eq!(deployment.process_of(&engine), process, "it was adopted, not restarted");
    assert_eq!(product.status("bob").await, "stopped");
    let metrics = product.call(Method::GET, "/metrics", None).await;
    assert_eq!((&metrics.body["provisions_1h"], &metrics.body["total_provisions"]), (&json!(2), &json!(2)));
    product.delete("bob").await.assert_ok("status:text engine_id:engine");
    let events: Vec<Value> = product.call(Method::GET, "/audit", None).await.assert_ok("rows:array")["rows"]
        .as_array()
        .unwrap()
        .clone();
    let events: Vec<&str> = events.iter().rev().map(|row| row["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["register", "provision", "rotate_key", "provision", "stop", "destroy"]);
    assert!(verify_audit_log(&deployment).await.assert_success().contains(": 6 row(s)"));
}

#[tokio::test]
async fn many_at_once_make_one_engine_and_never_too_many() {
    let Some(deployment) = Deployment::postgres() else { return };
    let orchestrator = deployment.start().await;
    let product = orchestrator.register("shop", json!({"max_engines": 3})).await;
    let same = join_all((0..40).map(|_| product.engine("ada"))).await;
    assert!(same.iter().all(|engine| (&engine.id, &engine.key) == (&same[0].id, &same[0].key)));
    assert_eq!(product.audit_rows("provision").await.len(), 1);
    let users: Vec<String> = (0..20).map(|number| format!("user-{number}")).collect();
    let answers = join_all(users.iter().map(|user| product.provision(user))).await;
    let provisioned = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(provisioned, 2, "{answers:?}");
    for answer in answers.into_iter().filter(|answer| answer.status != 200) {
        answer.assert_error(429, "QUOTA_EXCEEDED");
    }
    assert_eq!(product.list("").await.1, 3);
    verify_audit_log(&deployment).await.assert_success();
}

#[tokio::test]
async fn the_ledger_can_only_grow_and_what_was_changed_is_found() {
    let Some(deployment) = Deployment::postgres() else { return };
    let (orchestrator, product) = deployment.start_with_product().await;
    product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    // The check works while an orchestrator runs.
    assert!(verify_audit_log(&deployment).await.assert_success().contains(": 3 row(s)"));
    let database = deployment.database();
    for statement in [
        "UPDATE audit_log SET at = at + 1",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
        "TRUNCATE products CASCADE",
    ] {
        let error = database.try_query(statement).expect_err(statement);
        assert!(error.contains("append-only"), "{statement}: {error}");
    }
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
    verify_audit_log(&deployment).await.assert_success();
    let tamper = |statement: &str| {
        database.query(&format!(
            "ALTER TABLE audit_log DISABLE TRIGGER USER; {statement}; ALTER TABLE audit_log ENABLE TRIGGER USER"
        ));
    };
    let product_id = database.query("SELECT product_id FROM products");
    tamper("UPDATE audit_log SET at = at + 1 WHERE id = 2");
    verify_audit_log(&deployment)
        .await
        .assert_failure(1, &[&product_id, "row 2 or the row before it was changed", "broken"]);
    tamper("UPDATE audit_log SET at = at - 1 WHERE id = 2");
    verify_audit_log(&deployment).await.assert_success();
    tamper("DELETE FROM audit_log WHERE id = 3");
    verify_audit_log(&deployment).await.assert_failure(1, &[&product_id, "row 3 is missing", "broken"]);
}

#[tokio::test]
async fn after_a_rekey_the_new_key_opens_everything_and_the_old_one_nothing() {
    let Some(deployment) = Deployment::postgres() else { return };
    let (orchestrator, product) = deployment.start_with_product().await;
    let ada = product.engine("ada").await;
    let url = deployment.database().url();
    let rekey = async |old: &str| {
        let variables = [
            ("ORCH_DATABASE_URL", url.as_str()),
            ("ORCH_MASTER_KEY", NEW_MASTER_KEY),
            ("ORCH_MASTER_KEY_OLD", old),
        ];
        command(&deployment, &["rekey"], &variables).await
    };
    // Not while an orchestrator holds the registry.
    let holder = orchestrator.program.pid().as_raw_nonzero().to_string();
    rekey(&deployment.master_key).await.assert_failure(2, &[&deployment.database().name, &holder]);
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
    let output =
        rekey(OTHER_MASTER_KEY).await.assert_failure(2, &["ORCH_MASTER_KEY_OLD", "nothing was changed"]);
    assert!(
        !output.contains(&deployment.master_key)
            && !output.contains(NEW_MASTER_KEY)
            && !output.contains(OTHER_MASTER_KEY),
        "{output}"
    );
    assert!(rekey(&deployment.master_key).await.assert_success().contains("1 engine(s)"));
    assert!(rekey(&deployment.master_key).await.assert_success().contains("already"));
    deployment.launch().program.wait().await.assert_failure(2, &["roundhouse rekey", "ORCH_MASTER_KEY_OLD"]);

    let mut orchestrator = deployment.launch_with("ORCH_MASTER_KEY", NEW_MASTER_KEY);
    orchestrator.wait_ready().await;
    assert_eq!(product.engine("ada").await.key, ada.key);
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    product.engine("ada").await.run_turn("task", "Hello!").await;
}

#[tokio::test]
async fn a_url_that_leads_nowhere_is_named_without_its_password() {
    let Some(deployment) = Deployment::postgres() else { return };
    let unused_port = deployment.fleet.test_env.ports.last();
    let server = deployment.database().url();
    let (scheme, rest) = server.split_once("://").unwrap();
    let host = rest.split('/').next().unwrap().rsplit('@').next().unwrap();
    let user = rest.split(['@', ':']).next().unwrap();
    let absent_database = format!("{}_absent", deployment.database().name);
    // Each URL, and what the error must contain.
    let urls = [
        (
            format!("postgres://ada:{PASSWORD}@127.0.0.1:{unused_port}/registry"),
            format!("127.0.0.1:{unused_port}"),
        ),
        (
            format!("{scheme}://{user}:{PASSWORD}@{host}/{absent_database}"),
            format!("\"{absent_database}\" does not exist"),
        ),
        (format!("postgres://ada:{PASSWORD}@127.0.0.1:no-port/registry"), "ORCH_DATABASE_URL".to_owned()),
        (format!("mysql://ada:{PASSWORD}@127.0.0.1/registry"), "ORCH_DATABASE_URL".to_owned()),
    ];
    for (url, named) in urls {
        let exit = deployment.launch_with("ORCH_DATABASE_URL", &url).program.wait().await;
        assert!(matches!(exit.code, Some(1 | 2)), "{exit:?}");
        assert!(exit.output.contains(&named) && !exit.output.contains(PASSWORD), "no {named:?} in: {exit:?}");
        for arguments in [["audit", "verify"].as_slice(), &["rekey"]] {
            let keys = [("ORCH_MASTER_KEY", NEW_MASTER_KEY), ("ORCH_MASTER_KEY_OLD", OTHER_MASTER_KEY)];
            let variables = [&[("ORCH_DATABASE_URL", url.as_str())], keys.as_slice()].concat();
            let exit = command(&deployment, arguments, &variables).await;
            assert!(exit.code.is_some_and(|code| code != 0), "{arguments:?}: {exit:?}");
            assert!(
                exit.output.contains(&named) && !exit.output.contains(PASSWORD),
                "{arguments:?}: {exit:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_check_of_the_configuration_shows_the_database_and_not_its_password() {
    let Some(deployment) = Deployment::postgres() else { return };
    let mut variables = deployment.fleet.variables.clone();
    let url = format!("postgres://ada:{PASSWORD}@127.0.0.1:5999/registry");
    variables.insert("ORCH_DATABASE_URL".to_owned(), url);
    let arguments = ["orchestrator", "--check", "--offline"];
    let output = deployment.fleet.test_env.run(&arguments, &variables).wait().await.assert_success();
    assert!(
        output.contains("127.0.0.1:5999") && output.contains("registry") && !output.contains(PASSWORD),
        "{output}"
    );
}

#[tokio::test]
async fn a_standby_waits_says_for_whom_and_takes_over() {
    let Some(deployment) = Deployment::postgres() else { return };
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let process = deployment.process_of(&engine);
    let mut standby = deployment.launch_second();
    let holder = orchestrator.program.pid().as_raw_nonzero().to_string();
    let output = standby.program.wait_for_output(&holder).await.expect("it names the holder");
    assert!(!output.contains(&deployment.master_key) && !output.contains(&deployment.admin_key), "{output}");
    let waiting = Product::new(&standby.base, &product.key);
    let answer = waiting.provision("eve").await;
    assert_eq!(answer.header("retry-after"), Some("1"), "{answer:?}");
    answer.assert_error(503, "STARTING_UP");
    product.engine("bob").await;

    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    standby.wait_ready().await;
    assert_eq!(waiting.engine("ada").await.key, engine.key);
    assert_eq!(deployment.process_of(&engine), process, "it was adopted, not restarted");
    waiting.stop("bob").await.assert_ok("status:text");
    // A third one waits in turn, and takes over after a clean stop.
    let mut third = deployment.launch();
    third
        .program
        .wait_for_output(&standby.program.pid().as_raw_nonzero().to_string())
        .await
        .expect("it names the holder");
    standby.signal_and_wait(Signal::TERM).await.assert_success();
    third.wait_ready().await;
    assert_eq!(product.status("bob").await, "stopped");
    assert_eq!(product.audit_rows("provision").await.len(), 2);
}

#[tokio::test]
async fn a_frozen_orchestrator_is_replaced_and_ends_when_it_goes_on() {
    let provider = MockProvider::start().await.unwrap();
    let gate = Gate::new();
    let text = "The answer goes on while the orchestrator does not.";
    provider.enqueue(Reply::from_text(text).chars_per_delta(5).hold(4, &gate));
    let Some(deployment) = Deployment::postgres() else { return };
    let deployment = deployment.with_provider(&provider);
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let process = deployment.process_of(&engine);
    let mut standby = deployment.launch_second();
    let holder = orchestrator.program.pid().as_raw_nonzero().to_string();
    standby.program.wait_for_output(&holder).await.expect("it names the holder");
    let stream = engine.execute_with(&direct_message("task", "Tell me.")).await;
    wait_gate_reached(&gate).await;

    processes::signal(orchestrator.program.pid(), Signal::STOP);
    standby.wait_ready().await;
    let product = Product::new(&standby.base, &product.key);
    assert_eq!(product.engine("ada").await.key, engine.key);
    assert_eq!(deployment.process_of(&engine), process, "it was adopted, not restarted");
    let exit = orchestrator.signal_and_wait(Signal::CONT).await;
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(exit.output.contains("another orchestrator has taken over the registry"), "{exit:?}");
    gate.release();
    assert_eq!(assert_completed(&stream.collect().await), text);
    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(product.audit_rows("stop").await.len(), 1);
}

#[tokio::test]
async fn texts_that_a_database_may_stumble_over_are_kept_or_refused() {
    let Some(deployment) = Deployment::postgres() else { return };
    let (_orchestrator, product) = deployment.start_with_product().await;
    // Listed by creation, whatever the collation of the database.
    let users = ["zoë", "Ada", "ada", "\u{1f980}", "ADA", "ada'; DROP TABLE engines; --", "100%_"];
    for user in users {
        product.engine(user).await;
    }
    let listed: Vec<Value> =
        product.list("").await.0.into_iter().map(|engine| engine["user_id"].clone()).collect();
    assert_eq!(listed, users);
    let rows = product.audit_rows("provision").await;
    assert_eq!(rows.iter().map(|row| row.0.as_str()).collect::<Vec<_>>(), users);
    // PostgreSQL's text type cannot hold a null byte.
    product.provision("nu\0l").await.assert_error(400, "INVALID_REQUEST");
    let register = |body: Value| {
        let request = client().post(format!("{}/products/register", product.base));
        send(request.header("x-admin-key", &deployment.admin_key).json(&body))
    };
    let named = register(json!({"slug": "null", "display_name": "nu\0l"})).await;
    assert!(named.status == 400 || named.body["display_name"] == "nu\0l", "{named:?}");
    let policy = json!({"oauth_redirect_base_url": "https://example.com/\0"});
    let with_policy = register(json!({"slug": "policed", "display_name": "x", "policy": policy})).await;
    assert!([200, 400].contains(&with_policy.status), "{with_policy:?}");
    verify_audit_log(&deployment).await.assert_success();
}

#[tokio::test]
async fn events_are_told_as_they_commit() {
    let Some(deployment) = Deployment::postgres() else { return };
    let (_orchestrator, product) = deployment.start_with_product().await;
    let mut stream = product.request(Method::GET, "/events?after=0").send().await.unwrap();
    product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    let mut received = String::new();
    eventually("all three events are sent", async || {
        received += std::str::from_utf8(&stream.chunk().await.unwrap().expect("the stream goes on")).unwrap();
        (received.contains("event: register") || received.contains("event:register"))
            .then_some(())
            .filter(|()| received.contains("provision") && received.contains("stop"))
    })
    .await;
}
