//! A provider that sends deltas at a fixed pace, and writes into each delta the time at which it was sent.
//!
//! It answers every request of the Anthropic protocol and checks none: the checks of the mock provider would take
//! processor time from the measured programs.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::post;
use futures::stream::{self, StreamExt as _};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::baselines::serve;
use crate::engine::ModelConfig;
use crate::provider::Wire;

/// The digits of a sending time, which is in microseconds since the provider's start, with leading zeros.
const TIME_DIGITS: usize = 12;

const STREAM_HEAD: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_000000000000000000000001\",",
    "\"type\":\"message\",\"role\":\"assistant\",\"model\":\"paced\",\"content\":[],\"stop_reason\":null,",
    "\"stop_sequence\":null,\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,",
    "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
);
const STREAM_TAIL: &str = concat!(
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",",
    "\"stop_sequence\":null},\"usage\":{\"output_tokens\":10}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

/// The number of deltas of an answer, and the pauses between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) deltas: u32,
    /// The pause between two deltas; with `None` the answer is sent in one piece.
    pub(crate) pause: Option<Duration>,
}

/// A running paced provider.
pub(crate) struct PacedProvider {
    started_at: Instant,
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl PacedProvider {
    /// Starts the provider on a thread that nothing else uses.
    pub(crate) async fn start(pace: Pace) -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let began = Instant::now();
        let bound = runtime.spawn(async move { TcpListener::from_std(listener) }).await;
        let listener = bound.context("the provider's thread panicked")??;
        runtime.spawn(serve(listener, router(pace, began)));
        Ok(Self { started_at: began, address, runtime: Some(runtime) })
    }

    /// Returns the provider's address.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the instant to which the sending times are relative.
    pub(crate) const fn started_at(&self) -> Instant {
        self.started_at
    }

    /// Returns the configuration of an engine that uses this provider.
    pub(crate) fn model_config(&self) -> ModelConfig {
        ModelConfig::new(Wire::Anthropic.provider_name(), format!("http://{}", self.address))
    }
}

impl Drop for PacedProvider {
    fn drop(&mut self) {
        // Dropping a runtime blocks on its tasks, which panics inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn router(pace: Pace, began: Instant) -> Router {
    let answer =
        async move |_: Bytes| ([(CONTENT_TYPE, "text/event-stream")], body(pace, began)).into_response();
    Router::new().route(Wire::Anthropic.path(), post(answer)).layer(DefaultBodyLimit::disable())
}

fn body(pace: Pace, began: Instant) -> Body {
    let Some(pause) = pace.pause else {
        let deltas: String = (0..pace.deltas).map(|_| delta(began)).collect();
        return Body::from([STREAM_HEAD, &deltas, STREAM_TAIL].concat());
    };
    // Late ticks are caught up, so the pace is kept on average; each delta has its actual sending time.
    let ticks = tokio::time::interval(pause);
    let deltas = stream::unfold((ticks, pace.deltas), move |(mut ticks, left)| async move {
        let left = left.checked_sub(1)?;
        ticks.tick().await;
        Some((Bytes::from(delta(began)), (ticks, left)))
    });
    let end = |text| stream::iter([Bytes::from_static(str::as_bytes(text))]);
    Body::from_stream(end(STREAM_HEAD).chain(deltas).chain(end(STREAM_TAIL)).map(Ok::<_, Infallible>))
}

/// Returns a delta with the current time.
fn delta(began: Instant) -> String {
    let sent = began.elapsed().as_micros();
    format!(
        "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
         \"delta\":{{\"type\":\"text_delta\",\"text\":\"{sent:0TIME_DIGITS$}\"}}}}\n\n"
    )
}

/// Parses the sending times in a text, whose deltas may have been merged on their way.
///
/// # Errors
/// The text ends within a time or contains something else.
pub(crate) fn parse_send_times(text: &str) -> anyhow::Result<Vec<Duration>> {
    ensure!(text.len().is_multiple_of(TIME_DIGITS), "`{text}` does not consist of complete times");
    let time = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits)?;
        Ok(Duration::from_micros(digits.parse().with_context(|| format!("`{digits}` is not a time"))?))
    };
    text.as_bytes().chunks(TIME_DIGITS).map(time).collect()
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::Method;

    use super::*;
    use crate::client::Client;
    use crate::streamed;

    #[test]
    fn times_are_read_however_they_were_merged() {
        let micros = Duration::from_micros;
        assert!(parse_send_times("").unwrap().is_empty());
        assert_eq!(parse_send_times("000000000007000000012345").unwrap(), [micros(7), micros(12_345)]);
        assert!(parse_send_times("00000000000700").is_err());
        assert!(parse_send_times("0000000000x7").is_err());
    }

    #[tokio::test]
    async fn every_delta_is_sent_at_its_time() {
        for pause in [None, Some(Duration::from_millis(2))] {
            let provider = PacedProvider::start(Pace { deltas: 5, pause }).await.unwrap();
            let mut client = Client::connect(provider.address()).await.unwrap();
            let request = client.request(Method::POST, Wire::Anthropic.path()).body(Full::default()).unwrap();
            let requested = provider.started_at().elapsed();
            let response = streamed::send_sse(&mut client, request).await.unwrap();
            let times = parse_send_times(&response.provider_text(Wire::Anthropic).unwrap().text).unwrap();
            assert_eq!(times.len(), 5);
            assert!(times.is_sorted() && provider.started_at().elapsed() > times[4]);
            // On a busy machine deltas are late, but none is early; times are cut to microseconds.
            let last_due = requested + pause.unwrap_or_default() * 4;
            assert!(times[4] + Duration::from_micros(1) >= last_due, "{times:?}, due at {last_due:?}");
        }
    }
}
