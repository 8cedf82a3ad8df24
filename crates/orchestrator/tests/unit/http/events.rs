//! The audit log as an event stream: no row is lost, repeated or out of order, even with slow clients and
//! restarts.

use std::time::Duration;

use api::audit::AuditRow;
use axum::body::BodyDataStream;
use futures::StreamExt as _;
use futures::future::join_all;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

use crate::testing::{ADMIN_KEY, ProductClient, TestApp, summarize};

/// A client of the stream. It splits the bytes that it receives into events, as browsers do.
struct EventStream {
    body: BodyDataStream,
    buffer: String,
}

impl EventStream {
    async fn open(product: &ProductClient<'_>, query: &str, last_event_id: Option<i64>) -> Self {
        let last = last_event_id.map(|id| id.to_string());
        let mut headers = vec![("X-Platform-Key", product.key.as_str())];
        headers.extend(last.as_deref().map(|last| ("Last-Event-ID", last)));
        let response = product.app.send_unread("GET", &format!("/events{query}"), &headers, "").await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-cache, no-transform");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Self { body: response.into_body().into_data_stream(), buffer: String::new() }
    }

    /// Returns the next block, an event or a comment; `None` at the end of the stream.
    async fn next_block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let block = block.to_owned();
                self.buffer = rest.to_owned();
                return Some(block);
            }
            let next = tokio::time::timeout(Duration::from_secs(10), self.body.next());
            let bytes = next.await.expect("nothing was received")?.unwrap();
            self.buffer.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    /// Returns the next row.
    async fn next_row(&mut self) -> AuditRow {
        let block = self.next_block().await.expect("the stream ended");
        let mut lines = block.lines();
        let event = lines.next().unwrap().strip_prefix("event: ").unwrap();
        let id = lines.next().unwrap().strip_prefix("id: ").unwrap();
        let row: AuditRow =
            serde_json::from_str(lines.next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!((lines.next(), &*row.event, row.id.to_string().as_str()), (None, event, id));
        row
    }

    async fn next_ids(&mut self, count: usize) -> Vec<i64> {
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(self.next_row().await.id);
        }
        ids
    }

    /// Reads for 50 ms, and returns whether nothing was received.
    async fn is_silent(&mut self) -> bool {
        let wait = tokio::time::timeout(Duration::from_millis(50), self.body.next());
        self.buffer.is_empty() && wait.await.is_err()
    }
}

#[tokio::test]
async fn rows_come_as_they_are_committed() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let other = app.register_product("other", json!({})).await;
    product.provision("ann").await;
    let mut from_now = EventStream::open(&product, "", None).await;
    let mut all = EventStream::open(&product, "?after=0", None).await;
    let mut after = EventStream::open(&product, "?after=1", None).await;
    let mut resumed = EventStream::open(&product, "?after=0", Some(1)).await;
    assert_eq!(all.next_ids(2).await, [1, 2]);
    assert_eq!(after.next_ids(1).await, [2]);
    assert_eq!(resumed.next_ids(1).await, [2], "the header takes precedence over the query");
    other.provision("ann").await;
    product.stop("ann").await;
    for stream in [&mut from_now, &mut all, &mut after, &mut resumed] {
        let row = stream.next_row().await;
        assert_eq!((row.id, &*row.event), (3, "stop"));
    }
    // The stream has the same rows as the pages of the audit log.
    let (_, audit) = product.get_path("/audit?limit=1").await;
    product.start("ann").await;
    assert_eq!(from_now.next_row().await.id, 4);
    let row = EventStream::open(&product, "?after=2", None).await.next_row().await;
    assert_eq!(serde_json::to_value(&row).unwrap()["hash"], audit["rows"][0]["hash"]);
    assert_eq!(row.detail.get(), audit["rows"][0]["detail"].to_string());
    // Policy changes are rows as well.
    product.set_policy(json!({"suspended": true})).await;
    assert_eq!(&*from_now.next_row().await.event, "policy_update");
    assert_eq!(EventStream::open(&other, "?after=0", None).await.next_ids(2).await, [1, 2]);
}

/// The products and ids of the rows of all products that a stream begins with.
async fn fleet_rows(app: &TestApp, query: &str, count: usize) -> Vec<(String, i64)> {
    let path = format!("/fleet/events{query}");
    let response = app.send_unread("GET", &path, &[("X-Admin-Key", ADMIN_KEY)], "").await;
    assert_eq!(response.status(), 200);
    let mut stream = EventStream { body: response.into_body().into_data_stream(), buffer: String::new() };
    let mut rows = Vec::new();
    for _ in 0..count {
        let block = stream.next_block().await.expect("the stream ended");
        let data = block.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        let row: AuditRow = serde_json::from_str(data).unwrap();
        rows.push((row.product_id.to_string(), row.id));
    }
    assert!(stream.is_silent().await, "more than {rows:?}");
    rows
}

#[tokio::test]
async fn a_stream_of_all_products_begins_five_minutes_before_a_time_or_at_the_beginning() {
    let app = TestApp::new().await;
    let old = app.register_product("old", json!({})).await.product_id().await;
    let product = app.register_product("demo", json!({})).await;
    let id = product.product_id().await;
    // A row each minute.
    for limit in 2..30 {
        app.shift_wall(60_000);
        product.set_policy(json!({"max_engines": limit})).await;
    }
    let minute = |minute: i64| app.wall_ms() - (28 - minute) * 60_000;
    let rows = |first: i64| (first..=29).map(|row| (id.clone(), row)).collect::<Vec<_>>();
    assert_eq!(fleet_rows(&app, &format!("?after={}", minute(20)), 13).await, rows(17));
    assert_eq!(fleet_rows(&app, &format!("?after={}", minute(5)), 28).await, rows(2));
    let all = fleet_rows(&app, "?after=0", 30).await;
    assert_eq!(all.iter().filter(|(product, _)| *product == old).count(), 1, "{all:?}");
    assert_eq!(fleet_rows(&app, "", 0).await, []);
    // A time that is yet to come is now.
    assert_eq!(fleet_rows(&app, &format!("?after={}", minute(90)), 5).await, rows(25));
}

#[tokio::test]
async fn positions_are_checked() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    for query in ["after=-1", "after=x", "after=", "after=2", "after=9223372036854775807"] {
        let answer = product.get_path(&format!("/events?{query}")).await;
        assert_eq!(summarize(answer), "400 INVALID_REQUEST", "{query}");
    }
    for id in ["-1", "x", "2", "1.0", " "] {
        let headers = [("X-Platform-Key", product.key.as_str()), ("Last-Event-ID", id)];
        let (status, _, answer) = app.send("GET", "/events?after=0", &headers, "").await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("INVALID_REQUEST")), "{id:?}");
    }
    // Browsers send an empty header if they have received no event yet.
    let headers = [("X-Platform-Key", product.key.as_str()), ("Last-Event-ID", "")];
    assert_eq!(app.send_unread("GET", "/events", &headers, "").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_concurrent_commits_none_is_lost_none_comes_twice_and_all_in_order() {
    const FOLLOWERS: usize = 48;
    const USERS: usize = 40;
    const ROWS: usize = 1 + 3 * USERS;
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let changes = join_all((0..USERS).map(|user| {
        let product = product.clone();
        async move {
            let user = format!("u{user}");
            assert_eq!(product.provision(&user).await.0, 200);
            assert_eq!(product.stop(&user).await.0, 200);
            assert_eq!(product.delete(&user).await.0, 200);
        }
    }));
    let all: Vec<i64> = (1..=i64::try_from(ROWS).unwrap()).collect();
    // So many that some still read when the next commit comes; each in its own task, like connections.
    let mut followers = Vec::new();
    for _ in 0..FOLLOWERS {
        let mut stream = EventStream::open(&product, "?after=0", None).await;
        followers.push(tokio::spawn(async move { stream.next_ids(ROWS).await }));
    }
    // A client that disconnects repeatedly, after few rows or many, and resumes after the last one that it
    // received.
    let reconnecting = async {
        let mut received: Vec<i64> = Vec::new();
        while received.len() < ROWS {
            let last = received.last().copied().unwrap_or_default();
            let mut stream = EventStream::open(&product, "", Some(last)).await;
            let count = (1 + received.len() % 7).min(ROWS - received.len());
            received.extend(stream.next_ids(count).await);
        }
        assert_eq!(received, all);
    };
    tokio::join!(changes, reconnecting);
    for ids in join_all(followers).await {
        assert_eq!(ids.unwrap(), all);
    }
}

#[tokio::test]
async fn a_commit_while_the_ledger_is_being_read_is_not_missed() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    // The follower pauses after `steps` polls, with its read started or completed, and then the commit comes.
    for steps in 0..20 {
        let mut stream = EventStream::open(&product, "", None).await;
        let row = stream.next_row();
        tokio::pin!(row);
        for _ in 0..steps {
            assert!(futures::poll!(row.as_mut()).is_pending());
            tokio::task::yield_now().await;
        }
        product.set_policy(json!({})).await;
        assert_eq!(row.await.id, 2 + steps, "after {steps} steps");
    }
}

#[tokio::test]
async fn a_slow_client_holds_up_nobody_and_misses_nothing() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"max_engines": 1})).await;
    let mut slow = EventStream::open(&product, "?after=0", None).await;
    assert_eq!(slow.next_ids(1).await, [1]);
    // More than a page of rows is committed while the client does not read.
    for _ in 0..150 {
        product.provision("ann").await;
        product.delete("ann").await;
    }
    let mut fast = EventStream::open(&product, "?after=300", None).await;
    assert_eq!(fast.next_ids(1).await, [301]);
    assert_eq!(slow.next_ids(300).await, (2..=301).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_quiet_stream_is_kept_alive() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let mut stream = EventStream::open(&product, "", None).await;
    for _ in 0..3 {
        assert!(stream.is_silent().await);
        app.clock.advance(Duration::from_secs(15));
        assert!(stream.next_block().await.unwrap().starts_with(": "));
    }
    product.provision("ann").await;
    assert_eq!(stream.next_row().await.id, 2);
}

#[tokio::test]
async fn streams_end_when_the_orchestrator_stops_and_are_taken_up_after() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let mut stream = EventStream::open(&product, "?after=0", None).await;
    assert_eq!(stream.next_ids(1).await, [1]);
    product.provision("ann").await;
    app.orchestrator.fleet().end_streams();
    assert_eq!(stream.next_block().await, None);
    // A new stream ends at once.
    assert_eq!(EventStream::open(&product, "?after=0", None).await.next_block().await, None);
    let key = product.key.clone();
    drop(stream);
    let app = app.kill_and_replace().await;
    app.start().await;
    let product = ProductClient { app: &app, key };
    assert_eq!(EventStream::open(&product, "", Some(1)).await.next_ids(1).await, [2]);
}

#[tokio::test]
async fn a_client_of_the_stream_alone_knows_every_settled_state() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let mut stream = EventStream::open(&product, "?after=0", None).await;
    for user in ["ann", "bob", "eve"] {
        product.provision(user).await;
    }
    product.stop("ann").await;
    product.delete("bob").await;
    let mut states = std::collections::BTreeMap::new();
    for _ in 0..6 {
        let row = stream.next_row().await;
        let Some(user) = row.user_id else { continue };
        let detail: Value = serde_json::from_str(row.detail.get()).unwrap();
        match detail["to"].as_str() {
            Some(to) => states.insert(user.to_string(), to.to_owned()),
            None => states.remove(user.as_str()),
        };
    }
    let (_, list) = product.get_path("/engines").await;
    let listed = list["engines"].as_array().unwrap().iter();
    let listed = listed.map(|engine| {
        (engine["user_id"].as_str().unwrap().to_owned(), engine["status"].as_str().unwrap().to_owned())
    });
    assert_eq!(states, listed.collect());
}

/// A product that opens stream after stream gets only its share.
#[tokio::test]
async fn one_products_open_streams_leave_places_to_the_others() {
    let app = TestApp::new().await;
    let (shop, other) =
        (app.register_product("shop", json!({})).await, app.register_product("other", json!({})).await);
    app.orchestrator.fleet().admission.stream_limiter().set_limit(4);
    let open = async |product: &ProductClient<'_>, path: &str| {
        app.send_unread("GET", path, &[("X-Platform-Key", product.key.as_str())], "").await
    };
    let streams = [open(&shop, "/events").await, open(&shop, "/events").await];
    assert!(streams.iter().all(|stream| stream.status() == 200));
    for path in ["/events", "/engines/ann/proxy/tasks"] {
        let refused = open(&shop, path).await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (503, &"5".parse().unwrap())
        );
    }
    // Other requests are answered, and other products get streams.
    assert_eq!(shop.get_path("/status").await.0, 200);
    assert_eq!(open(&other, "/events").await.status(), 200);
    drop(streams);
    assert_eq!(open(&shop, "/events").await.status(), 200);
}
