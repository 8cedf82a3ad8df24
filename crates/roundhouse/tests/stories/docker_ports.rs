//! Story 32 (lesson o13): ports and addresses are bounded; what is out is said at once, and comes back when it is free.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::schema::ENGINE_RECORD;
use crate::support::{Deployment, Engine, Product, eventually};

/// The port of an engine.
fn port(engine: &Engine) -> u16 {
    engine.url.rsplit(':').next().unwrap().parse().unwrap()
}

/// A deployment whose engines have so many ports, and the first of them.
fn with_ports(count: u16) -> Option<(Deployment, u16)> {
    let place = Deployment::docker()?;
    let first = place.fleet.test_env.ports.first() + 10;
    let place = place
        .with_env("ORCH_PORT_MIN", first.to_string())
        .with_env("ORCH_PORT_MAX", (first + count - 1).to_string());
    Some((place, first))
}

/// What is left of a refused provision: nothing.
async fn assert_nothing_made(place: &Deployment, product: &Product, user: &str, containers: usize) {
    product.get(user).await.assert_error(404, "ENGINE_NOT_FOUND");
    assert_eq!(place.containers().await.len(), containers);
    let folders = std::fs::read_dir(place.fleet.folder().join("engines")).unwrap().count();
    assert_eq!(folders as u64, product.list("").await.1, "a folder for each engine");
}

#[tokio::test]
async fn lesson_o13_a_full_range_of_ports_is_said_at_once_and_a_stopped_engines_is_lent() {
    let Some((place, first)) = with_ports(2) else { return };
    let (_orchestrator, product) = place.start_with_product().await;
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
    assert_nothing_made(&place, &product, "eve", 2).await;

    // A stopped engine keeps its port until another needs it; then it has none, and none is free for it.
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
    let Some((place, first)) = with_ports(4) else { return };
    // One on the loopback interface, one on all of them.
    let _holders = [
        TcpListener::bind(("127.0.0.1", first)).unwrap(),
        TcpListener::bind(("0.0.0.0", first + 1)).unwrap(),
    ];
    let (_orchestrator, product) = place.start_with_product().await;
    let (ada, bob) = (product.engine("ada").await, product.engine("bob").await);
    let mut ports = [port(&ada), port(&bob)];
    ports.sort_unstable();
    assert_eq!(ports, [first + 2, first + 3]);
    assert_eq!(ada.health().await["status"], "ok");
    product.provision("eve").await.assert_error(503, "PORT_EXHAUSTION");
    assert_nothing_made(&place, &product, "eve", 2).await;
}

#[tokio::test]
async fn an_engine_whose_port_was_taken_while_it_was_stopped_gets_another() {
    let Some((place, _)) = with_ports(3) else { return };
    let (_orchestrator, product) = place.start_with_product().await;
    let ada = product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    let holder =
        eventually("the port is free", async || TcpListener::bind(("127.0.0.1", port(&ada))).ok()).await;
    product.start("ada").await.assert_ok("status:text url:url");
    let again = product.engine("ada").await;
    assert_ne!(port(&again), port(&ada));
    assert_eq!(again.health().await["status"], "ok");
    drop(holder);
    // The last one is preferred.
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(product.engine("ada").await.url, again.url);
}

#[tokio::test]
async fn lesson_o13_a_full_network_is_no_failure_of_the_daemon() {
    let Some(place) = Deployment::docker() else { return };
    // Four addresses: the network's own, this machine's, an engine's, and that of all.
    let subnet = format!("10.113.{}.0/30", place.fleet.test_env.ports.slot());
    let icc = "com.docker.network.bridge.enable_icc=false";
    place
        .docker_daemon()
        .run(&["network", "create", "--opt", icc, "--subnet", &subnet, place.network()])
        .await;
    let (_orchestrator, product) = place.start_with_product().await;
    product.engine("ada").await;
    let answer = product.provision("bob").await;
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    answer.assert_error(503, "CAPACITY_EXHAUSTED");
    assert_nothing_made(&place, &product, "bob", 1).await;
    assert_eq!(product.status("ada").await, "running");
    // It is no fault of the engine's either: it stays as it was.
    product.stop("ada").await.assert_ok("status:text");
    product.engine("bob").await.health().await;
    product.start("ada").await.assert_error(503, "CAPACITY_EXHAUSTED");
    product.delete("bob").await.assert_ok("status:text engine_id:engine");
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(product.list("?status=running").await.1, 1);
    assert!(product.audit_rows("crash").await.iter().all(|(_, detail)| detail["cause"] == json!("backend")));
}
