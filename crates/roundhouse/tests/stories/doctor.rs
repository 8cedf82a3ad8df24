//! `roundhouse doctor`: the operator looks for problems.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Signal;

use serde_json::Value;

use crate::support::{Deployment, Fleet, ProgramExit, TestEnv};

/// What depends on the machine that runs the tests: its disk may be nearly full, its kernel older.
const OF_THE_MACHINE: [&str; 3] = ["disks", "certificates", "sandbox"];

/// The checks of a report in JSON, whose exit code says whether anything was found.
fn checks(exit: &ProgramExit) -> Vec<Value> {
    let line = exit.output.lines().next().unwrap();
    let report: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}", exit.output));
    let checks = report["checks"].as_array().unwrap().clone();
    let has_found = checks.iter().any(|check| check["outcome"] == "found");
    assert_eq!(exit.code, Some(i32::from(has_found)), "{}", exit.output);
    checks
}

/// The problems that were found, but for those of the machine.
fn problems(checks: &[Value]) -> Vec<String> {
    let of_deployment =
        checks.iter().filter(|check| !OF_THE_MACHINE.contains(&check["subject"].as_str().unwrap()));
    let found = of_deployment.filter_map(|check| check["problems"].as_array());
    found.flatten().map(|problem| problem.as_str().unwrap().to_owned()).collect()
}

/// The problems of a fleet that was started by `roundhouse up`.
async fn doctor(fleet: &Fleet, backend: &str) -> Vec<String> {
    let variables = [
        ("ORCH_DATABASE_URL", format!("sqlite:{}", fleet.folder().join("registry.sqlite").display())),
        ("ORCH_DATA_ROOT_PATH", fleet.folder().join("engines").display().to_string()),
        ("ORCH_BACKEND", backend.to_owned()),
    ];
    let variables: BTreeMap<_, _> =
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    problems(&checks(&fleet.test_env.run(&["doctor", "--json"], &variables).wait().await))
}

/// Asserts that there is one problem, which is described by these words.
#[track_caller]
fn assert_names(problems: &[String], words: &[&str]) {
    let [problem] = problems else { panic!("not one problem: {problems:?}") };
    for word in words {
        assert!(problem.contains(word), "no {word:?} in: {problem}");
    }
}

#[tokio::test]
async fn a_folder_that_belongs_to_no_engine_is_named_and_left_alone() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    up.product().engine("ada").await;
    assert_eq!(doctor(&fleet, "process").await, [""; 0]);

    let stray = fleet.folder().join("engines/eng_0123456789abcdef0123456789abcdef");
    fs::create_dir(&stray).unwrap();
    fs::write(stray.join("brain.sqlite"), "somebody's").unwrap();
    // A folder whose name is no engine id is ignored.
    fs::create_dir(fleet.folder().join("engines/lost+found")).unwrap();
    assert_names(&doctor(&fleet, "process").await, &[stray.to_str().unwrap(), "belongs to no engine"]);
    up.signal_and_wait(Signal::TERM).await.assert_success();
    assert_names(&doctor(&fleet, "process").await, &[stray.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(stray.join("brain.sqlite")).unwrap(), "somebody's");
    fs::remove_dir_all(&stray).unwrap();
    assert_eq!(doctor(&fleet, "process").await, [""; 0]);
}

#[tokio::test]
async fn services_that_containers_reach_are_named_by_their_ports() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let open = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = open.local_addr().unwrap().port().to_string();
    assert_names(&doctor(&fleet, "docker").await, &[&port, "127.0.0.1", "firewall"]);
    // With the process backend, engines reach the host anyway.
    assert_eq!(doctor(&fleet, "process").await, [""; 0]);
    up.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn what_cannot_be_looked_at_is_named() {
    let home = TestEnv::new();
    let examine = async |variables: &[(&str, String)]| {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        home.run(&["doctor"], &variables).wait().await
    };
    examine(&[]).await.assert_failure(2, &["ORCH_DATABASE_URL"]);
    let nowhere = home.path().join("nowhere.sqlite");
    let database = ("ORCH_DATABASE_URL", format!("sqlite:{}", nowhere.display()));
    examine(&[database]).await.assert_failure(2, &[nowhere.to_str().unwrap(), "No such file"]);
    assert!(!nowhere.exists());
}

/// What is examined, in order.
const SUBJECTS: [&str; 11] = [
    "variables",
    "registry",
    "folders",
    "backend",
    "backups",
    "data",
    "disks",
    "clock",
    "ports",
    "certificates",
    "sandbox",
];

#[tokio::test]
async fn each_part_of_a_deployment_is_examined() {
    let store = tempfile::tempdir().unwrap();
    let deployment = crate::backups::deployment(Deployment::new(), store.path());
    let (orchestrator, product) = deployment.start_with_product().await;
    product.engine("ada").await;
    let examine = async |words: &[&str], changes: &[(&str, &str)]| {
        let mut variables = deployment.fleet.variables.clone();
        variables.extend(changes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        deployment.fleet.test_env.run(&[&["doctor"], words].concat(), &variables).wait().await
    };
    let found = checks(&examine(&["--json"], &[]).await);
    let subjects: Vec<_> = found.iter().map(|check| check["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, SUBJECTS);
    // A machine may give any port to outgoing connections.
    let others: Vec<_> = found.iter().filter(|check| check["subject"] != "ports").cloned().collect();
    assert_eq!(problems(&others), [""; 0]);
    assert!(found.iter().all(|check| check["outcome"] != "skipped"), "{found:?}");
    let shown = examine(&[], &[]).await;
    assert!(shown.output.contains("ok       backups       can be used"), "{}", shown.output);
    assert_eq!(shown.code == Some(0), shown.output.ends_with("all is well\n"), "{}", shown.output);

    // What is wrong is named with its variable.
    let wrong = [
        ("PROBLEM  variables", ("ORCH_PORT", "many"), "ORCH_PORT is `many`"),
        ("PROBLEM  backups", ("ORCH_BACKUP_URL", "s3://nobody/nothing"), "ORCH_BACKUP_URL"),
        ("PROBLEM  ports", ("ORCH_PORT_MAX", "65000"), "ip_local_reserved_ports"),
        ("PROBLEM  certificates", ("SSL_CERT_FILE", "/nowhere.pem"), "SSL_CERT_FILE"),
    ];
    for (line, change, named) in wrong {
        let changes = [change, ("AWS_ENDPOINT", "http://127.0.0.1:9"), ("AWS_REGION", "nowhere")];
        let changes = if change.0 == "ORCH_BACKUP_URL" { &changes[..] } else { &changes[..1] };
        examine(&[], changes).await.assert_failure(1, &[line, named]);
    }
    let shown = examine(&["--json"], &[("ORCH_PORT", "many")]).await;
    shown.assert_failure(1, &[r#""outcome":"skipped""#, "have to be right first"]);
    orchestrator.signal_and_wait(Signal::TERM).await;
}
