//! One call of a provider over HTTP: send the request, read the answer's event stream, classify what fails.

mod ending;
mod framing;
mod outgoing;
mod reading;
mod silence;

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

use super::{Answer, ModelError, ModelErrorKind, Part, Parts, Request, Tokens, calls, classify};
use crate::names;
pub(super) use ending::{Ending, ended_early, no_reason};
use framing::Events;
pub(super) use framing::Framing;
use outgoing::Outgoing;
pub(super) use outgoing::{is_hash, stand_in};
pub(super) use reading::{Count, as_it_is, field, if_readable, needed, no_known_form, place, read};
use silence::{SILENCE, Watched};

/// How long a provider may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of a refusal's body is read, and for how long: its status alone tells most.
const MAX_ERROR_BODY: usize = 64 * 1024;
const ERROR_BODY: Duration = Duration::from_secs(10);
/// How much of what a provider says is shown to a person, in characters.
const MAX_SHOWN: usize = 1_000;

/// The longest answer, as it is kept, in bytes. No vendor's models write as much; a server that does not end one must
/// not fill the memory.
const MAX_ANSWER: Received = Received(16 * 1024 * 1024);

/// What the last event of a stream says in Chat Completions.
const END_MARK: &str = "[DONE]";

/// So many pieces of a body that make no part are read at one go: what is there at once, without an end, must not keep
/// others from the thread.
const AT_ONE_GO: usize = 64;

/// The length from which on a key is a secret, in bytes: servers that want none are given a word.
const MIN_SECRET: usize = 8;

/// Made at first use: an idle engine has neither connections nor TLS roots in memory.
static CLIENT: LazyLock<Result<reqwest::Client, String>> = LazyLock::new(|| {
    let names = Arc::new(names::OF_PROVIDERS.clone());
    let client = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).dns_resolver(names);
    // A provider that redirects elsewhere would be sent the key there.
    client.redirect(reqwest::redirect::Policy::none()).build().map_err(|error| chain(&error))
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
pub(super) struct Body<T> {
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
    fn event(&mut self, data: &str, parts: &mut VecDeque<Part>) -> Result<(), ModelError>;

    /// Takes the mark that Chat Completions end with. Compatible servers send it in streams of other protocols too, where
    /// it says nothing.
    ///
    /// # Errors
    /// The stream ended too early.
    fn end_mark(&mut self, _parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
        Ok(())
    }

    /// The answer, where nothing but the end of the stream says that it is whole; `parts` are those that come
    /// before [`Part::Done`].
    ///
    /// # Errors
    /// The stream ended too early.
    fn end(&mut self, _parts: &mut VecDeque<Part>) -> Result<Answer, ModelError> {
        Err(ended_early())
    }

    /// What the answer has cost so far, as far as the provider has told.
    fn spent(&self) -> Tokens;

    /// How much of the answer has come.
    fn received(&self) -> Received;
}

/// How much of an answer has come and is kept, in bytes: also what nobody is shown, such as the input of a call. It
/// grows as long as the answer gets on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
pub(super) struct Received(usize);

impl Received {
    /// Adds more of a block.
    pub(super) fn more(&mut self, bytes: usize) {
        self.0 = self.0.saturating_add(bytes);
    }

    /// Adds a block that begins, and what has come with it.
    pub(super) fn block(&mut self, bytes: usize) {
        // So much is kept of a block in which there is nothing.
        const BLOCK: usize = 256;
        self.more(BLOCK);
        self.more(bytes);
    }
}

/// Sets a field of a request's body.
pub(super) fn insert(body: &mut Value, field: &str, value: Value) {
    if let Value::Object(fields) = body {
        fields.insert(field.to_owned(), value);
    }
}

/// Sends `body` to `endpoint`, with what is attached to `request` in it, and decodes the streamed answer.
pub(super) fn call<D: Decoder, T: Serialize>(
    endpoint: Endpoint,
    request: &Request<'_>,
    body: &Body<T>,
    decoder: D,
) -> Parts {
    let attached = request.attached();
    let body = serde_json::to_vec(body).map(|json| Outgoing::new(json, &attached)).map_err(|error| {
        ModelError::new(ModelErrorKind::Refused, format!("the request cannot be written as JSON: {error}"))
    });
    let open = async move {
        let response = send(&endpoint, body?).await?;
        let body = Box::pin(response.bytes_stream());
        Ok::<_, ModelError>(Decoding::new(body, decoder, endpoint.key))
    };
    futures::stream::once(open).try_flatten().boxed()
}

/// An answer that comes, however its bytes are cut into pieces.
pub(super) struct Decoding<B, D> {
    body: Watched<B>,
    events: Events,
    decoder: D,
    /// What has been read and not been given out.
    parts: VecDeque<Part>,
    /// What is kept out of what the provider says.
    key: Option<SecretString>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Reading,
    /// The body has ended; what has come of it is read.
    AtEnd,
    /// Nothing more is given out.
    Over,
}

impl<B, D, E> Decoding<B, D>
where
    B: Stream<Item = Result<Bytes, E>> + Unpin,
    D: Decoder,
    E: std::error::Error + Send + Sync + 'static,
{
    /// Decodes `body`, whose provider was sent `key`.
    pub(super) fn new(body: B, decoder: D, key: Option<SecretString>) -> Self {
        let (body, events) = (Watched::new(body), Events::new(D::FRAMING));
        Self { body, events, decoder, parts: VecDeque::new(), key, state: State::Reading }
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Result<Part, ModelError>> {
        let broken_off = |why: &dyn std::error::Error| {
            let what = format!("the provider's stream broke off: {}", chain(why));
            Poll::Ready(Err(ModelError::new(ModelErrorKind::Broken, what)))
        };
        let mut pieces = 0;
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Poll::Ready(Ok(part));
            }
            match self.events.next() {
                Ok(Some(data)) if data.trim() == END_MARK => self.decoder.end_mark(&mut self.parts)?,
                Ok(Some(data)) => {
                    let before = self.decoder.received();
                    self.decoder.event(data, &mut self.parts)?;
                    let received = self.decoder.received();
                    if received > MAX_ANSWER {
                        let what = format!("the provider's answer has more than {} bytes", MAX_ANSWER.0);
                        return Poll::Ready(Err(ModelError::new(ModelErrorKind::Broken, what)));
                    }
                    if received != before {
                        self.body.note_progress();
                    }
                }
                Ok(None) if self.state == State::AtEnd => {
                    let answer = self.decoder.end(&mut self.parts)?;
                    self.parts.push_back(Part::Done(answer));
                }
                Ok(None) if pieces == AT_ONE_GO => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(None) => match ready!(self.body.poll_next(context)) {
                    Some(Ok(piece)) => {
                        pieces += 1;
                        self.events.add(piece);
                    }
                    Some(Err(error)) => return broken_off(&error),
                    None => {
                        self.state = State::AtEnd;
                        self.events.end();
                    }
                },
                Err(fault) => return broken_off(&fault),
            }
        }
    }
}

impl<B, D, E> Stream for Decoding<B, D>
where
    B: Stream<Item = Result<Bytes, E>> + Unpin,
    D: Decoder,
    E: std::error::Error + Send + Sync + 'static,
{
    type Item = Result<Part, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.state == State::Over {
            return Poll::Ready(None);
        }
        let mut part = ready!(self.poll_part(context)).map_err(|error| {
            let message = shown(&error.message, self.key.as_ref());
            // An answer that fails tells what it has cost until then: it is billed like any other.
            let Received(received) = self.decoder.received();
            ModelError { message, spent: self.decoder.spent(), received, ..error }
        });
        if let Ok(Part::Done(answer)) = &mut part {
            calls::tidy(answer);
        }
        if matches!(part, Ok(Part::Done(_)) | Err(_)) {
            self.state = State::Over;
        }
        Poll::Ready(Some(part))
    }
}

async fn send(endpoint: &Endpoint, body: Outgoing) -> Result<reqwest::Response, ModelError> {
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
    let response = tokio::time::timeout(SILENCE, request.send()).await;
    let response = response.map_err(|_| broken("it did not answer in time"))?;
    let response = response.map_err(|error| broken(&chain(&error)))?;
    if response.status().is_success() {
        Ok(response)
    } else {
        Err(refusal(response, endpoint.key.as_ref()).await)
    }
}

/// What a response without success means. A server that repeats the key in what it says does not get it shown.
async fn refusal(response: reqwest::Response, key: Option<&SecretString>) -> ModelError {
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let body = silence::beginning(response.bytes_stream(), MAX_ERROR_BODY, ERROR_BODY).await;
    let error = classify::refused(status, &headers, &body, jiff::Timestamp::now());
    ModelError { message: shown(&error.message, key), ..error }
}

/// What a person is shown of what a provider says. Cut once the key is out of it: a part of a key is not found.
fn shown(message: &str, key: Option<&SecretString>) -> String {
    let message = masked(message, key);
    match message.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => message.get(..end).unwrap_or_default().to_owned(),
        None => message,
    }
}

/// What a provider says, without the key.
fn masked(text: &str, key: Option<&SecretString>) -> String {
    match key.map(SecretString::expose_secret).filter(|key| key.len() >= MIN_SECRET) {
        Some(key) => text.replace(key, "[the key]"),
        None => text.to_owned(),
    }
}

/// An error with its causes, which alone tell what happened on a connection.
fn chain(error: &dyn std::error::Error) -> String {
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
    struct Plain(Received);

    impl Decoder for Plain {
        fn event(&mut self, data: &str, parts: &mut VecDeque<Part>) -> Result<(), ModelError> {
            if let Some(error) = data.strip_prefix('!') {
                return Err(ModelError::new(ModelErrorKind::Busy, error));
            }
            self.0.more(data.len());
            if !data.starts_with('+') {
                parts.push_back(Part::Delta(data.to_owned()));
            }
            Ok(())
        }

        fn received(&self) -> Received {
            self.0
        }

        fn spent(&self) -> Tokens {
            Tokens::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_always_there_leaves_others_the_thread_and_is_given_up() {
        let comments = futures::stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(b": on\n\n")));
        let mut parts = Decoding::new(comments, Plain::default(), None);
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
            let parts: Vec<_> = Decoding::new(Box::pin(pieces), Plain::default(), None).collect().await;
            assert_eq!(parts.iter().filter(|part| part.is_ok()).count(), shown, "{mark}");
            let last = parts.last();
            assert!(matches!(last, Some(Err(error)) if error.message == ended_early().message), "{last:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_without_an_end_does_not_fill_the_memory() {
        for mark in ["", "+"] {
            let event = Bytes::from(format!("data: {mark}{}\n\n", "x".repeat(100_000)));
            let events = futures::stream::iter(vec![Ok::<_, Infallible>(event); 400]);
            let mut parts = Decoding::new(events, Plain::default(), None);
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
        for (before, expected) in [(10, 10 + "[the key]".len() + 1), (MAX_SHOWN - 5, MAX_SHOWN)] {
            let message = format!("data: !{}{}.\n\n", "ü".repeat(before), key.expose_secret());
            let body = futures::stream::iter([Ok::<_, Infallible>(Bytes::from(message))]);
            let told = Decoding::new(body, Plain::default(), Some(key.clone())).next().await;
            let Some(Err(error)) = told else { panic!("{told:?}") };
            assert!(!error.message.contains("SECRET") && !error.message.contains("sk-"), "{error}");
            assert_eq!(error.message.chars().count(), expected);
        }
    }
}
