//! One call of a provider over HTTP: send the request, read the answer's event stream, classify what fails.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use reqwest::header::{HeaderMap, HeaderName};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use sse_stream::{Sse, SseStream};

use super::{ModelError, ModelErrorKind, Part, Parts, Tokens};

/// How long a provider may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a provider may be silent, before its first byte or between two: a model that thinks hard sends
/// pings or nothing for minutes.
const SILENCE: Duration = Duration::from_mins(5);
/// How much of a refusal's body is read.
const MAX_ERROR_BODY: usize = 64 * 1024;

/// Made at first use: an idle engine has neither connections nor TLS roots in memory.
static CLIENT: LazyLock<Result<reqwest::Client, String>> = LazyLock::new(|| {
    let client = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(SILENCE);
    // A provider that redirects elsewhere would be sent the key there.
    client.redirect(reqwest::redirect::Policy::none()).build().map_err(|error| chain(&error))
});

/// Where and how to call a provider.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) url: String,
    pub(super) key_header: HeaderName,
    pub(super) key_prefix: &'static str,
    pub(super) key: SecretString,
    pub(super) headers: &'static [(&'static str, &'static str)],
}

/// Reads the events of one answer. Pure: what it is given is all it knows.
pub(super) trait Decoder: Send + 'static {
    /// Takes one event of the stream and adds the parts that it makes.
    ///
    /// # Errors
    /// An error that the provider reports in its stream, or an event that makes no sense.
    fn event(&mut self, event: &Sse, parts: &mut VecDeque<Part>) -> Result<(), ModelError>;

    /// What the answer has cost so far, as far as the provider has told.
    fn spent(&self) -> Tokens;
}

/// Sets a field of a request's body.
pub(super) fn insert(body: &mut Value, field: &str, value: Value) {
    if let Value::Object(fields) = body {
        fields.insert(field.to_owned(), value);
    }
}

/// Sends `body` to `endpoint` and decodes the streamed answer.
pub(super) fn call<D: Decoder>(endpoint: Endpoint, body: Value, decoder: D) -> Parts {
    let open = async move {
        let response = send(&endpoint, body).await?;
        Ok::<_, ModelError>(decode(response.bytes_stream(), decoder))
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
    let events = SseStream::from_bytes_stream(bytes).map_err(|error| chain(&error));
    let decoding = Decoding { events: Box::pin(events), decoder, parts: VecDeque::new(), done: false };
    futures::stream::unfold(decoding, |mut decoding| async move {
        if decoding.done {
            return None;
        }
        let next = decoding.next().await;
        decoding.done = matches!(next, Ok(Part::Done(_)) | Err(_));
        Some((next, decoding))
    })
}

type Events = Pin<Box<dyn Stream<Item = Result<Sse, String>> + Send>>;

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
            let broken = |what: String| ModelError::new(ModelErrorKind::Broken, what);
            match self.events.next().await {
                Some(Ok(event)) => self.decoder.event(&event, &mut self.parts)?,
                Some(Err(error)) => return Err(broken(format!("the provider's stream broke off: {error}"))),
                None => return Err(broken("the provider's stream ended without its end mark".into())),
            }
        }
    }
}

async fn send(endpoint: &Endpoint, body: Value) -> Result<reqwest::Response, ModelError> {
    let client = CLIENT.as_ref().map_err(|error| {
        ModelError::new(ModelErrorKind::NotConfigured, format!("no HTTP client could be made: {error}"))
    })?;
    let key = format!("{}{}", endpoint.key_prefix, endpoint.key.expose_secret());
    let mut key = reqwest::header::HeaderValue::from_str(&key).map_err(|_| {
        ModelError::new(
            ModelErrorKind::NotConfigured,
            "the provider's key has characters that no key can have",
        )
    })?;
    key.set_sensitive(true);
    let mut request = client.post(&endpoint.url).header(&endpoint.key_header, key).json(&body);
    for (name, value) in endpoint.headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.map_err(|error| {
        ModelError::new(
            ModelErrorKind::Broken,
            format!("the provider could not be reached: {}", chain(&error)),
        )
    })?;
    if response.status().is_success() { Ok(response) } else { Err(refusal(response).await) }
}

async fn refusal(response: reqwest::Response) -> ModelError {
    let status = response.status().as_u16();
    let retry_after = retry_after(response.headers());
    let should_retry = response.headers().get("x-should-retry").map(|value| value == "true");
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ERROR_BODY {
            break;
        }
    }
    let error: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |field: &str| error.pointer(field).and_then(Value::as_str);
    let said =
        text("/error/message").map_or_else(|| String::from_utf8_lossy(&body).into_owned(), str::to_owned);
    // An account without credit, which does not come back by waiting: OpenAI's code for it comes with a 429, and
    // Anthropic says it in the message of a 400.
    let out_of_credit =
        text("/error/code") == Some("insufficient_quota") || said.contains("credit balance is too low");
    let kind = if out_of_credit { ModelErrorKind::Quota } else { classify(status, should_retry) };
    let said: String = said.chars().take(1_000).collect();
    ModelError { retry_after, ..ModelError::new(kind, format!("the provider answered {status}: {said}")) }
}

/// What a status means for the next attempt. `x-should-retry`, which the vendors' SDKs obey, has the last word where
/// neither the key nor the account is at fault.
fn classify(status: u16, should_retry: Option<bool>) -> ModelErrorKind {
    match (status, should_retry) {
        (401 | 403, _) => ModelErrorKind::Auth,
        (402, _) => ModelErrorKind::Quota,
        (_, Some(true)) | (408 | 409 | 429 | 500.., None) => ModelErrorKind::Busy,
        (_, Some(false) | None) => ModelErrorKind::Refused,
    }
}

/// `retry-after-ms` (milliseconds) or `Retry-After` (seconds), as the vendors send them. A date, which HTTP allows
/// too, is not read: the usual delay applies then.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1_000.0).or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// An error with its causes, which alone tell what happened on a connection.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_classified_as_the_decisions_say() {
        use ModelErrorKind::{Auth, Busy, Refused};
        for (status, kind) in [
            (400, Refused),
            (401, Auth),
            (403, Auth),
            (404, Refused),
            (408, Busy),
            (409, Busy),
            (413, Refused),
            (429, Busy),
            (500, Busy),
            (503, Busy),
            (529, Busy),
        ] {
            assert_eq!(classify(status, None), kind, "{status}");
        }
        assert_eq!(classify(400, Some(true)), Busy);
        assert_eq!(classify(529, Some(false)), Refused);
        assert_eq!(classify(401, Some(true)), Auth);
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())])
        };
        assert_eq!(retry_after(&headers("retry-after", "3")), Some(Duration::from_secs(3)));
        assert_eq!(retry_after(&headers("retry-after-ms", "250")), Some(Duration::from_millis(250)));
        for wrong in ["-1", "soon", "NaN"] {
            assert_eq!(retry_after(&headers("retry-after", wrong)), None, "{wrong}");
        }
    }
}
