//! The commands that read: products, engines, status, metrics, the audit log, events and logs.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::command_line::{cells, command, document, start_command};
use crate::support::tcp_forwarder::TcpForwarder;
use crate::support::{Fleet, Program, processes};

/// A user whose name is written in two directions and has characters of two columns.
const EVE: &str = "eve\u{202e}/日本";

#[tokio::test]
async fn engines_are_listed_and_shown_as_tables_and_as_the_apis_json() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let nothing = command(&fleet, &["engine", "list"]).await.assert_success();
    assert_eq!(nothing, "There is no engine here; 0 match in all.\n");
    product.engine("ada").await;
    product.engine(EVE).await;
    product.stop(EVE).await.assert_ok("status:text");

    let table = command(&fleet, &["engine", "list"]).await.assert_success();
    assert_eq!(
        cells(&table),
        "USER | STATUS | VERSION | ADDRESS | CREATED | HEALTHY\n\
         ada | running | IMAGE | ADDRESS | AGO | AGO\n\
         eve\\u{202e}/日本 | stopped | IMAGE | ADDRESS | AGO | AGO"
    );
    let page = command(&fleet, &["engine", "list", "--limit", "1"]).await.assert_success();
    assert!(page.contains("1 of 2; --offset 1 shows more"), "{page}");
    let stopped = command(&fleet, &["engine", "list", "--status", "stopped"]).await.assert_success();
    assert!(stopped.contains("eve") && !stopped.contains("ada"), "{stopped}");
    command(&fleet, &["engine", "list", "--status", "gone"])
        .await
        .assert_failure(2, &["provisioning, running"]);

    let json = command(&fleet, &["engine", "list", "--json"]).await.assert_success();
    assert!(!json.contains('\u{202e}'), "{json}");
    let (engines, total) = product.list("").await;
    assert_eq!(document(&json), json!({"engines": engines, "total": total}));

    let shown = command(&fleet, &["engine", "get", EVE]).await.assert_success();
    for expected in ["eve\\u{202e}/日本", "stopped", "eng_", "only with --json"] {
        assert!(shown.contains(expected), "no {expected:?} in {shown}");
    }
    assert!(!shown.contains("sk-svc-"), "{shown}");
    let json = document(&command(&fleet, &["engine", "get", "ada", "--json"]).await.assert_success());
    assert!(json["api_key"].as_str().unwrap().starts_with("sk-svc-"), "{json}");
    let explained = command(&fleet, &["engine", "explain", EVE]).await.assert_success();
    assert!(explained.contains("from running to stopped"), "{explained}");
    let logs = command(&fleet, &["engine", "logs", "ada", "--tail", "3"]).await.assert_success();
    assert!((1..=3).contains(&logs.lines().count()) && logs.contains("The engine is ready"), "{logs}");

    for words in [&["engine", "get", "bob"], &["engine", "explain", "bob"], &["engine", "logs", "bob"]] {
        command(&fleet, words).await.assert_failure(3, &["ENGINE_NOT_FOUND"]);
    }
    command(&fleet, &["engine", "get", ".."]).await.assert_failure(2, &["cannot be used in a URL"]);
}

#[tokio::test]
async fn the_fleet_is_told_in_figures_and_the_operator_sees_products() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    up.product().engine("ada").await;
    let status = command(&fleet, &["status"]).await.assert_success();
    assert_eq!(cells(&status), "Health | ok\nEngines | 1\nFailed | 0\n\nSTATUS | ENGINES\nrunning | 1");
    let json = document(&command(&fleet, &["status", "--json"]).await.assert_success());
    assert_eq!(json, json!({"total": 1, "by_status": {"running": 1}, "health": "ok", "unhealthy_count": 0}));
    let metrics = command(&fleet, &["metrics"]).await.assert_success();
    assert!(cells(&metrics).contains("Provisions in the last hour | 1"), "{metrics}");
    let json = document(&command(&fleet, &["metrics", "--json"]).await.assert_success());
    assert_eq!(json["total_provisions"], 1, "{json}");
    for by in ["day", "engine"] {
        let usage = command(&fleet, &["usage", "--by", by]).await.assert_success();
        let usage = cells(&usage);
        assert!(usage.starts_with("OF | ACTIVE | ADMITS | TURNS | CALLS | INPUT"), "{usage}");
        assert!(usage.contains("\ntotal | - | "), "{usage}");
        let json = document(&command(&fleet, &["usage", "--by", by, "--json"]).await.assert_success());
        assert_eq!(json["total"]["turns"], 0, "{json}");
    }
    command(&fleet, &["usage", "--from", "yesterday"]).await.assert_failure(2, &["such as 2026-11-26"]);

    up.register("other", json!({"max_engines": 3})).await;
    let products = command(&fleet, &["product", "list"]).await.assert_success();
    let products = cells(&products);
    assert!(
        products.starts_with("SLUG | NAME | PRODUCT ID | REGISTERED | STATE | POLICY\ndemo | "),
        "{products}"
    );
    assert!(products.ends_with("PRODUCT | AGO | active | max_engines 3"), "{products}");
    let json = document(&command(&fleet, &["product", "list", "--json"]).await.assert_success());
    assert_eq!(json["total"], 2, "{json}");
    let policy = command(&fleet, &["product", "policy", "get", "other"]).await.assert_success();
    assert_eq!(serde_json::from_str::<Value>(&policy).unwrap(), json!({"max_engines": 3}));
    let id = json["products"][1]["product_id"].as_str().unwrap();
    let policy = command(&fleet, &["product", "policy", "get", id, "--json"]).await.assert_success();
    assert_eq!(document(&policy), json!({"max_engines": 3}));
    command(&fleet, &["product", "policy", "get", "nobody"])
        .await
        .assert_failure(3, &["`nobody`", "product list"]);
}

#[tokio::test]
async fn the_audit_log_is_listed_page_by_page() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    product.engine(EVE).await;
    product.stop(EVE).await.assert_ok("status:text");
    let table = cells(&command(&fleet, &["audit", "list"]).await.assert_success());
    assert!(
        table.starts_with("ID | WHEN | EVENT | USER | TOOK | DETAIL\n3 | AGO | stop | eve\\u{202e}/日本"),
        "{table}"
    );
    let page = command(&fleet, &["audit", "list", "--limit", "1", "--before", "3"]).await.assert_success();
    assert!(page.contains("provision") && page.contains("Older rows: --before 2"), "{page}");
    let stops = command(&fleet, &["audit", "list", "--event", "stop", "--user", EVE, "--json"]).await;
    let stops = document(&stops.assert_success());
    assert_eq!((&stops["rows"][0]["id"], stops["rows"].as_array().unwrap().len()), (&json!(3), 1), "{stops}");
    command(&fleet, &["audit", "list", "--event", "nothing"]).await.assert_failure(2, &["event"]);
}

/// The ids of the rows that a command has printed as JSON.
fn ids(program: &Program) -> Vec<i64> {
    let rows = program.output();
    let rows = rows.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    rows.map(|row| row["id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn events_are_followed_across_a_cut_each_of_them_once() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    product.engine("ada").await;
    let shown = command(&fleet, &["events", "--tail", "1"]).await.assert_success();
    assert!(shown.contains("  #2  provision  ada  ") && shown.lines().count() == 1, "{shown}");

    let orchestrator = up.base.strip_prefix("http://").unwrap().parse().unwrap();
    let forwarder = TcpForwarder::bind_any("127.0.0.1", orchestrator);
    let url = format!("http://{}", forwarder.address);
    let mut follower = start_command(&fleet, &["events", "-f", "--after", "0", "--json", "--url", &url]);
    follower.wait_for_output("\"provision\"").await.unwrap();
    let address = forwarder.address;
    drop(forwarder);
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:text");
    let _forwarder = TcpForwarder::bind(address, orchestrator);
    follower.wait_for_output("\"start\"").await.unwrap();
    assert_eq!(ids(&follower), [1, 2, 3, 4]);
    processes::signal(follower.pid(), Signal::INT);
    follower.wait().await.assert_failure(130, &[]);
}

#[tokio::test]
async fn a_log_is_followed() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    product.engine("ada").await;
    let mut follower = start_command(&fleet, &["engine", "logs", "ada", "-f"]);
    follower.wait_for_output("The engine is ready").await.unwrap();
    product.stop("ada").await.assert_ok("status:text");
    follower.wait_for_output("The engine has stopped").await.unwrap();
    assert_eq!(follower.output().matches("The engine is ready").count(), 1, "{}", follower.output());
    follower.signal_and_wait(Signal::TERM).await.assert_failure(143, &[]);
}
