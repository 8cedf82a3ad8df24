//! `GET /events`: a product follows its audit log over a real connection.

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt as _};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::Value;
use sse_stream::{Sse, SseStream};

use crate::support::{Fleet, Product, assert_fields, with_deadline};

type Events = Pin<Box<dyn Stream<Item = Result<Sse, sse_stream::Error>> + Send>>;

async fn follow(product: &Product, last: Option<&str>) -> Events {
    let mut request = product.request(Method::GET, "/events");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let response = with_deadline("the stream begins", request.send()).await.unwrap();
    assert_eq!(response.status(), 200);
    SseStream::from_bytes_stream(response.bytes_stream()).boxed()
}

/// The next row: its id, its event, its user.
async fn next(events: &mut Events) -> (String, String, String) {
    let sse = with_deadline("the next row", events.next()).await.expect("the stream ended").unwrap();
    let row: Value = serde_json::from_str(&sse.data.unwrap()).unwrap();
    assert_fields(
        &row,
        "id:int at:time product_id:product engine_id:engine|null user_id:text|null event:text \
         duration_ms:int|null detail:object hash:text",
    );
    let (id, event) = (sse.id.unwrap(), sse.event.unwrap());
    assert_eq!((row["id"].to_string(), row["event"].as_str()), (id.clone(), Some(event.as_str())));
    (id, event, row["user_id"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_client_that_comes_back_after_a_restart_has_missed_nothing() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let mut events = follow(&product, Some("0")).await;
    assert_eq!(next(&mut events).await.1, "register");
    product.engine("ada").await;
    let (last, event, user) = next(&mut events).await;
    assert_eq!((event.as_str(), user.as_str()), ("provision", "ada"));

    // An open stream does not delay the shutdown.
    let start = Instant::now();
    up.signal_and_wait(Signal::TERM).await.assert_success();
    assert!(start.elapsed() < Duration::from_secs(10), "the shutdown took {:?}", start.elapsed());
    assert!(with_deadline("the stream ends", events.next()).await.is_none_or(|next| next.is_err()));

    let up = fleet.start_up().await;
    let product = up.product();
    product.engine("bob").await;
    let mut events = follow(&product, Some(&last)).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(_, _, user)| user != "bob") {
        seen.push(next(&mut events).await);
    }
    let ids: Vec<i64> = seen.iter().map(|(id, _, _)| id.parse().unwrap()).collect();
    let from = last.parse::<i64>().unwrap() + 1;
    let expected: Vec<i64> = (from..).take(ids.len()).collect();
    assert_eq!(ids, expected, "{seen:?}");
}
