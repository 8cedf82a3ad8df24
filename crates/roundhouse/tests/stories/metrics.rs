//! An operator's Prometheus scrapes an orchestrator, without a key, on an address of its own; what the documentation,
//! the alerts and the dashboard name is there.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, thread};

use serde_json::json;

use crate::support::http::client;
use crate::support::schema::PROVISIONED;
use crate::support::{Deployment, eventually, is_installed};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0";

/// A file of the repository.
fn file(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(file(path)).unwrap()
}

/// A deployment that exposes metrics, and their address.
fn deployment() -> (Deployment, String) {
    let deployment = Deployment::new();
    let last = deployment.fleet.test_env.ports.last();
    let address = format!("127.0.0.1:{last}");
    let deployment = deployment
        .with_env("ORCH_PORT_MAX", (last - 1).to_string())
        .with_env("ORCH_METRICS_ADDR", address.clone());
    (deployment, address)
}

/// Scrapes metrics in the format that `accept` asks for.
pub(crate) async fn scrape(address: &str, accept: &str) -> String {
    let request = client().get(format!("http://{address}/metrics")).header("accept", accept);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.text().await.unwrap()
}

/// The value of a sample.
pub(crate) fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[track_caller]
fn assert_value(text: &str, series: &str, expected: f64) {
    assert_eq!(value(text, series), Some(expected), "{series} in: {text}");
}

/// The families of a scrape in Prometheus's own format.
fn families(text: &str) -> BTreeSet<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, _)| name)
        .collect()
}

/// The names of metrics in a text, without the suffixes of a histogram's series.
fn names(text: &str) -> BTreeSet<&str> {
    let is_part = |character: char| character.is_ascii_lowercase() || character == '_';
    let words = text.split(|character| !is_part(character));
    let metrics = words.filter(|word| word.starts_with("roundhouse_"));
    let family = |name| {
        let mut suffixes = ["_bucket", "_sum", "_count"].into_iter();
        suffixes.find_map(|suffix| str::strip_suffix(name, suffix)).unwrap_or(name)
    };
    metrics.map(family).collect()
}

/// Runs promtool with `input`; it must accept it and have nothing to say.
#[track_caller]
fn promtool(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_owned());
    // It may answer before it has read everything.
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}");
    text
}

#[tokio::test]
async fn what_happens_to_engines_is_scraped_without_a_key_and_names_nobody() {
    let (deployment, address) = deployment();
    let orchestrator = deployment.start().await;
    let product = orchestrator.register("shop", json!({})).await;
    let limited = orchestrator.register("limited", json!({"rate_limit_rpm": 0})).await;
    let text = scrape(&address, "*/*").await;
    assert_value(&text, "roundhouse_role{role=\"active\"}", 1.0);
    assert_value(&text, "roundhouse_role{role=\"standby\"}", 0.0);
    assert_value(&text, "roundhouse_admits_total{outcome=\"running\"}", 0.0);

    let user = "ada-of-the-metrics";
    let provisioned = product.provision(user).await.assert_ok(PROVISIONED);
    product.admit(user).await.assert_ok("admitted:bool engine:object");
    product.admit("nobody").await.assert_ok("admitted:bool engine:object|null");
    assert_eq!(product.stop(user).await.status, 200);
    assert_eq!(product.get(user).await.status, 200);
    let denied = product.admit(user).await;
    assert_eq!((denied.status, &denied.body["reason"]), (200, &json!("engine_stopped")));
    assert_eq!(limited.admit(user).await.status, 429);

    let text = eventually("the numbers of engines are read again", async || {
        let text = scrape(&address, "*/*").await;
        (value(&text, "roundhouse_engines{product=\"shop\",state=\"stopped\"}") == Some(1.0)).then_some(text)
    })
    .await;
    for (series, expected) in [
        ("roundhouse_engines{product=\"shop\",state=\"failed\"}", 0.0),
        ("roundhouse_admits_total{outcome=\"running\"}", 1.0),
        ("roundhouse_admits_total{outcome=\"engine_stopped\"}", 1.0),
        ("roundhouse_admits_total{outcome=\"rate_limited\"}", 1.0),
        ("roundhouse_admit_duration_seconds_count", 1.0),
        ("roundhouse_limited_requests_total{cause=\"rate_limited\"}", 1.0),
        ("roundhouse_operations_total{operation=\"stop\",outcome=\"done\"}", 1.0),
        ("roundhouse_operation_duration_seconds_count{operation=\"stop\"}", 1.0),
        ("roundhouse_operations_total{operation=\"destroy\",outcome=\"done\"}", 0.0),
        ("roundhouse_engine_failures_total{cause=\"exit\"}", 0.0),
        ("roundhouse_supervised_engines", 1.0),
        ("roundhouse_operations_in_progress", 0.0),
        ("roundhouse_http_requests_total{route=\"/engines/{user_id}/admit\",status=\"4xx\"}", 1.0),
        ("roundhouse_http_requests_total{route=\"/engines/{user_id}/stop\",status=\"2xx\"}", 1.0),
        ("roundhouse_http_request_duration_seconds_count{route=\"/engines/{user_id}/stop\"}", 1.0),
    ] {
        assert_value(&text, series, expected);
    }
    // The admit of the user without an engine has provisioned one, too.
    for series in [
        "roundhouse_operations_total{operation=\"provision\",outcome=\"done\"}",
        "roundhouse_boots_total{outcome=\"ready\"}",
        "roundhouse_boot_duration_seconds_count",
    ] {
        assert_value(&text, series, 2.0);
    }
    for series in [
        "roundhouse_registry_call_duration_seconds_count{operation=\"settle\"}",
        "roundhouse_backend_call_duration_seconds_count{operation=\"launch\"}",
        "roundhouse_process_resident_memory_bytes",
        "roundhouse_process_cpu_seconds_total",
        "roundhouse_process_open_files",
        "roundhouse_process_threads",
    ] {
        assert!(value(&text, series).is_some_and(|value| value > 0.0), "{series} in: {text}");
    }
    let open_metrics = scrape(&address, OPENMETRICS).await;
    assert!(open_metrics.ends_with("# EOF\n"), "{open_metrics}");
    assert!(open_metrics.contains("# UNIT roundhouse_boot_duration_seconds seconds"), "{open_metrics}");
    for text in [&text, &open_metrics] {
        let engine_id = provisioned["engine_id"].as_str().unwrap();
        let engine_key = provisioned["api_key"].as_str().unwrap();
        for secret in [user, "nobody", engine_id, engine_key, &product.key, &deployment.admin_key, "sk-svc-"]
        {
            assert!(!text.contains(secret), "{secret} in: {text}");
        }
    }
    for path in ["", "/health", "/engines", "/metrics/prometheus"] {
        let response = client().get(format!("http://{address}{path}")).send().await.unwrap();
        assert_eq!(response.status(), 404, "{path}");
    }
}

#[tokio::test]
async fn documentation_alerts_and_dashboard_name_what_is_scraped() {
    let (deployment, address) = deployment();
    let _orchestrator = deployment.start().await;
    let text = scrape(&address, "*/*").await;
    let families = families(&text);
    let documentation = read("docs/monitoring.md");
    let table = documentation.lines().filter_map(|line| line.strip_prefix("| `roundhouse_")?.split_once('`'));
    let table: BTreeSet<_> = table.map(|(name, _)| format!("roundhouse_{name}")).collect();
    assert_eq!(table.iter().map(String::as_str).collect::<BTreeSet<_>>(), families);
    let alerts = read("deploy/monitoring/alerts.yaml");
    let tests = read("deploy/monitoring/alerts.test.yaml");
    for named in [&documentation, &alerts, &tests, &read("deploy/monitoring/dashboard.json")] {
        let unknown: Vec<_> = names(named).difference(&families).copied().collect();
        assert_eq!(unknown, [""; 0]);
    }

    let rules = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let rules: BTreeSet<_> = rules.collect();
    let headings = documentation.lines().filter_map(|line| line.strip_prefix("### "));
    assert_eq!(headings.collect::<BTreeSet<_>>(), rules, "each alert has a cause and a cure");
    for rule in rules {
        let anchor = format!("See docs/monitoring.md#{}", rule.to_lowercase());
        assert!(alerts.contains(&format!("\"{anchor}\"")), "{rule}");
        let expectations: Vec<_> = tests.split(&format!("alertname: {rule}\n")).skip(1).collect();
        let is_silent = |test: &&str| test.trim_start().starts_with("exp_alerts: []");
        let silent = expectations.iter().filter(|test| is_silent(test)).count();
        assert_eq!((expectations.len(), silent), (2, 1), "{rule} fires in one test and is silent in another");
    }
}

#[tokio::test]
async fn promtool_accepts_the_metrics_and_the_alerts() {
    if !is_installed("promtool") {
        return;
    }
    let (deployment, address) = deployment();
    let (_orchestrator, product) = deployment.start_with_product().await;
    product.engine("ada").await;
    product.admit("ada").await;
    let text = scrape(&address, "*/*").await;
    assert_eq!(promtool(&["check", "metrics"], &text), "", "{text}");
    let folder = file("deploy/monitoring");
    let alerts = folder.join("alerts.yaml");
    promtool(&["check", "rules", alerts.to_str().unwrap()], "");
    promtool(&["test", "rules", folder.join("alerts.test.yaml").to_str().unwrap()], "");
}

#[tokio::test]
async fn a_standby_is_scraped_too() {
    let (deployment, address) = deployment();
    let orchestrator = deployment.start().await;
    let other = format!("127.0.0.1:{}", deployment.fleet.test_env.ports.last() - 1);
    let mut variables = deployment.fleet.variables.clone();
    variables.insert("ORCH_METRICS_ADDR".to_owned(), other.clone());
    variables.insert("ORCH_PORT".to_owned(), (deployment.fleet.test_env.ports.first() + 1).to_string());
    let _standby = deployment.fleet.test_env.run(&["orchestrator"], &variables);
    let role = async |role: &str| {
        let request = client().get(format!("http://{other}/metrics"));
        let text = request.send().await.ok()?.text().await.unwrap();
        (value(&text, &format!("roundhouse_role{{role=\"{role}\"}}")) == Some(1.0)).then_some(text)
    };
    let text = eventually("it is a standby", async || role("standby").await).await;
    assert_value(&text, "roundhouse_role{role=\"active\"}", 0.0);
    assert!(!text.contains("roundhouse_engines{"), "{text}");
    assert_value(&scrape(&address, "*/*").await, "roundhouse_role{role=\"active\"}", 1.0);
    orchestrator.signal_and_wait(rustix::process::Signal::TERM).await.assert_success();
    eventually("it is active", async || role("active").await).await;
}

#[tokio::test]
async fn an_address_for_metrics_that_is_taken_is_named() {
    let (deployment, address) = deployment();
    let _holder = TcpListener::bind(&address).unwrap();
    let exit = deployment.launch().program.wait().await;
    exit.assert_failure(2, &[&address, "ORCH_METRICS_ADDR"]);
    let main = deployment.fleet.variables["ORCH_PORT"].clone();
    let same = deployment.launch_with("ORCH_METRICS_ADDR", &format!("127.0.0.1:{main}"));
    same.program.wait().await.assert_failure(2, &[&main, "ORCH_METRICS_ADDR"]);
}

#[tokio::test]
async fn nothing_listens_for_metrics_unless_it_is_told_to() {
    let (deployment, address) = deployment();
    let deployment = deployment.with_env("ORCH_METRICS_ADDR", "");
    let _orchestrator = deployment.start().await;
    assert!(client().get(format!("http://{address}/metrics")).send().await.is_err());
}
