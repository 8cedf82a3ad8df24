//! A client's reader of event streams.

use std::pin::Pin;

use futures::{Stream, StreamExt as _, TryStreamExt as _};
use reqwest::RequestBuilder;
use serde_json::Value;
use sse_stream::{Sse, SseStream};

use super::schema::assert_event;
use super::with_deadline;

/// An event with its `id:` line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// The events of a stream as they arrive. Heartbeats are checked and skipped.
pub(crate) struct EventStream {
    events: Pin<Box<dyn Stream<Item = Result<Sse, String>> + Send>>,
    /// The events that were read so far.
    pub(crate) received: Vec<Event>,
}

impl Event {
    pub(crate) fn ts(&self) -> i64 {
        self.data["ts"].as_i64().unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        self.data["text"].as_str().unwrap_or_default()
    }

    /// The phase of a lifecycle event.
    pub(crate) fn phase(&self) -> Option<&str> {
        (self.kind == "thread_lifecycle").then(|| self.data["phase"].as_str().unwrap())
    }
}

impl EventStream {
    /// Sends a request whose response must be a stream of events.
    pub(crate) async fn open(request: RequestBuilder) -> Self {
        let response = with_deadline("the stream begins", request.send()).await.unwrap();
        let status = response.status();
        let header =
            |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let head = [header("content-type"), header("cache-control"), header("x-accel-buffering")];
        assert!(status == 200, "not a stream, but {status}: {}", response.text().await.unwrap());
        assert_eq!(head[0].as_deref(), Some("text/event-stream"));
        assert_eq!(head[1].as_deref(), Some("no-cache, no-transform"));
        assert_eq!(head[2].as_deref(), Some("no"));
        let events = SseStream::from_bytes_stream(response.bytes_stream()).map_err(|error| error.to_string());
        Self { events: events.boxed(), received: Vec::new() }
    }

    /// The next event; `None` at the end, an error if the connection broke.
    pub(crate) async fn try_next(&mut self) -> Result<Option<Event>, String> {
        loop {
            let Some(sse) = with_deadline("the next event", self.events.next()).await.transpose()? else {
                return Ok(None);
            };
            let kind = sse.event.expect("every event has its type");
            let data: Value = serde_json::from_str(&sse.data.expect("every event has data")).unwrap();
            if kind == "heartbeat" {
                assert_eq!(sse.id, None, "a heartbeat has no id");
                continue;
            }
            assert_event(&kind, &data);
            let id = sse.id.unwrap_or_else(|| {
                assert_eq!(kind, "busy_update", "every other event has an id");
                data["ts"].to_string()
            });
            let event = Event { id, kind, data };
            assert_eq!(event.id, event.ts().to_string(), "the id is the ts");
            self.received.push(event.clone());
            return Ok(Some(event));
        }
    }

    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        self.try_next().await.unwrap_or_else(|error| {
            panic!(
                "the stream broke after {} events: {error}; last {:?}",
                self.received.len(),
                self.received.last()
            )
        })
    }

    /// Reads until an event matches; returns it.
    pub(crate) async fn read_until(&mut self, what: &str, matches: impl Fn(&Event) -> bool) -> Event {
        loop {
            match self.next().await {
                Some(event) if matches(&event) => return event,
                Some(_) => {}
                None => panic!("the stream ended without {what}; it had {:#?}", self.received),
            }
        }
    }

    /// Reads to the end; returns all events, including those read before.
    pub(crate) async fn collect(mut self) -> Vec<Event> {
        while self.next().await.is_some() {}
        self.received
    }

    /// Reads until the connection breaks or ends; returns all events.
    pub(crate) async fn collect_until_broken(mut self) -> Vec<Event> {
        while let Ok(Some(_)) = self.try_next().await {}
        self.received
    }
}
