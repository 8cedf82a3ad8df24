//! Story 32 (lesson o13): ports and addresses are limited; exhaustion is reported at once, and ends when one is
//! free again.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::schema::ENGINE_RECORD;
use crate::support::{Deployment, Engine, Product, eventually};

/// The port of an engine.
fn port(engine: &Engine) -> u16 {
    engine.url.rsplit(':').next().unwrap().parse().unwrap()
}

/// A deployment with `count` ports for its engines, and the first of the ports.
fn with_ports(count: u16) -> Option<(Deployment, u16)> {
    let deployment = Deployment::docker()?;
    let first = deployment.fleet.test_env.ports.first() + 10;
    let deployment = deployment
        .with_env("ORCH_PORT_MIN", first.to_string())
        .with_env("ORCH_PORT_MAX", (first + count - 1).to_string());
    Some((deployment, first))
}

/// Asserts that a refused provision left nothing behind.
async fn assert_nothing_made(deployment: &Deployment, product: &Product, user: &str, containers: usize) {
    product.get(user).await.assert_error(404, "ENGINE_NOT_FOUND");
    assert_eq!(deployment.containers().await.len(), containers);
    let folders = std::fs::read_dir(deployment.fleet.folder().join("engines")).unwrap().count();
    assert_eq!(folders as u64, product.list("").await.1, "a folder for each engine");
}

#[tokio::test]
async fn regression_o13_a_full_range_of_ports_is_said_at_once_and_a_stopped_engines_is_lent() {
    let Some((deployment, first)) = with_ports(2) else { return };
    let (_orchestrator, product) = deployment.start_with_product().await;
    let (ada, bob) = (product.engine("ada").await, product.engine("bob").await);
    let mut ports = [port(&ada), port(&bob)];
    ports.sort_unstable();
    assert_eq!(ports, [first, first + 1]);
    let mut fastest = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        let answer = product.provision("eve").await;
        fastest = fastest.min(start.elapsed());
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
        answer.assert_error(503, "PORT_EXHAUSTION");
    }
    assert!(fastest < Duration::from_millis(50), "the fastest of twenty took {fastest:?}");
    assert_nothing_made(&deployment, &product, "eve", 2).await;

    // A stopped engine keeps its port until another engine needs it; then no port is free for it.
    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(product.get("ada").await.assert_ok(ENGINE_RECORD)["url"], ada.url.as_str());
    let eve = product.engine("eve").await;
    assert_eq!(port(&eve), port(&ada));
    assert_eq!(product.get("ada").await.assert_ok(ENGINE_RECORD)["url"], Value::Null);
    product.start("ada").await.assert_error(503, "PORT_EXHAUSTION");
    assert_eq!(product.status("ada").await, "stopped");
    product.delete("bob").await.assert_ok("status:text engine_id:engine");
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(port(&product.engine("ada").await), port(&bob));
}

#[tokio::test]
async fn a_port_that_something_else_holds_is_skipped() {
    let Some((deployment, first)) = with_ports(4) else { return };
    // One listens on the loopback interface, one on all interfaces.
    let _holders = [
        TcpListener::bind(("127.0.0.1", first)).unwrap(),
        TcpListener::bind(("0.0.0.0", first + 1)).unwrap(),
    ];
    let (_orchestrator, product) = deployment.start_with_product().await;
    let (ada, bob) = (product.engine("ada").await, product.engine("bob").await);
    let mut ports = [port(&ada), port(&bob)];
    ports.sort_unstable();
    assert_eq!(ports, [first + 2, first + 3]);
    assert_eq!(ada.health().await["status"], "ok");
    product.provision("eve").await.assert_error(503, "PORT_EXHAUSTION");
    assert_nothing_made(&deployment, &product, "eve", 2).await;
}

#[tokio::test]
async fn an_engine_whose_port_was_taken_while_it_was_stopped_gets_another() {
    let Some((deployment, _)) = with_ports(3) else { return };
    let (_orchestrator, product) = deployment.start_with_product().await;
    let ada = product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    let holder =
        eventually("the port is free", async || TcpListener::bind(("127.0.0.1", port(&ada))).ok()).await;
    product.start("ada").await.assert_ok("status:text url:url");
    let again = product.engine("ada").await;
    assert_ne!(port(&again), port(&ada));
    assert_eq!(again.health().await["status"], "ok");
    drop(holder);
    // An engine's previous port is preferred.
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(product.engine("ada").await.url, again.url);
}

#[tokio::test]
async fn regression_o13_a_full_network_is_no_failure_of_the_daemon() {
    let Some(deployment) = Deployment::docker() else { return };
    // Four addresses: the network's, the host's, an engine's, and the broadcast address.
    let subnet = format!("10.113.{}.0/30", deployment.fleet.test_env.ports.slot());
    let icc = "com.docker.network.bridge.enable_icc=false";
    deployment
        .docker_daemon()
        .run(&["network", "create", "--opt", icc, "--subnet", &subnet, deployment.network()])
        .await;
    let (_orchestrator, product) = deployment.start_with_product().await;
    product.engine("ada").await;
    let answer = product.provision("bob").await;
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    answer.assert_error(503, "CAPACITY_EXHAUSTED");
    assert_nothing_made(&deployment, &product, "bob", 1).await;
    assert_eq!(product.status("ada").await, "running");
    // It is no failure of the engine either, whose state stays the same.
    product.stop("ada").await.assert_ok("status:text");
    product.engine("bob").await.health().await;
    product.start("ada").await.assert_error(503, "CAPACITY_EXHAUSTED");
    product.delete("bob").await.assert_ok("status:text engine_id:engine");
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(product.list("?status=running").await.1, 1);
    assert!(product.audit_rows("crash").await.iter().all(|(_, detail)| detail["cause"] == json!("backend")));
}
