//! One call of a provider over HTTP: send the request, read the answer's event stream, classify what fails.

mod framing;
mod silence;

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use reqwest::header::{CONTENT_TYPE, HeaderName};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Serialize;
use serde_json::Value;
use sse_stream::Sse;

use super::{Answer, ModelError, ModelErrorKind, Part, Parts, Tokens, classify};
use framing::Events;
pub(super) use framing::Framing;

/// How long a provider may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a provider may be silent, before its first byte or between two: a model that thinks hard sends
/// pings or nothing for minutes.
const SILENCE: Duration = Duration::from_mins(5);
/// How much of a refusal's body is read, and for how long: its status alone tells most.
const MAX_ERROR_BODY: usize = 64 * 1024;
const ERROR_BODY: Duration = Duration::from_secs(10);

/// The length from which on a key is a secret, in bytes: servers that want none are given a word.
const MIN_SECRET: usize = 8;

/// Made at first use: an idle engine has neither connections nor TLS roots in memory.
static CLIENT: LazyLock<Result<reqwest::Client, String>> = LazyLock::new(|| {
    let client = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT);
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
pub(super) trait Decoder: Send + 'static {
    /// How the provider marks its events.
    const FRAMING: Framing = Framing::Sse;

    /// Takes one event of the stream and adds the parts that it makes.
    ///
    /// # Errors
    /// An error that the provider reports in its stream, or an event that makes no sense.
    fn event(&mut self, event: &Sse, parts: &mut VecDeque<Part>) -> Result<(), ModelError>;

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
}

/// The failure of a stream that ended before its answer was whole.
pub(super) fn ended_early() -> ModelError {
    ModelError::new(ModelErrorKind::Broken, "the provider's stream ended without its end mark")
}

/// Sets a field of a request's body.
pub(super) fn insert(body: &mut Value, field: &str, value: Value) {
    if let Value::Object(fields) = body {
        fields.insert(field.to_owned(), value);
    }
}

/// Sends `body` to `endpoint` and decodes the streamed answer.
pub(super) fn call<D: Decoder, T: Serialize>(endpoint: Endpoint, body: &Body<T>, decoder: D) -> Parts {
    let body = serde_json::to_vec(body).map_err(|error| {
        ModelError::new(ModelErrorKind::Refused, format!("the request cannot be written as JSON: {error}"))
    });
    let open = async move {
        let response = send(&endpoint, body?).await?;
        let key = endpoint.key;
        let parts = decode(silence::broken_off(response.bytes_stream(), SILENCE), decoder);
        Ok::<_, ModelError>(parts.map_err(move |error| {
            let message = masked(&error.message, key.as_ref());
            ModelError { message, ..error }
        }))
    };
    futures::stream::once(open).try_flatten().boxed()
}

/// Reads the bytes of an answer, however they are cut into pieces.
pub(super) fn decode<D, E>(
    bytes: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    decoder: D,
) -> impl Stream<Item = Result<Part, ModelError>> + Send
where
    D: Decoder,
    E: std::error::Error + Send + Sync + 'static,
{
    let events = framing::events(bytes, D::FRAMING);
    let decoding = Decoding { events, decoder, parts: VecDeque::new(), done: false };
    futures::stream::unfold(decoding, |mut decoding| async move {
        if decoding.done {
            return None;
        }
        let next = decoding.next().await;
        decoding.done = matches!(next, Ok(Part::Done(_)) | Err(_));
        Some((next, decoding))
    })
}

struct Decoding<D> {
    events: Events,
    decoder: D,
    parts: VecDeque<Part>,
    done: bool,
}

impl<D: Decoder> Decoding<D> {
    /// The next part. An answer that fails tells what it has cost until then: it is billed like any other.
    async fn next(&mut self) -> Result<Part, ModelError> {
        let part = self.part().await;
        part.map_err(|error| ModelError { spent: self.decoder.spent(), ..error })
    }

    async fn part(&mut self) -> Result<Part, ModelError> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Ok(part);
            }
            match self.events.next().await {
                Some(Ok(event)) => self.decoder.event(&event, &mut self.parts)?,
                Some(Err(error)) => {
                    let what = format!("the provider's stream broke off: {error}");
                    return Err(ModelError::new(ModelErrorKind::Broken, what));
                }
                None => {
                    let answer = self.decoder.end(&mut self.parts)?;
                    self.parts.push_back(Part::Done(answer));
                }
            }
        }
    }
}

async fn send(endpoint: &Endpoint, body: Vec<u8>) -> Result<reqwest::Response, ModelError> {
    let client = CLIENT.as_ref().map_err(|error| {
        ModelError::new(ModelErrorKind::NotConfigured, format!("no HTTP client could be made: {error}"))
    })?;
    let mut request = client.post(&endpoint.url).header(CONTENT_TYPE, "application/json").body(body);
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
    // Before anything of it is cut.
    let body = masked(&String::from_utf8_lossy(&body), key);
    classify::refused(status, &headers, body.as_bytes(), jiff::Timestamp::now())
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
