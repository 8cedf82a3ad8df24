//! One call of a provider over HTTP: sends the request, decodes the event stream of the answer, and classifies
//! failures.

mod encoded_body;
mod finish_reason;
mod framing;
mod idle_timeout;
mod lenient;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use encoded_body::EncodedBody;
pub(super) use encoded_body::{is_hash, placeholder};
pub(super) use finish_reason::{RawFinishReason, missing_end_marker, missing_finish_reason};
use framing::EventReader;
pub(super) use framing::Framing;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use idle_timeout::{IDLE_TIMEOUT, IdleTimeoutBody};
pub(super) use lenient::{
    TokenCount, index_field, malformed_event, none_if_malformed, optional_field, parse_event, parse_untyped,
    require_field,
};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use resources::dns;
use resources::text::{error_chain, first_chars};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde_json::Value;

use super::{
    Answer, EventStream, ModelError, ModelErrorKind, Request, StreamEvent, TokenUsage, classify, tool_calls,
};

/// The time limit for connecting to a provider.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limits of size and time for reading an error response's body: its status alone says most.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum length of a provider's message that is shown to a person, in characters.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// The maximum size of an answer in memory, in bytes. No vendor's model writes as much; a server that never ends
/// its answer must not exhaust the memory.
const MAX_ANSWER_BYTES: ReceivedBytes = ReceivedBytes(16 * 1024 * 1024);

/// The last event of a stream in Chat Completions.
const DONE_MARKER: &str = "[DONE]";

/// The maximum number of body chunks that are read in one poll without producing an event. A body that is always
/// ready must not keep other tasks from the thread.
const MAX_CHUNKS_PER_POLL: usize = 64;

/// The minimum length of a key that is treated as a secret, in bytes: servers that need no key are given a
/// placeholder word.
const MIN_SECRET_BYTES: usize = 8;

/// Created at first use: an idle engine has neither connections nor TLS roots in memory.
static CLIENT: LazyLock<Result<reqwest::Client, String>> = LazyLock::new(|| {
    let names = Arc::new(dns::PROVIDER_RESOLVER.clone());
    let client = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).dns_resolver(names);
    // A provider that redirects elsewhere would cause the key to be sent there.
    client.redirect(reqwest::redirect::Policy::none()).build().map_err(|error| error_chain(&error))
});

/// The address, headers and key with which a provider is called.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) url: String,
    pub(super) key_header: HeaderName,
    pub(super) key_prefix: &'static str,
    /// `None` if the server needs no key.
    pub(super) key: Option<SecretString>,
    pub(super) headers: &'static [(&'static str, &'static str)],
}

/// The body of a request.
#[derive(Serialize)]
pub(super) struct RequestBody<T> {
    #[serde(flatten)]
    pub(super) fields: Value,
    /// The tool declarations; `None` if there are no tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tools: Option<T>,
}

/// Decodes the events of one answer. Pure: it depends only on its input.
pub(super) trait Decoder: Send + Unpin + 'static {
    /// How the provider delimits its events.
    const FRAMING: Framing = Framing::Sse;

    /// Decodes the data of one event, which are never blank, and appends the resulting stream events.
    ///
    /// # Errors
    /// The provider reported an error in its stream, or the event is malformed.
    fn decode_event(&mut self, data: &str, events: &mut VecDeque<StreamEvent>) -> Result<(), ModelError>;

    /// Handles the end marker of Chat Completions. Compatible servers also send it in streams of other protocols,
    /// where it has no meaning.
    ///
    /// # Errors
    /// The stream ended too early.
    fn handle_done_marker(&mut self, _events: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        Ok(())
    }

    /// Completes the answer at the end of the stream, for protocols without another end marker. `events` receives
    /// the events that precede [`StreamEvent::Done`].
    ///
    /// # Errors
    /// The stream ended too early.
    fn finish(&mut self, _events: &mut VecDeque<StreamEvent>) -> Result<Answer, ModelError> {
        Err(missing_end_marker())
    }

    /// The usage that the provider has reported so far.
    fn usage(&self) -> TokenUsage;

    /// How many bytes of the answer have been received.
    fn received(&self) -> ReceivedBytes;
}

/// The number of bytes of an answer that have been received and kept, including data that is never displayed, such
/// as a call's input. It grows as long as the answer makes progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
pub(super) struct ReceivedBytes(usize);

impl ReceivedBytes {
    /// Counts more bytes of a block.
    pub(super) fn add(&mut self, bytes: usize) {
        self.0 = self.0.saturating_add(bytes);
    }

    /// Counts a new block, and the bytes that came with it.
    pub(super) fn add_block(&mut self, bytes: usize) {
        // The memory used by an empty block.
        const BLOCK_OVERHEAD_BYTES: usize = 256;
        self.add(BLOCK_OVERHEAD_BYTES);
        self.add(bytes);
    }
}

/// Sets a field of a request's body.
pub(super) fn insert(body: &mut Value, field: &str, value: Value) {
    if let Value::Object(fields) = body {
        fields.insert(field.to_owned(), value);
    }
}

/// Sends `body` with the attachments of `request` to `endpoint`, and decodes the streamed answer.
pub(super) fn call_provider<D: Decoder, T: Serialize>(
    endpoint: Endpoint,
    request: &Request<'_>,
    body: &RequestBody<T>,
    decoder: D,
) -> EventStream {
    let attached = request.attachments();
    let body = serde_json::to_vec(body).map(|json| EncodedBody::new(json, &attached)).map_err(|error| {
        ModelError::new(
            ModelErrorKind::Refused,
            format!("the request could not be serialized as JSON: {error}"),
        )
    });
    let traceparent = traces::outgoing_traceparent();
    let open = async move {
        let response = send(&endpoint, body?, traceparent).await?;
        let body = Box::pin(response.bytes_stream());
        Ok::<_, ModelError>(DecodedStream::new(body, decoder, endpoint.key))
    };
    futures::stream::once(open).try_flatten().boxed()
}

/// The decoded events of an answer, independent of how its bytes are split into chunks.
pub(super) struct DecodedStream<B, D> {
    body: IdleTimeoutBody<B>,
    events: EventReader,
    decoder: D,
    /// Decoded events that have not been returned yet.
    pending: VecDeque<StreamEvent>,
    /// The key to redact from the provider's messages.
    key: Option<SecretString>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The body has ended; the events in the buffer are still to be decoded.
    BodyEnded,
    /// Nothing more is returned.
    Finished,
}

impl<B, D, E> DecodedStream<B, D>
where
    B: Stream<Item = Result<Bytes, E>> + Unpin,
    D: Decoder,
    E: std::error::Error + Send + Sync + 'static,
{
    /// Decodes `body`, whose provider was sent `key`.
    pub(super) fn new(body: B, decoder: D, key: Option<SecretString>) -> Self {
        let (body, events) = (IdleTimeoutBody::new(body), EventReader::new(D::FRAMING));
        Self { body, events, decoder, pending: VecDeque::new(), key, state: State::Reading }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Result<StreamEvent, ModelError>> {
        let stream_error = |cause: &dyn std::error::Error| {
            let message = format!("the provider's stream broke off: {}", error_chain(cause));
            Poll::Ready(Err(ModelError::new(ModelErrorKind::Broken, message)))
        };
        let mut chunk_count = 0;
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Poll::Ready(Ok(event));
            }
            match self.events.next_event() {
                Ok(Some(data)) if data.trim() == DONE_MARKER => {
                    self.decoder.handle_done_marker(&mut self.pending)?;
                }
                Ok(Some(data)) => {
                    let received_before = self.decoder.received();
                    self.decoder.decode_event(data, &mut self.pending)?;
                    let received = self.decoder.received();
                    if received > MAX_ANSWER_BYTES {
                        let message =
                            format!("the provider's answer is longer than {} bytes", MAX_ANSWER_BYTES.0);
                        return Poll::Ready(Err(ModelError::new(ModelErrorKind::Broken, message)));
                    }
                    if received != received_before {
                        self.body.note_progress();
                    }
                }
                Ok(None) if self.state == State::BodyEnded => {
                    let answer = self.decoder.finish(&mut self.pending)?;
                    self.pending.push_back(StreamEvent::Done(answer));
                }
                Ok(None) if chunk_count == MAX_CHUNKS_PER_POLL => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(None) => match ready!(self.body.poll_next(context)) {
                    Some(Ok(chunk)) => {
                        chunk_count += 1;
                        self.events.push(chunk);
                    }
                    Some(Err(error)) => return stream_error(&error),
                    None => {
                        self.state = State::BodyEnded;
                        self.events.finish();
                    }
                },
                Err(error) => return stream_error(&error),
            }
        }
    }
}

impl<B, D, E> Stream for DecodedStream<B, D>
where
    B: Stream<Item = Result<Bytes, E>> + Unpin,
    D: Decoder,
    E: std::error::Error + Send + Sync + 'static,
{
    type Item = Result<StreamEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.state == State::Finished {
            return Poll::Ready(None);
        }
        let mut event = ready!(self.poll_event(context)).map_err(|error| {
            let message = redacted_excerpt(&error.message, self.key.as_ref());
            // An answer that fails reports its usage so far, because it is billed like any other.
            let ReceivedBytes(received) = self.decoder.received();
            ModelError { message, usage: self.decoder.usage(), received_bytes: received, ..error }
        });
        if let Ok(StreamEvent::Done(answer)) = &mut event {
            tool_calls::normalize_calls(answer);
        }
        if matches!(event, Ok(StreamEvent::Done(_)) | Err(_)) {
            self.state = State::Finished;
        }
        Poll::Ready(Some(event))
    }
}

async fn send(
    endpoint: &Endpoint,
    body: EncodedBody,
    traceparent: Option<String>,
) -> Result<reqwest::Response, ModelError> {
    let client = CLIENT.as_ref().map_err(|error| {
        ModelError::new(
            ModelErrorKind::NotConfigured,
            format!("the HTTP client could not be created: {error}"),
        )
    })?;
    // Also set if the body is sent in chunks: not all servers accept a body of unknown length.
    let length = body.length;
    let request = client.post(&endpoint.url).header(CONTENT_TYPE, "application/json");
    let mut request = request.header(CONTENT_LENGTH, length).body(body.into_body());
    if let Some(key) = &endpoint.key {
        let key = format!("{}{}", endpoint.key_prefix, key.expose_secret());
        let mut key = reqwest::header::HeaderValue::from_str(&key).map_err(|_| {
            ModelError::new(
                ModelErrorKind::NotConfigured,
                "the provider's key contains characters that are not allowed in an HTTP header",
            )
        })?;
        key.set_sensitive(true);
        request = request.header(&endpoint.key_header, key);
    }
    for (name, value) in endpoint.headers {
        request = request.header(*name, *value);
    }
    if let Some(traceparent) = traceparent {
        request = request.header("traceparent", traceparent);
    }
    let broken = |reason: &str| {
        ModelError::new(ModelErrorKind::Broken, format!("the provider could not be reached: {reason}"))
    };
    let response = tokio::time::timeout(IDLE_TIMEOUT, request.send()).await;
    let response = response.map_err(|_| broken("it did not answer in time"))?;
    let response = response.map_err(|error| broken(&error_chain(&error)))?;
    if response.status().is_success() {
        Ok(response)
    } else {
        Err(response_error(response, endpoint.key.as_ref()).await)
    }
}

/// Classifies an unsuccessful response. If the server repeats the key in its message, the key is redacted.
async fn response_error(response: reqwest::Response, key: Option<&SecretString>) -> ModelError {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let body =
        idle_timeout::read_prefix(response.bytes_stream(), MAX_ERROR_BODY_BYTES, ERROR_BODY_TIMEOUT).await;
    let error = classify::classify_response(status, &headers, &body, jiff::Timestamp::now());
    ModelError { message: redacted_excerpt(&error.message, key), ..error }
}

/// The displayed part of a provider's message. The key is redacted before the cut, because a part of a key would
/// not be found.
fn redacted_excerpt(message: &str, key: Option<&SecretString>) -> String {
    first_chars(&redact_key(message, key), MAX_MESSAGE_CHARS).to_owned()
}

/// Replaces the key in a provider's message.
fn redact_key(text: &str, key: Option<&SecretString>) -> String {
    match key.map(SecretString::expose_secret).filter(|key| key.len() >= MIN_SECRET_BYTES) {
        Some(key) => text.replace(key, "[the key]"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::time::{Instant, advance};

    use super::*;

    /// Returns one stream event per event; an event that begins with `!` is an error, and one that begins with `+`
    /// is only counted.
    #[derive(Default)]
    struct EchoDecoder(ReceivedBytes);

    impl Decoder for EchoDecoder {
        fn decode_event(&mut self, data: &str, events: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
            if let Some(error) = data.strip_prefix('!') {
                return Err(ModelError::new(ModelErrorKind::Busy, error));
            }
            self.0.add(data.len());
            if !data.starts_with('+') {
                events.push_back(StreamEvent::Delta(data.to_owned()));
            }
            Ok(())
        }

        fn received(&self) -> ReceivedBytes {
            self.0
        }

        fn usage(&self) -> TokenUsage {
            TokenUsage::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_always_there_leaves_others_the_thread_and_is_given_up() {
        let comments = futures::stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(b": on\n\n")));
        let mut events = DecodedStream::new(comments, EchoDecoder::default(), None);
        let (start, minute) = (Instant::now(), Duration::from_mins(1));
        let clock = async {
            loop {
                advance(minute).await;
            }
        };
        let event = tokio::select! {
            biased;
            event = events.next() => event,
            () = clock => None,
        };
        let Some(Err(error)) = event else { panic!("{event:?}") };
        assert_eq!(error.kind, ModelErrorKind::Broken, "{error}");
        assert!((19 * minute..=21 * minute).contains(&start.elapsed()), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_gets_on_slowly_is_read_to_its_end() {
        for (event_count, prefix) in [(90, ""), (0, "+")] {
            let chunks = futures::stream::iter(0..90).then(|number| async move {
                tokio::time::sleep(Duration::from_mins(1)).await;
                Ok::<_, Infallible>(Bytes::from(format!("data: {prefix}{number}\n\n")))
            });
            let events: Vec<_> =
                DecodedStream::new(Box::pin(chunks), EchoDecoder::default(), None).collect().await;
            assert_eq!(events.iter().filter(|event| event.is_ok()).count(), event_count, "{prefix}");
            let last = events.last();
            assert!(
                matches!(last, Some(Err(error)) if error.message == missing_end_marker().message),
                "{last:?}"
            );
        }
    }

    #[tokio::test]
    async fn an_answer_without_an_end_does_not_fill_the_memory() {
        for prefix in ["", "+"] {
            let event = Bytes::from(format!("data: {prefix}{}\n\n", "x".repeat(100_000)));
            let events = futures::stream::iter(vec![Ok::<_, Infallible>(event); 400]);
            let mut events = DecodedStream::new(events, EchoDecoder::default(), None);
            let error = loop {
                match events.next().await.unwrap() {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert_eq!(error.message, "the provider's answer is longer than 16777216 bytes", "{prefix}");
        }
    }

    #[tokio::test]
    async fn a_key_where_a_message_is_cut_is_not_shown_in_part() {
        let key = SecretString::from("sk-SECRETSECRETSECRET");
        for (prefix_chars, expected) in
            [(10, 10 + "[the key]".len() + 1), (MAX_MESSAGE_CHARS - 5, MAX_MESSAGE_CHARS)]
        {
            let message = format!("data: !{}{}.\n\n", "ü".repeat(prefix_chars), key.expose_secret());
            let body = futures::stream::iter([Ok::<_, Infallible>(Bytes::from(message))]);
            let first = DecodedStream::new(body, EchoDecoder::default(), Some(key.clone())).next().await;
            let Some(Err(error)) = first else { panic!("{first:?}") };
            assert!(!error.message.contains("SECRET") && !error.message.contains("sk-"), "{error}");
            assert_eq!(error.message.chars().count(), expected);
        }
    }
}
