//! The operator reads and follows the audit logs of all products, and scrapes metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;

use futures::{Stream, StreamExt as _};
use reqwest::{Method, RequestBuilder};
use rustix::process::Signal;
use serde_json::{Value, json};
use sse_stream::{Sse, SseStream};

use crate::support::http::{client, send};
use crate::support::schema::{AUDIT_ROW, PROVISIONED};
use crate::support::{Deployment, Orchestrator, Product, assert_fields, with_deadline};

/// A row of the audit log by its product and its id.
type RowKey = (String, i64);

fn key(row: &Value) -> RowKey {
    (row["product_id"].as_str().unwrap().to_owned(), row["id"].as_i64().unwrap())
}

/// The events of all products as they arrive.
struct FleetEvents {
    events: Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>,
    /// The `Last-Event-ID` of the next connection.
    last: Option<String>,
    rows: Vec<Value>,
}

impl FleetEvents {
    async fn open(request: RequestBuilder) -> Self {
        let response = with_deadline("the stream begins", request.send()).await.unwrap();
        assert_eq!(response.status(), 200);
        let events = SseStream::from_bytes_stream(response.bytes_stream()).boxed();
        Self { events, last: None, rows: Vec::new() }
    }

    /// Reads until there is a row of each of these events about these users.
    async fn read_until(&mut self, wanted: &[(&str, &str)]) {
        let is_found = |rows: &[Value], (event, user): (&str, &str)| {
            rows.iter()
                .any(|row| row["event"] == event && row["user_id"].as_str().unwrap_or_default() == user)
        };
        while !wanted.iter().all(|wanted| is_found(&self.rows, *wanted)) {
            let sse =
                with_deadline("the next row", self.events.next()).await.expect("the stream ended").unwrap();
            let row: Value = serde_json::from_str(&sse.data.unwrap()).unwrap();
            assert_fields(&row, AUDIT_ROW);
            assert_eq!(sse.event.as_deref(), row["event"].as_str());
            self.last = sse.id;
            self.rows.push(row);
        }
    }
}

impl Orchestrator {
    fn follow(&self, last: Option<&str>) -> RequestBuilder {
        let request =
            client().get(format!("{}/fleet/events", self.base)).header("x-admin-key", &self.admin_key);
        match last {
            Some(last) => request.header("last-event-id", last),
            None => request,
        }
    }

    /// All rows of the audit logs, read in pages.
    async fn fleet_audit(&self, query: &str, limit: usize) -> Vec<Value> {
        let (mut rows, mut before) = (Vec::new(), String::new());
        loop {
            let path = format!("/fleet/audit?limit={limit}{query}{before}");
            let page = self.operate(Method::GET, &path).await.assert_ok("rows:array next:text|null");
            let found = page["rows"].as_array().unwrap();
            assert!(found.len() <= limit, "{page}");
            rows.extend(found.iter().cloned());
            match page["next"].as_str() {
                Some(next) => before = format!("&before={next}"),
                None => return rows,
            }
        }
    }
}

/// The keys of all rows of a product.
async fn rows_of(product: &Product) -> Vec<RowKey> {
    let page = product.call(Method::GET, "/audit?limit=1000", None).await.assert_ok("rows:array");
    page["rows"].as_array().unwrap().iter().map(key).collect()
}

#[tokio::test]
async fn the_audit_logs_of_all_products_are_read_in_one_order() {
    let deployment = Deployment::new();
    let (orchestrator, shop) = deployment.start_with_product().await;
    let bank = orchestrator.register("bank", json!({})).await;
    for (product, user) in [(&shop, "ada"), (&bank, "ada"), (&shop, "bob")] {
        product.provision(user).await.assert_ok(PROVISIONED);
        product.stop(user).await.assert_ok("status:text");
    }
    let all: BTreeSet<_> = [rows_of(&shop).await, rows_of(&bank).await].concat().into_iter().collect();
    assert_eq!(all.len(), 8);
    let once = orchestrator.fleet_audit("", 1000).await;
    for limit in [1, 3, 8] {
        let rows = orchestrator.fleet_audit("", limit).await;
        assert_eq!(rows, once, "{limit}");
    }
    assert_eq!(once.iter().map(key).collect::<BTreeSet<_>>(), all);
    for row in &once {
        assert_fields(row, AUDIT_ROW);
    }
    let times: Vec<_> = once.iter().map(|row| row["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted_by(|newer, older| newer >= older), "{times:?}");

    let shop_id = &rows_of(&shop).await[0].0;
    let of_shop = orchestrator.fleet_audit(&format!("&product_id={shop_id}"), 2).await;
    assert_eq!(of_shop.iter().map(key).collect::<Vec<_>>(), rows_of(&shop).await);
    let stops = orchestrator.fleet_audit("&event=stop&user_id=ada", 1).await;
    assert_eq!(stops.len(), 2, "{stops:?}");
    assert!(stops.iter().all(|row| row["event"] == "stop" && row["user_id"] == "ada"));
    for bad in ["before=x", "before=1.prod_x.1", "event=odd", "limit=0", "product_id=shop"] {
        let answer = orchestrator.operate(Method::GET, &format!("/fleet/audit?{bad}")).await;
        answer.assert_error(400, "INVALID_REQUEST");
    }
    shop.call(Method::GET, "/fleet/audit", None).await.assert_error(401, "INVALID_ADMIN_KEY");
    shop.call(Method::GET, "/fleet/events", None).await.assert_error(401, "INVALID_ADMIN_KEY");
}

#[tokio::test]
async fn whoever_follows_all_products_misses_nothing_also_of_those_that_are_new_and_over_a_kill() {
    let deployment = Deployment::new();
    let (orchestrator, shop) = deployment.start_with_product().await;
    shop.provision("before").await.assert_ok(PROVISIONED);
    let earlier = rows_of(&shop).await;
    let mut events = FleetEvents::open(orchestrator.follow(None)).await;
    let bank = orchestrator.register("bank", json!({})).await;
    events.read_until(&[("register", "")]).await;
    assert_eq!(events.rows.len(), 1, "only what is new: {:?}", events.rows);
    let (one, other) = tokio::join!(shop.provision("ada"), bank.provision("bob"));
    one.assert_ok(PROVISIONED);
    other.assert_ok(PROVISIONED);
    shop.stop("ada").await.assert_ok("status:text");
    events.read_until(&[("provision", "bob"), ("stop", "ada")]).await;

    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    let orchestrator = deployment.start().await;
    // While nobody follows.
    bank.stop("bob").await.assert_ok("status:text");
    shop.start("ada").await.assert_ok("status:text url:url");
    let mut resumed = FleetEvents::open(orchestrator.follow(events.last.as_deref())).await;
    shop.provision("eve").await.assert_ok(PROVISIONED);
    resumed.read_until(&[("stop", "bob"), ("provision", "eve")]).await;

    let seen: BTreeSet<_> = events.rows.iter().chain(&resumed.rows).map(key).collect();
    let missed: Vec<_> = [rows_of(&shop).await, rows_of(&bank).await]
        .concat()
        .into_iter()
        // The registration and the provision that came before.
        .filter(|row| !earlier.contains(row) && !seen.contains(row))
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
    // On one connection, each product's rows come in order and once.
    for rows in [&events.rows, &resumed.rows] {
        let mut last = BTreeMap::new();
        for (product, id) in rows.iter().map(key) {
            let before = last.insert(product.clone(), id);
            assert!(before.is_none_or(|before| before + 1 == id), "{product}: {before:?} {id}");
        }
    }

    // From the beginning.
    let mut all = FleetEvents::open(orchestrator.follow(Some("0"))).await;
    all.read_until(&[("stop", "bob"), ("provision", "eve")]).await;
    let found: BTreeSet<_> = all.rows.iter().map(key).collect();
    assert!(rows_of(&shop).await.iter().all(|row| found.contains(row)), "{found:?}");
    for bad in ["-1", "x", "1.5"] {
        send(orchestrator.follow(Some(bad))).await.assert_error(400, "INVALID_REQUEST");
    }
}

#[tokio::test]
async fn metrics_are_scraped_with_the_admin_key_as_a_bearer_token() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let scrape = async |name: &str, value: &str| {
        let request = client().get(format!("{}/metrics/prometheus", orchestrator.base));
        send(request.header(name, value)).await
    };
    let admin_key = &orchestrator.admin_key;
    for (name, value) in [
        ("authorization", format!("Bearer {admin_key}")),
        ("authorization", format!("bearer {admin_key}")),
        ("x-admin-key", admin_key.clone()),
    ] {
        assert_eq!(scrape(name, &value).await.status, 200, "{name}");
    }
    for (name, value) in [
        ("authorization", format!("Bearer {admin_key}x")),
        ("authorization", format!("Basic {admin_key}")),
        ("authorization", format!("Bearer {}", product.key)),
        ("x-platform-key", product.key.clone()),
    ] {
        scrape(name, &value).await.assert_error(401, "INVALID_ADMIN_KEY");
    }
    // A bearer token opens nothing else.
    let other = client().get(format!("{}/fleet/status", orchestrator.base));
    let other = other.header("authorization", format!("Bearer {admin_key}"));
    send(other).await.assert_error(401, "INVALID_ADMIN_KEY");
    let health = send(client().get(format!("{}/health", orchestrator.base))).await;
    assert_eq!(health.header("x-roundhouse-role"), Some("active"));
    health.assert_ok("status:text");
}
