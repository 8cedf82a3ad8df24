//! Receives a streamed response with the arrival time of each event, and checks that it is correct.
//!
//! During the measurement, events are only split by one Server-Sent Events parser, the same for all servers; their
//! data is parsed afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use api::event::{Event, Lifecycle, SentEvent};
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::Incoming;
use serde_json::Value;
use sse_stream::{Sse, SseStream};

use crate::client::{Client, HttpRequest, REQUEST_TIMEOUT};
use crate::provider::Wire;

/// The events of a streamed response in order of arrival.
pub(crate) struct StreamedResponse {
    sent: Instant,
    events: Vec<(Instant, Sse)>,
}

/// The text of an answer, and the times from the request to its first and last delta.
#[derive(Debug)]
pub(crate) struct TimedText {
    pub(crate) first: Duration,
    pub(crate) last: Duration,
    pub(crate) text: String,
    /// The `ts` of the last event; 0 if the stream's events have none.
    pub(crate) last_ts: i64,
}

/// Sends a request to a provider and reads the stream to its end, in the form of the protocol.
pub(crate) async fn send_to_provider(
    client: &mut Client,
    request: HttpRequest,
    wire: Wire,
) -> anyhow::Result<StreamedResponse> {
    match wire {
        Wire::Anthropic | Wire::OpenAi | Wire::Responses | Wire::Gemini => send_sse(client, request).await,
        Wire::Ollama => send_ndjson(client, request).await,
    }
}

/// Sends a request and reads the event stream to its end.
pub(crate) async fn send_sse(client: &mut Client, request: HttpRequest) -> anyhow::Result<StreamedResponse> {
    let sent = Instant::now();
    let mut stream = SseStream::new(send(client, request).await?);
    let mut events = Vec::new();
    let read = async {
        while let Some(event) = stream.next().await {
            events.push((Instant::now(), event.context("the stream broke off")?));
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::time::timeout(REQUEST_TIMEOUT, read).await.context("the stream did not end in time")??;
    Ok(StreamedResponse { sent, events })
}

/// Sends a request and reads a stream of newline-delimited JSON to its end; each line is the data of one event.
async fn send_ndjson(client: &mut Client, request: HttpRequest) -> anyhow::Result<StreamedResponse> {
    let sent = Instant::now();
    let mut body = send(client, request).await?;
    let (mut events, mut open) = (Vec::new(), Vec::new());
    let read = async {
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.context("the stream broke off")?.into_data() else { continue };
            open.extend_from_slice(&data);
            let complete = open.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let lines: Vec<u8> = open.drain(..complete).collect();
            for line in std::str::from_utf8(&lines)?.lines() {
                let data = Some(line.to_owned());
                events.push((Instant::now(), Sse { data, ..Sse::default() }));
            }
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::time::timeout(REQUEST_TIMEOUT, read).await.context("the stream did not end in time")??;
    ensure!(open.is_empty(), "the stream's last line has no end");
    Ok(StreamedResponse { sent, events })
}

async fn send(client: &mut Client, request: HttpRequest) -> anyhow::Result<Incoming> {
    let response = client.send(request).await?;
    let status = response.status();
    if status != StatusCode::OK {
        let body = response.into_body().collect().await?.to_bytes();
        bail!("the streaming request was answered with {status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(response.into_body())
}

impl StreamedResponse {
    /// Returns the events with their arrival times.
    pub(crate) fn events(&self) -> &[(Instant, Sse)] {
        &self.events
    }

    /// Parses the response as a turn of an engine.
    ///
    /// # Errors
    /// Events out of order, an incomplete turn, or deltas that differ from the turn's final text.
    pub(crate) fn turn_text(&self) -> anyhow::Result<TimedText> {
        let mut text = TextCollector::new(self.sent);
        let mut last_ts = 0;
        let mut completed = None;
        for (index, (at, sse)) in self.events.iter().enumerate() {
            let (Some(kind), Some(data)) = (&sse.event, &sse.data) else { bail!("{sse:?} is not an event") };
            let SentEvent { ts, event, .. } = SentEvent::from_sse(kind, data).context("an unknown event")?;
            ensure!(completed.is_none(), "`{kind}` came after the turn's end");
            if matches!(event, Event::Heartbeat(_)) {
                continue;
            }
            ensure!(ts > last_ts, "`{kind}` has the time {ts}, and the event before it {last_ts}");
            last_ts = ts;
            let begins = matches!(event, Event::ThreadLifecycle(Lifecycle::Started { .. }));
            ensure!(begins == (index == 0), "`{kind}` is event {index} of the turn");
            match event {
                Event::TextDelta(delta) => text.add(*at, &delta.text),
                Event::ThreadLifecycle(Lifecycle::Completed { text, .. }) => completed = Some(text),
                Event::ThreadLifecycle(Lifecycle::Started { .. }) => {}
                Event::ThreadLifecycle(_) | Event::Error(_) => bail!("the turn went wrong: {kind} {data}"),
                _ => {}
            }
        }
        let completed = completed.context("the turn did not complete")?;
        let text = text.finish()?;
        ensure!(text.text == completed, "the deltas are not the final text");
        Ok(TimedText { last_ts, ..text })
    }

    /// Parses the response as a provider's answer.
    ///
    /// # Errors
    /// The stream has no end mark or no text.
    pub(crate) fn provider_text(&self, wire: Wire) -> anyhow::Result<TimedText> {
        let mut text = TextCollector::new(self.sent);
        for (at, delta) in self.deltas(wire)? {
            text.add(at, &delta);
        }
        text.finish()
    }

    /// Parses a stream whose messages are JSON. `read` returns the text that a message adds, and whether it is the last.
    ///
    /// # Errors
    /// Those of `read`; a message after the last one; the stream has no last message or no text.
    pub(crate) fn json_text(
        &self,
        read: impl Fn(&Value) -> anyhow::Result<(Option<&Value>, bool)>,
    ) -> anyhow::Result<TimedText> {
        let mut text = TextCollector::new(self.sent);
        let mut has_ended = false;
        for (at, sse) in &self.events {
            ensure!(!has_ended, "{sse:?} came after the last message");
            let message = serde_json::from_str(sse.data.as_deref().unwrap_or_default());
            let message: Value = message.context("a message is not JSON")?;
            let (delta, is_last) = read(&message)?;
            if let Some(delta) = delta.and_then(Value::as_str) {
                text.add(*at, delta);
            }
            has_ended = is_last;
        }
        ensure!(has_ended, "the stream has no last message");
        text.finish()
    }

    /// Returns the deltas of a provider's answer with their arrival times.
    ///
    /// # Errors
    /// The stream has no end mark.
    pub(crate) fn deltas(&self, wire: Wire) -> anyhow::Result<Vec<(Instant, String)>> {
        let mut deltas = Vec::new();
        let mut ended = false;
        for (at, sse) in &self.events {
            ensure!(!ended, "{sse:?} came after the end mark");
            let data = sse.data.as_deref().unwrap_or_default();
            if data == "[DONE]" {
                ended = wire == Wire::OpenAi;
                continue;
            }
            let value: Value = serde_json::from_str(data).context("a chunk is not JSON")?;
            let kind = value.get("type").and_then(Value::as_str);
            ended = match wire {
                Wire::Anthropic => kind == Some("message_stop"),
                Wire::OpenAi => false,
                Wire::Responses => kind == Some("response.completed"),
                Wire::Gemini => value.pointer("/candidates/0/finishReason").is_some(),
                Wire::Ollama => value.get("done").and_then(Value::as_bool) == Some(true),
            };
            let delta = match wire {
                Wire::Anthropic => value.pointer("/delta/text"),
                Wire::OpenAi => value.pointer("/choices/0/delta/content"),
                Wire::Responses if kind == Some("response.output_text.delta") => value.get("delta"),
                Wire::Responses => None,
                Wire::Gemini => value.pointer("/candidates/0/content/parts/0/text"),
                Wire::Ollama => value.pointer("/message/content"),
            };
            if let Some(delta) = delta.and_then(Value::as_str).filter(|delta| !delta.is_empty()) {
                deltas.push((*at, delta.to_owned()));
            }
        }
        ensure!(ended, "the provider's stream has no end mark");
        Ok(deltas)
    }
}

struct TextCollector {
    sent: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    text: String,
}

impl TextCollector {
    const fn new(sent: Instant) -> Self {
        Self { sent, first: None, last: None, text: String::new() }
    }

    fn add(&mut self, at: Instant, text: &str) {
        self.first.get_or_insert(at);
        self.last = Some(at);
        self.text.push_str(text);
    }

    fn finish(self) -> anyhow::Result<TimedText> {
        let (first, last) = self.first.zip(self.last).context("the stream contained no text")?;
        let since = |at: Instant| at.saturating_duration_since(self.sent);
        Ok(TimedText { first: since(first), last: since(last), text: self.text, last_ts: 0 })
    }
}

#[cfg(test)]
#[path = "streamed_tests.rs"]
mod tests;
