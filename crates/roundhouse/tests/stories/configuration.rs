//! Story 8: an invalid configuration is refused with all of its errors at once.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;

use serde_json::Value;

use crate::support::disk::Disk;
use crate::support::http::client;
use crate::support::{Deployment, ProgramExit, TestEnv, eventually, is_installed, skip};

/// Invalid values of variables.
const INVALID_VALUES: [(&str, &str); 53] = [
    ("ORCH_LOG_LEVEL", "loud"),
    ("ORCH_LOG_LEVEL", "info,,"),
    ("ORCH_LOG_FORMAT", "xml"),
    ("ORCH_DATABASE_URL", "mysql://localhost/registry"),
    ("ORCH_DATABASE_URL", "registry.sqlite"),
    ("ORCH_DATABASE_URL", "sqlite:"),
    ("ORCH_MASTER_KEY", "too-short"),
    ("ORCH_MASTER_KEY", "0000000000000000000000000000000000000000000="),
    ("ORCH_MASTER_KEY", "++++++++++++++++++++++++++++++++++++++++++A"),
    ("ORCH_ADMIN_KEY", "hunter-two\nhunter-three"),
    ("ORCH_ENGINE_IMAGE", "svc-engine:latest"),
    ("ORCH_ENGINE_IMAGE", "svc-engine"),
    ("ORCH_ENGINE_IMAGE", "svc-engine:1"),
    ("ORCH_ENGINE_IMAGE", "svc-engine:999.0.0"),
    ("ORCH_ENGINE_IMAGE", "another:0.1.0"),
    ("ORCH_BACKEND", "podman"),
    ("ORCH_ENGINE_ENV_PASSTHROUGH", "ORCH_ADMIN_KEY"),
    ("ORCH_ENGINE_ENV_PASSTHROUGH", "ORCH_ANYTHING"),
    ("ORCH_ENGINE_ENV_PASSTHROUGH", "ENGINE_KEY_HASH"),
    ("ORCH_ENGINE_ENV_PASSTHROUGH", "SQLITE_DB_PATH"),
    ("ORCH_ENGINE_ENV_PASSTHROUGH", "CATALOG_DIR"),
    ("ORCH_HOST", "not a host"),
    ("ORCH_ENGINE_URL_HOST", "http://not a host"),
    ("ORCH_PORT", "door"),
    ("ORCH_PORT", "65536"),
    ("ORCH_PORT", "-1"),
    ("ORCH_METRICS_ADDR", "9464"),
    ("ORCH_METRICS_ADDR", "127.0.0.1"),
    ("ORCH_METRICS_ADDR", "127.0.0.1:65536"),
    ("ORCH_BOOT_TIMEOUT_S", "soon"),
    ("ORCH_BOOT_TIMEOUT_S", "0"),
    ("ORCH_BOOT_TIMEOUT_S", "-1"),
    ("ORCH_BOOT_TIMEOUT_S", "NaN"),
    ("ORCH_BOOT_TIMEOUT_S", "inf"),
    ("ORCH_HEALTH_CHECK_INTERVAL_S", "0"),
    ("ORCH_HEALTH_CHECK_INTERVAL_S", "30s"),
    ("ORCH_HEALTH_CHECK_TIMEOUT_S", "-0.5"),
    ("ORCH_HEALTH_MAX_FAILURES", "three"),
    ("ORCH_HEALTH_MAX_FAILURES", "0"),
    ("ORCH_HEALTH_MAX_FAILURES", "2.5"),
    ("ORCH_RESTART_BACKOFF_BASE_S", "-5"),
    ("ORCH_RESTART_BACKOFF_MAX_S", "1e400"),
    ("ORCH_RESTART_MAX_ATTEMPTS", "-1"),
    ("ORCH_RESTART_MAX_ATTEMPTS", "8.0"),
    ("ORCH_IDLE_SLEEP_THRESHOLD_S", "never"),
    ("ORCH_IDLE_SLEEP_THRESHOLD_S", "-1"),
    ("ORCH_WEBHOOK_ALLOW", "10.0.0.1/8"),
    ("ORCH_WEBHOOK_TIMEOUT_S", "0"),
    ("ORCH_WEBHOOK_GIVE_UP_S", "never"),
    ("ORCH_WARM_ENGINES", "65"),
    ("ORCH_WARM_ENGINES_MAX", "some"),
    ("ORCH_PORT_MIN", "low"),
    ("ORCH_PORT_MIN", "0"),
];
/// Variables whose value is never shown.
const SECRET_VARIABLES: [&str; 3] = ["ORCH_DATABASE_URL", "ORCH_MASTER_KEY", "ORCH_ADMIN_KEY"];
/// The defaults of the contract.
const DEFAULTS: [&str; 28] = [
    "ORCH_LOG_LEVEL=info",
    "ORCH_LOG_FORMAT=text",
    "ORCH_BACKEND=docker",
    "ORCH_DOCKER_SOCKET=/var/run/docker.sock",
    "ORCH_ENGINE_NETWORK=engine_net",
    "ORCH_ENGINE_URL_HOST=127.0.0.1",
    "ORCH_ENGINE_ENV_PASSTHROUGH=",
    "ORCH_HOST=0.0.0.0",
    "ORCH_PORT=8000",
    "ORCH_BOOT_TIMEOUT_S=60",
    "ORCH_HEALTH_CHECK_INTERVAL_S=30",
    "ORCH_HEALTH_CHECK_TIMEOUT_S=10",
    "ORCH_HEALTH_MAX_FAILURES=3",
    "ORCH_RESTART_BACKOFF_BASE_S=5",
    "ORCH_RESTART_BACKOFF_MAX_S=300",
    "ORCH_RESTART_MAX_ATTEMPTS=8",
    "ORCH_IDLE_SLEEP_THRESHOLD_S=3600",
    "ORCH_WEBHOOK_ALLOW=",
    "ORCH_WEBHOOK_TIMEOUT_S=20",
    "ORCH_WEBHOOK_BACKOFF_BASE_S=5",
    "ORCH_WEBHOOK_BACKOFF_MAX_S=3600",
    "ORCH_WEBHOOK_GIVE_UP_S=86400",
    "ORCH_WARM_ENGINES=0",
    "ORCH_WARM_ENGINES_MAX=16",
    "ORCH_PORT_MIN=9001",
    "ORCH_PORT_MAX=9999",
    "ORCH_DATA_ROOT_PATH=/var/lib/roundhouse/engines",
    "ORCH_CATALOG_MOUNT_PATH=/var/lib/roundhouse/catalog",
];

/// Runs `--check --offline`, which checks the variables only.
async fn check_offline(deployment: &Deployment, variables: &BTreeMap<String, String>) -> ProgramExit {
    deployment.fleet.test_env.run(&["orchestrator", "--check", "--offline"], variables).wait().await
}

/// Runs `--check` with another value of one variable; it checks the variables and the resources that they name.
async fn check_with_resources(deployment: &Deployment, name: &str, value: &str) -> ProgramExit {
    let mut variables = deployment.fleet.variables.clone();
    variables.insert(name.to_owned(), value.to_owned());
    deployment.fleet.test_env.run(&["orchestrator", "--check"], &variables).wait().await
}

/// Asserts that a refusal reports exactly these faults: a line for each, which names the variable and, unless it
/// is secret, its value.
#[track_caller]
fn assert_exact_faults(exit: ProgramExit, faults: &[(&str, &str)]) {
    let output = exit.assert_failure(2, &[]);
    for (name, value) in faults {
        let line = output.lines().find(|line| line.contains(&format!("{name} ")));
        let line = line.unwrap_or_else(|| panic!("{name} is not named: {output}"));
        if SECRET_VARIABLES.contains(name) {
            let shown = value.lines().any(|part| part.len() > 8 && output.contains(part));
            assert!(!shown, "{name} is shown: {output}");
        } else {
            assert!(line.contains(value), "{value:?} is not shown: {line}");
        }
        assert!(line.contains("must be"), "it does not say what it must be: {line}");
    }
    let named = output.lines().filter(|line| line.trim_start().starts_with("ORCH_")).count();
    assert_eq!(named, faults.len(), "{output}");
}

#[tokio::test]
async fn each_bad_value_is_refused_alone() {
    let deployment = Deployment::process_and_sqlite();
    for (name, value) in INVALID_VALUES {
        let mut variables = deployment.fleet.variables.clone();
        variables.insert(name.to_owned(), value.to_owned());
        assert_exact_faults(check_offline(&deployment, &variables).await, &[(name, value)]);
    }
    assert_eq!(fs::read_dir(deployment.fleet.folder()).unwrap().count(), 0, "a check leaves nothing");
}

#[tokio::test]
async fn all_bad_values_are_named_at_once_by_the_check_and_by_the_start() {
    let deployment = Deployment::process_and_sqlite();
    let mut variables = deployment.fleet.variables.clone();
    let mut faults: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, value) in INVALID_VALUES {
        faults.entry(name).or_insert(value);
        variables.insert(name.to_owned(), faults[name].to_owned());
    }
    let faults: Vec<(&str, &str)> = faults.into_iter().collect();
    assert_exact_faults(check_offline(&deployment, &variables).await, &faults);
    assert_exact_faults(deployment.fleet.test_env.run(&["orchestrator"], &variables).wait().await, &faults);
    assert_eq!(fs::read_dir(deployment.fleet.folder()).unwrap().count(), 0, "nothing was created");
}

#[tokio::test]
async fn what_is_required_is_missed_also_when_it_is_empty() {
    let deployment = Deployment::process_and_sqlite();
    let required = ["ORCH_DATABASE_URL", "ORCH_MASTER_KEY", "ORCH_ADMIN_KEY", "ORCH_ENGINE_IMAGE"];
    let mut variables = deployment.fleet.variables.clone();
    for name in required {
        variables.insert(name.to_owned(), String::new());
    }
    let output = check_offline(&deployment, &variables).await.assert_failure(2, &required);
    for name in required {
        variables.remove(name);
    }
    assert_eq!(check_offline(&deployment, &variables).await.assert_failure(2, &required), output);
}

#[tokio::test]
async fn faults_between_variables_are_named() {
    let deployment =
        Deployment::process_and_sqlite().with_env("ORCH_PORT_MIN", "9999").with_env("ORCH_PORT_MAX", "9001");
    let output =
        check_offline(&deployment, &deployment.fleet.variables).await.assert_failure(2, &["ORCH_PORT_M"]);
    assert!(output.contains("9999") || output.contains("9001"), "{output}");
}

#[tokio::test]
async fn what_is_no_port_is_one_fault_and_named_as_it_is() {
    let deployment = Deployment::process_and_sqlite().with_env("ORCH_PORT_MAX", "70000");
    assert_exact_faults(
        check_offline(&deployment, &deployment.fleet.variables).await,
        &[("ORCH_PORT_MAX", "70000")],
    );
}

#[tokio::test]
async fn a_check_shows_what_holds_and_hides_what_is_secret() {
    let deployment = Deployment::process_and_sqlite();
    let required = ["ORCH_DATABASE_URL", "ORCH_MASTER_KEY", "ORCH_ADMIN_KEY", "ORCH_ENGINE_IMAGE"];
    let mut variables = deployment.fleet.variables.clone();
    variables.retain(|name, _| required.contains(&name.as_str()));
    let output = check_offline(&deployment, &variables).await.assert_success();
    for line in DEFAULTS {
        assert!(output.lines().any(|found| found == line), "no {line:?} in: {output}");
    }
    let image = format!("ORCH_ENGINE_IMAGE={}", variables["ORCH_ENGINE_IMAGE"]);
    assert!(output.lines().any(|line| line == image), "{output}");
    for name in ["ORCH_MASTER_KEY", "ORCH_ADMIN_KEY"] {
        assert!(output.contains(name) && !output.contains(&variables[name]), "{output}");
    }

    // Empty counts as not set; seconds may be decimals.
    for line in DEFAULTS {
        variables.insert(line.split_once('=').unwrap().0.to_owned(), String::new());
    }
    assert_eq!(check_offline(&deployment, &variables).await.assert_success(), output);
    for (name, value) in [
        ("ORCH_BOOT_TIMEOUT_S", "0.2"),
        ("ORCH_HEALTH_CHECK_INTERVAL_S", "1.5"),
        ("ORCH_RESTART_BACKOFF_BASE_S", "0.25"),
        ("ORCH_IDLE_SLEEP_THRESHOLD_S", "0"),
        ("ORCH_PORT", "0"),
        ("ORCH_LOG_FORMAT", "json"),
        ("ORCH_METRICS_ADDR", "127.0.0.1:9464"),
    ] {
        variables.insert(name.to_owned(), value.to_owned());
        let output = check_offline(&deployment, &variables).await.assert_success();
        assert!(output.lines().any(|line| line == format!("{name}={value}")), "no {name}={value}: {output}");
    }
    assert_eq!(fs::read_dir(deployment.fleet.folder()).unwrap().count(), 0, "a check leaves nothing");
}

#[tokio::test]
async fn a_check_disturbs_no_orchestrator() {
    let deployment = Deployment::process_and_sqlite();
    let (_orchestrator, product) = deployment.start_with_product().await;
    product.engine("ada").await;
    check_offline(&deployment, &deployment.fleet.variables).await.assert_success();
    assert_eq!(product.status("ada").await, "running");
}

/// Asserts that an orchestrator does not start, names `what`, and shows no secret.
async fn assert_start_fails(deployment: &Deployment, what: &str) {
    let mut orchestrator = deployment.launch();
    eventually("it ends", async || {
        let health = client().get(format!("{}/health", orchestrator.base)).send().await;
        let healthy = health.is_ok_and(|answer| answer.status() == 200);
        assert!(!healthy, "it has started: {}", orchestrator.program.output());
        (!orchestrator.program.is_running()).then_some(())
    })
    .await;
    let exit = orchestrator.program.wait().await;
    assert!(!exit.output.contains(&deployment.master_key) && !exit.output.contains(&deployment.admin_key));
    exit.assert_failure(2, &[what]);
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let deployment = Deployment::process_and_sqlite();
    let _holder = TcpListener::bind(("127.0.0.1", deployment.fleet.test_env.ports.first())).unwrap();
    deployment
        .launch()
        .program
        .wait()
        .await
        .assert_failure(2, &[&deployment.fleet.test_env.ports.first().to_string()]);
}

#[tokio::test]
async fn a_registry_that_is_none_is_named_and_left_alone() {
    let deployment = Deployment::process_and_sqlite();
    let file = deployment.fleet.folder().join("registry.sqlite");
    let garbage = b"no database ".repeat(1_000);
    fs::write(&file, &garbage).unwrap();
    assert_start_fails(&deployment, file.to_str().unwrap()).await;
    assert!(fs::read(&file).unwrap() == garbage);
}

#[tokio::test]
async fn a_folder_for_engines_that_is_a_file_is_named_and_left_alone() {
    let deployment = Deployment::process_and_sqlite();
    let folder = deployment.fleet.folder().join("engines");
    fs::write(&folder, "kept").unwrap();
    assert_start_fails(&deployment, folder.to_str().unwrap()).await;
    assert_eq!(fs::read_to_string(folder).unwrap(), "kept");
}

#[tokio::test]
async fn a_catalog_that_does_not_exist_is_named() {
    let deployment = Deployment::process_and_sqlite();
    let catalog = deployment.fleet.folder().join("nowhere");
    let deployment = deployment.with_env("ORCH_CATALOG_MOUNT_PATH", catalog.to_str().unwrap());
    assert_start_fails(&deployment, catalog.to_str().unwrap()).await;
}

#[tokio::test]
async fn another_master_key_is_refused_with_the_way_out() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, _product) = deployment.start_with_product().await;
    orchestrator.signal_and_wait(rustix::process::Signal::TERM).await.assert_success();
    let mut variables = deployment.fleet.variables.clone();
    let other = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo".to_owned();
    variables.insert("ORCH_MASTER_KEY".to_owned(), other.clone());
    let exit = deployment.fleet.test_env.run(&["orchestrator"], &variables).wait().await;
    let output = exit.assert_failure(2, &["ORCH_MASTER_KEY", "roundhouse rekey"]);
    assert!(!output.contains(&other) && !output.contains(&deployment.master_key), "{output}");
}

#[tokio::test]
async fn a_word_that_is_no_option_is_refused() {
    let home = TestEnv::new();
    let exit = home.run(&["orchestrator", "--chek"], &BTreeMap::new()).wait().await;
    exit.assert_failure(2, &["--chek"]);
}

#[tokio::test]
async fn a_registry_that_cannot_be_opened_is_named_with_its_cause() {
    let deployment = Deployment::process_and_sqlite();
    let file = deployment.fleet.folder().join("file");
    fs::write(&file, "kept").unwrap();
    let below_file =
        deployment.with_env("ORCH_DATABASE_URL", format!("sqlite:{}", file.join("registry").display()));
    below_file.launch().program.wait().await.assert_failure(2, &["cannot be opened", "os error"]);

    let deployment = Deployment::process_and_sqlite();
    let Some(disk) = Disk::new(deployment.fleet.folder().join("disk"), 1) else { return };
    let registry = deployment.fleet.folder().join("disk/registry.sqlite");
    let deployment = deployment.with_env("ORCH_DATABASE_URL", format!("sqlite:{}", registry.display()));
    disk.fill();
    // The configuration is valid, and a retry may succeed.
    deployment
        .launch()
        .program
        .wait()
        .await
        .assert_failure(1, &["cannot be opened", "No space left on device"]);
}

#[tokio::test]
async fn the_log_is_as_loud_as_it_is_told_and_of_the_form_that_is_wanted() {
    let deployment = Deployment::process_and_sqlite()
        .with_env("ORCH_LOG_FORMAT", "json")
        .with_env("ORCH_LOG_LEVEL", "debug");
    let (orchestrator, product) = deployment.start_with_product().await;
    product.engine("ada").await;
    let output = orchestrator.signal_and_wait(rustix::process::Signal::TERM).await.assert_success();
    let lines: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect();
    assert!(lines.iter().any(|line| line["level"] == "DEBUG" && line["message"] == "Answered a request."));
    let is_admit_line = |line: &&Value| line["spans"][0]["http_route"] == "/engines/{user_id}/admit";
    let line = lines.iter().find(is_admit_line).unwrap_or_else(|| panic!("{output}"));
    assert!(line["spans"][0]["request_id"].is_string() && line["timestamp"].is_string(), "{line}");

    let deployment = Deployment::process_and_sqlite().with_env("ORCH_LOG_LEVEL", "error");
    let (orchestrator, _) = deployment.start_with_product().await;
    assert_eq!(orchestrator.signal_and_wait(rustix::process::Signal::TERM).await.assert_success(), "");
}

#[tokio::test]
async fn a_check_looks_at_the_database_and_the_folders_and_leaves_nothing() {
    let deployment = Deployment::process_and_sqlite();
    let output = check_with_resources(&deployment, "ORCH_BACKEND", "process").await.assert_success();
    assert!(output.contains("the registry is empty"), "{output}");
    assert_eq!(fs::read_dir(deployment.fleet.folder()).unwrap().count(), 0, "a check leaves nothing");

    let file = deployment.fleet.folder().join("file");
    fs::write(&file, "no database").unwrap();
    let file = file.display();
    for (name, value) in [
        ("ORCH_DATABASE_URL", format!("sqlite://{file}")),
        ("ORCH_DATABASE_URL", format!("sqlite://{file}/registry.db")),
        ("ORCH_DATABASE_URL", "postgres://ada:t0psecret@127.0.0.1:1/registry".to_owned()),
        ("ORCH_DATA_ROOT_PATH", format!("{file}/engines")),
    ] {
        let output = check_with_resources(&deployment, name, &value).await.assert_failure(1, &[name]);
        assert!(!output.contains("t0psecret"), "{output}");
        // The variables by themselves are valid.
        let mut variables = deployment.fleet.variables.clone();
        variables.insert(name.to_owned(), value);
        check_offline(&deployment, &variables).await.assert_success();
    }

    // While an orchestrator runs.
    let orchestrator = deployment.start().await;
    let output = check_with_resources(&deployment, "ORCH_BACKEND", "process").await.assert_success();
    let process = orchestrator.program.pid().as_raw_nonzero();
    assert!(
        output.contains(&format!("process {process} (since ")) && output.contains("is active"),
        "{output}"
    );
    assert_eq!(orchestrator.signal_and_wait(rustix::process::Signal::KILL).await.code, None);
    let output = check_with_resources(&deployment, "ORCH_BACKEND", "process").await.assert_success();
    assert!(output.contains("no orchestrator is active"), "{output}");

    // A file name without a folder, before and after the registry exists.
    let shell = |command: &str| {
        let line = format!("cd '{}' && {command}", deployment.fleet.folder().display());
        let mut variables = deployment.fleet.variables.clone();
        variables.insert("ORCH_DATABASE_URL".to_owned(), "sqlite:beside.sqlite".to_owned());
        deployment.fleet.test_env.run_program(&["sh", "-c", &line], &variables)
    };
    let check = format!("exec '{}' orchestrator --check", crate::support::test_env::BINARY);
    shell(&check).wait().await.assert_success();
    shell(&format!("touch beside.sqlite && {check}")).wait().await.assert_success();
}

#[tokio::test]
async fn a_check_by_a_user_who_may_not_write_to_the_registry_says_so() {
    if !rustix::process::getuid().is_root() {
        skip("root's rights, to become an ordinary user");
        return;
    }
    if !is_installed("setpriv") || !is_installed("chown") {
        return;
    }
    let deployment = Deployment::process_and_sqlite();
    deployment.start().await.signal_and_wait(rustix::process::Signal::TERM).await.assert_success();
    let home = deployment.fleet.test_env.path();
    // In a place where an ordinary user may execute it.
    let binary = home.join("roundhouse");
    fs::copy(crate::support::test_env::BINARY, &binary).unwrap();
    let registry =
        deployment.fleet.variables["ORCH_DATABASE_URL"].strip_prefix("sqlite:").unwrap().to_owned();
    let line = format!(
        "chown -R 65534:65534 '{home}' && chown 0:0 '{registry}' && chmod 600 '{registry}' && \
         exec setpriv --reuid=65534 --regid=65534 --clear-groups '{binary}' orchestrator --check",
        home = home.display(),
        binary = binary.display()
    );
    let exit =
        deployment.fleet.test_env.run_program(&["sh", "-c", &line], &deployment.fleet.variables).wait().await;
    exit.assert_failure(1, &[&registry, "ORCH_DATABASE_URL", "read and write"]);
}

#[tokio::test]
async fn a_check_looks_at_the_docker_daemon_and_the_image() {
    let Some(deployment) = Deployment::docker() else { return };
    check_with_resources(&deployment, "ORCH_BACKEND", "docker").await.assert_success();
    for (name, value) in
        [("ORCH_ENGINE_IMAGE", "svc-engine:9.9.9"), ("ORCH_DOCKER_SOCKET", "/nowhere/docker.sock")]
    {
        check_with_resources(&deployment, name, value)
            .await
            .assert_failure(1, &[name, "engines cannot be run"]);
    }
    let variables = deployment.fleet.variables.clone();
    let started = deployment.fleet.test_env.run(&["orchestrator", "--offline"], &variables).wait().await;
    started.assert_failure(2, &["--check"]);
}
