//! `roundhouse doctor`: the operator looks for problems.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Signal;

use crate::support::command_line::document;
use crate::support::{Deployment, Fleet, ProgramExit, TestEnv};

async fn doctor(fleet: &Fleet, backend: &str) -> ProgramExit {
    let variables = [
        ("ORCH_DATABASE_URL", format!("sqlite:{}", fleet.folder().join("registry.sqlite").display())),
        ("ORCH_DATA_ROOT_PATH", fleet.folder().join("engines").display().to_string()),
        ("ORCH_BACKEND", backend.to_owned()),
    ];
    let variables: BTreeMap<_, _> =
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    fleet.test_env.run(&["doctor"], &variables).wait().await
}

#[tokio::test]
async fn a_folder_that_belongs_to_no_engine_is_named_and_left_alone() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    up.product().engine("ada").await;
    let output = doctor(&fleet, "process").await.assert_success();
    assert!(output.contains("all is well"), "{output}");

    let stray = fleet.folder().join("engines/eng_0123456789abcdef0123456789abcdef");
    fs::create_dir(&stray).unwrap();
    fs::write(stray.join("brain.sqlite"), "somebody's").unwrap();
    // A folder whose name is no engine id is ignored.
    fs::create_dir(fleet.folder().join("engines/lost+found")).unwrap();
    doctor(&fleet, "process").await.assert_failure(1, &[stray.to_str().unwrap(), "belongs to no engine"]);
    up.signal_and_wait(Signal::TERM).await.assert_success();
    doctor(&fleet, "process").await.assert_failure(1, &[stray.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(stray.join("brain.sqlite")).unwrap(), "somebody's");
    fs::remove_dir_all(&stray).unwrap();
    doctor(&fleet, "process").await.assert_success();
}

#[tokio::test]
async fn services_that_containers_reach_are_named_by_their_ports() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let open = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = open.local_addr().unwrap().port().to_string();
    doctor(&fleet, "docker").await.assert_failure(1, &[&port, "127.0.0.1", "firewall"]);
    // With the process backend, engines reach the host anyway.
    doctor(&fleet, "process").await.assert_success();
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
    let outcomes = |shown: &str| -> BTreeMap<String, String> {
        let checks = document(shown)["checks"].as_array().unwrap().clone();
        let subjects: Vec<_> =
            checks.iter().map(|check| check["subject"].as_str().unwrap().to_owned()).collect();
        assert_eq!(subjects, SUBJECTS);
        let outcomes = checks.iter().map(|check| check["outcome"].as_str().unwrap().to_owned());
        subjects.into_iter().zip(outcomes).collect()
    };
    let shown = outcomes(&examine(&["--json"], &[]).await.assert_success());
    assert!(shown.values().all(|outcome| outcome == "passed"), "{shown:?}");
    let shown = examine(&[], &[]).await.assert_success();
    assert!(
        shown.contains("ok       backups       can be used") && shown.ends_with("all is well\n"),
        "{shown}"
    );

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
        examine(&[], changes).await.assert_failure(1, &[line, named, "1 problem was found"]);
    }
    let shown = examine(&["--json"], &[("ORCH_PORT", "many")]).await;
    shown.assert_failure(1, &[r#""outcome":"skipped""#, "have to be right first"]);
    orchestrator.signal_and_wait(Signal::TERM).await;
}
