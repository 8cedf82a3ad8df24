//! One call of a provider over HTTP: send the request, read the answer's event stream, classify what fails.

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
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde_json::Value;

use super::{
    Answer, EventStream, ModelError, ModelErrorKind, Request, StreamEvent, TokenUsage, classify, tool_calls,
};
use crate::dns;
use encoded_body::EncodedBody;
pub(super) use encoded_body::{is_hash, placeholder};
pub(super) use finish_reason::{RawFinishReason, missing_end_marker, missing_finish_reason};
use framing::EventReader;
pub(super) use framing::Framing;
use idle_timeout::{IDLE_TIMEOUT, IdleTimeoutBody};
pub(super) use lenient::{
    TokenCount, index_field, malformed_event, none_if_malformed, optional_field, parse_event, parse_untyped,
    require_field,
};

/// How long a provider may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of a refusal's body is read, and for how long: its status alone tells most.
const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of what a provider says is shown to a person, in characters.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// The longest answer, as it is kept, in bytes. No vendor's models write as much; a server that does not end one must
/// not fill the memory.
const MAX_ANSWER_BYTES: ReceivedBytes = ReceivedBytes(16 * 1024 * 1024);

/// What the last event of a stream says in Chat Completions.
const DONE_MARKER: &str = "[DONE]";

/// So many pieces of a body that make no part are read at one go: what is there at once, without an end, must not keep
/// others from the thread.
const MAX_CHUNKS_PER_POLL: usize = 64;

/// The length from which on a key is a secret, in bytes: servers that want none are given a word.
const MIN_SECRET_BYTES: usize = 8;

/// Made at first use: an idle engine has neither connections nor TLS roots in memory.
static CLIENT: LazyLock<Result<reqwest::Client, String>> = LazyLock::new(|| {
    let names = Arc::new(dns::PROVIDER_RESOLVER.clone());
    let client = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).dns_resolver(names);
    // A provider that redirects elsewhere would be sent the key there.
    client.redirect(reqwest::redirect::Policy::none()).build().map_err(|error| error_chain(&error))
});

/// Where and how to call a provider.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) url: String,
    pub(super) key_header: HeaderName,
    pub(super) key_prefix: &'static str,
    /// None where the server wants none.
    pub(super) key: Option<SecretString>,
    pub(super) headers: &'static [(&'static str, &'static str)],
}

/// The body of a request.
#[derive(Serialize)]
pub(super) struct RequestBody<T> {
    #[serde(flatten)]
    pub(super) fields: Value,
    /// What is told of the tools, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tools: Option<T>,
}

/// Reads the events of one answer. Pure: what it is given is all it knows.
pub(super) trait Decoder: Send + Unpin + 'static {
    /// How the provider marks its events.
    const FRAMING: Framing = Framing::Sse;

    /// Takes the data of one event of the stream, which are never blank, and adds the parts that it makes.
    ///
    /// # Errors
    /// An error that the provider reports in its stream, or an event that makes no sense.
    fn decode_event(&mut self, data: &str, parts: &mut VecDeque<StreamEvent>) -> Result<(), ModelError>;

    /// Takes the mark that Chat Completions end with. Compatible servers send it in streams of other protocols too, where
    /// it says nothing.
    ///
    /// # Errors
    /// The stream ended too early.
    fn handle_done_marker(&mut self, _parts: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
        Ok(())
    }

    /// The answer, where nothing but the end of the stream says that it is whole; `parts` are those that come
    /// before [`StreamEvent::Done`].
    ///
    /// # Errors
    /// The stream ended too early.
    fn finish(&mut self, _parts: &mut VecDeque<StreamEvent>) -> Result<Answer, ModelError> {
        Err(missing_end_marker())
    }

    /// What the answer has cost so far, as far as the provider has told.
    fn usage(&self) -> TokenUsage;

    /// How much of the answer has come.
    fn received(&self) -> ReceivedBytes;
}

/// How much of an answer has come and is kept, in bytes: also what nobody is shown, such as the input of a call. It
/// grows as long as the answer gets on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
pub(super) struct ReceivedBytes(usize);

impl ReceivedBytes {
    /// Adds more of a block.
    pub(super) fn add(&mut self, bytes: usize) {
        self.0 = self.0.saturating_add(bytes);
    }

    /// Adds a block that begins, and what has come with it.
    pub(super) fn add_block(&mut self, bytes: usize) {
        // So much is kept of a block in which there is nothing.
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

/// Sends `body` to `endpoint`, with what is attached to `request` in it, and decodes the streamed answer.
pub(super) fn call_provider<D: Decoder, T: Serialize>(
    endpoint: Endpoint,
    request: &Request<'_>,
    body: &RequestBody<T>,
    decoder: D,
) -> EventStream {
    let attached = request.attachments();
    let body = serde_json::to_vec(body).map(|json| EncodedBody::new(json, &attached)).map_err(|error| {
        ModelError::new(ModelErrorKind::Refused, format!("the request cannot be written as JSON: {error}"))
    });
    let open = async move {
        let response = send(&endpoint, body?).await?;
        let body = Box::pin(response.bytes_stream());
        Ok::<_, ModelError>(DecodedStream::new(body, decoder, endpoint.key))
    };
    futures::stream::once(open).try_flatten().boxed()
}

/// An answer that comes, however its bytes are cut into pieces.
pub(super) struct DecodedStream<B, D> {
    body: IdleTimeoutBody<B>,
    events: EventReader,
    decoder: D,
    /// What has been read and not been given out.
    pending: VecDeque<StreamEvent>,
    /// What is kept out of what the provider says.
    key: Option<SecretString>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The body has ended; what has come of it is read.
    BodyEnded,
    /// Nothing more is given out.
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
        let broken_off = |why: &dyn std::error::Error| {
            let what = format!("the provider's stream broke off: {}", error_chain(why));
            Poll::Ready(Err(ModelError::new(ModelErrorKind::Broken, what)))
        };
        let mut pieces = 0;
        loop {
            if let Some(part) = self.pending.pop_front() {
                return Poll::Ready(Ok(part));
            }
            match self.events.next_event() {
                Ok(Some(data)) if data.trim() == DONE_MARKER => {
                    self.decoder.handle_done_marker(&mut self.pending)?;
                }
                Ok(Some(data)) => {
                    let before = self.decoder.received();
                    self.decoder.decode_event(data, &mut self.pending)?;
                    let received = self.decoder.received();
                    if received > MAX_ANSWER_BYTES {
                        let what =
                            format!("the provider's answer has more than {} bytes", MAX_ANSWER_BYTES.0);
                        return Poll::Ready(Err(ModelError::new(ModelErrorKind::Broken, what)));
                    }
                    if received != before {
                        self.body.note_progress();
                    }
                }
                Ok(None) if self.state == State::BodyEnded => {
                    let answer = self.decoder.finish(&mut self.pending)?;
                    self.pending.push_back(StreamEvent::Done(answer));
                }
                Ok(None) if pieces == MAX_CHUNKS_PER_POLL => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(None) => match ready!(self.body.poll_next(context)) {
                    Some(Ok(piece)) => {
                        pieces += 1;
                        self.events.push(piece);
                    }
                    Some(Err(error)) => return broken_off(&error),
                    None => {
                        self.state = State::BodyEnded;
                        self.events.finish();
                    }
                },
                Err(fault) => return broken_off(&fault),
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
        let mut part = ready!(self.poll_event(context)).map_err(|error| {
            let message = redacted_excerpt(&error.message, self.key.as_ref());
            // An answer that fails tells what it has cost until then: it is billed like any other.
            let ReceivedBytes(received) = self.decoder.received();
            ModelError { message, usage: self.decoder.usage(), received_bytes: received, ..error }
        });
        if let Ok(StreamEvent::Done(answer)) = &mut part {
            tool_calls::normalize_calls(answer);
        }
        if matches!(part, Ok(StreamEvent::Done(_)) | Err(_)) {
            self.state = State::Finished;
        }
        Poll::Ready(Some(part))
    }
}

async fn send(endpoint: &Endpoint, body: EncodedBody) -> Result<reqwest::Response, ModelError> {
    let client = CLIENT.as_ref().map_err(|error| {
        ModelError::new(ModelErrorKind::NotConfigured, format!("no HTTP client could be made: {error}"))
    })?;
    // Said beforehand also where it is sent in pieces: not all servers take a body of unknown length.
    let length = body.length;
    let request = client.post(&endpoint.url).header(CONTENT_TYPE, "application/json");
    let mut request = request.header(CONTENT_LENGTH, length).body(body.into_body());
    if let Some(key) = &endpoint.key {
        let key = format!("{}{}", endpoint.key_prefix, key.expose_secret());
        let mut key = reqwest::header::HeaderValue::from_str(&key).map_err(|_| {
            ModelError::new(
                ModelErrorKind::NotConfigured,
                "the provider's key has characters that no key can have",
            )
        })?;
        key.set_sensitive(true);
        request = request.header(&endpoint.key_header, key);
    }
    for (name, value) in endpoint.headers {
        request = request.header(*name, *value);
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

/// What a response without success means. A server that repeats the key in what it says does not get it shown.
async fn response_error(response: reqwest::Response, key: Option<&SecretString>) -> ModelError {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let body =
        idle_timeout::read_prefix(response.bytes_stream(), MAX_ERROR_BODY_BYTES, ERROR_BODY_TIMEOUT).await;
    let error = classify::classify_response(status, &headers, &body, jiff::Timestamp::now());
    ModelError { message: redacted_excerpt(&error.message, key), ..error }
}

/// What a person is shown of what a provider says. Cut once the key is out of it: a part of a key is not found.
fn redacted_excerpt(message: &str, key: Option<&SecretString>) -> String {
    let message = redact_key(message, key);
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => message.get(..end).unwrap_or_default().to_owned(),
        None => message,
    }
}

/// What a provider says, without the key.
fn redact_key(text: &str, key: Option<&SecretString>) -> String {
    match key.map(SecretString::expose_secret).filter(|key| key.len() >= MIN_SECRET_BYTES) {
        Some(key) => text.replace(key, "[the key]"),
        None => text.to_owned(),
    }
}

/// An error with its causes, which alone tell what happened on a connection.
fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::time::{Instant, advance};

    use super::*;

    /// Makes a part of each event, an error of one that begins with `!`, and keeps one that begins with `+` to itself.
    #[derive(Default)]
    struct EchoDecoder(ReceivedBytes);

    impl Decoder for EchoDecoder {
        fn decode_event(&mut self, data: &str, parts: &mut VecDeque<StreamEvent>) -> Result<(), ModelError> {
            if let Some(error) = data.strip_prefix('!') {
                return Err(ModelError::new(ModelErrorKind::Busy, error));
            }
            self.0.add(data.len());
            if !data.starts_with('+') {
                parts.push_back(StreamEvent::Delta(data.to_owned()));
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
        let mut parts = DecodedStream::new(comments, EchoDecoder::default(), None);
        let (began, minute) = (Instant::now(), Duration::from_mins(1));
        let others = async {
            loop {
                advance(minute).await;
            }
        };
        let part = tokio::select! {
            biased;
            part = parts.next() => part,
            () = others => None,
        };
        let Some(Err(error)) = part else { panic!("{part:?}") };
        assert_eq!(error.kind, ModelErrorKind::Broken, "{error}");
        assert!((19 * minute..=21 * minute).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_gets_on_slowly_is_read_to_its_end() {
        for (shown, mark) in [(90, ""), (0, "+")] {
            let pieces = futures::stream::iter(0..90).then(|number| async move {
                tokio::time::sleep(Duration::from_mins(1)).await;
                Ok::<_, Infallible>(Bytes::from(format!("data: {mark}{number}\n\n")))
            });
            let parts: Vec<_> =
                DecodedStream::new(Box::pin(pieces), EchoDecoder::default(), None).collect().await;
            assert_eq!(parts.iter().filter(|part| part.is_ok()).count(), shown, "{mark}");
            let last = parts.last();
            assert!(
                matches!(last, Some(Err(error)) if error.message == missing_end_marker().message),
                "{last:?}"
            );
        }
    }

    #[tokio::test]
    async fn an_answer_without_an_end_does_not_fill_the_memory() {
        for mark in ["", "+"] {
            let event = Bytes::from(format!("data: {mark}{}\n\n", "x".repeat(100_000)));
            let events = futures::stream::iter(vec![Ok::<_, Infallible>(event); 400]);
            let mut parts = DecodedStream::new(events, EchoDecoder::default(), None);
            let last = loop {
                match parts.next().await.unwrap() {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert_eq!(last.message, "the provider's answer has more than 16777216 bytes", "{mark}");
        }
    }

    #[tokio::test]
    async fn a_key_where_a_message_is_cut_is_not_shown_in_part() {
        let key = SecretString::from("sk-SECRETSECRETSECRET");
        for (before, expected) in
            [(10, 10 + "[the key]".len() + 1), (MAX_MESSAGE_CHARS - 5, MAX_MESSAGE_CHARS)]
        {
            let message = format!("data: !{}{}.\n\n", "ü".repeat(before), key.expose_secret());
            let body = futures::stream::iter([Ok::<_, Infallible>(Bytes::from(message))]);
            let told = DecodedStream::new(body, EchoDecoder::default(), Some(key.clone())).next().await;
            let Some(Err(error)) = told else { panic!("{told:?}") };
            assert!(!error.message.contains("SECRET") && !error.message.contains("sk-"), "{error}");
            assert_eq!(error.message.chars().count(), expected);
        }
    }
}
