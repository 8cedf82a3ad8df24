//! Servers at an address: streamable HTTP, with what shows on whose behalf each request is made.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use reqwest::{Client, Url, redirect};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
    StreamableHttpPostResponse, StreamableHttpResponseLimits,
};
use secrecy::{ExposeSecret as _, SecretString};
use sse_stream::Sse;
use tokio::time::Instant;

use super::{ClientError, MAX_MESSAGE};
use crate::assets::access::Access;
use crate::catalog::{Auth, KeyPlace, ServerSpec, Transport};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How far apart streams of events are opened at the least.
const BETWEEN_STREAMS: Duration = Duration::from_secs(1);
/// How many redirects within one server are followed.
const MAX_REDIRECTS: usize = 5;
/// How much of a refusal is read, in bytes.
const MAX_REFUSAL: usize = 4 * 1024;
/// How often a stream that broke is taken up again.
const MAX_RESUMED: usize = 5;

/// What rmcp sends its requests by.
#[derive(Clone)]
pub(super) struct Http {
    pub(super) client: Client,
    pub(super) access: Access,
    /// When a stream of events may be opened next: one that breaks at once is not opened as often as it breaks.
    pub(super) next_stream: Arc<tokio::sync::Mutex<Instant>>,
}

/// What a server at an address is reached by.
pub(super) struct Address {
    pub(super) url: Url,
    /// The headers of the catalog, and the user's key.
    pub(super) headers: HashMap<HeaderName, HeaderValue>,
    pub(super) http: Http,
}

type Failure = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

impl Address {
    /// Makes what is needed to speak to a server.
    pub(super) fn of(spec: &ServerSpec, access: &Access) -> Result<Self, ClientError> {
        let Transport::Http { url, headers } = &spec.transport else {
            return Err(ClientError::Failed("it is at no address".into()));
        };
        let mut headers: Headers =
            headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        if let (Auth::ApiKey(place), Access::Key(key)) = (&spec.auth, access) {
            let key = key.expose_secret();
            let (name, value) = match place {
                KeyPlace::Header(name) => (name.clone(), key.to_owned()),
                KeyPlace::Bearer | KeyPlace::Variable(_) => (AUTHORIZATION, format!("Bearer {key}")),
            };
            let value = HeaderValue::try_from(value);
            let mut value = value.map_err(|_| ClientError::Failed("the key cannot be sent".into()))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let client = Client::builder().connect_timeout(CONNECT_TIMEOUT).referer(false);
        let client = client.redirect(redirect::Policy::custom(within_server)).build();
        let client = client.map_err(|error| ClientError::Failed(chain(&error)))?;
        let next_stream = Arc::new(tokio::sync::Mutex::new(Instant::now()));
        let http = Http { client, access: access.clone(), next_stream };
        Ok(Self { url: url.clone(), headers, http })
    }

    /// The transport of the revisions since 2025-03-26.
    pub(super) fn streamable(&self) -> StreamableHttpClientTransport<Http> {
        let mut config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str());
        config.custom_headers.clone_from(&self.headers);
        config.max_sse_event_size = MAX_MESSAGE;
        config.max_json_response_size = MAX_MESSAGE;
        config.max_error_response_size = MAX_REFUSAL;
        let mut retries = ExponentialBackoff::default();
        (retries.max_times, retries.max_delay) = (Some(MAX_RESUMED), Some(Duration::from_secs(8)));
        config.retry_config = Arc::new(retries);
        StreamableHttpClientTransport::with_client(self.http.clone(), config)
    }
}

/// Follows a redirect only to where the request was sent, and only as the same request: elsewhere it would carry the
/// user's key.
fn within_server(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let same_server =
        attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
    let same_request = matches!(attempt.status().as_u16(), 307 | 308);
    let follow = same_server && same_request && attempt.previous().len() <= MAX_REDIRECTS;
    if follow { attempt.follow() } else { attempt.stop() }
}

/// An error with what caused it.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

impl Http {
    /// A token to send, where there are tokens; another one than `refused`.
    pub(super) async fn token(
        &self,
        refused: Option<&SecretString>,
    ) -> Result<Option<SecretString>, io::Error> {
        match &self.access {
            Access::Nothing | Access::Key(_) => Ok(None),
            // Told apart again by its type.
            Access::Tokens(bearer) => bearer.token(refused).await.map(Some).map_err(io::Error::other),
        }
    }

    /// Sends a request, and once more with a fresh token where the first one is refused.
    async fn authorized<T, F>(&self, send: impl Fn(Option<String>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        // An address may hold a key, and what goes wrong is told and logged.
        let send = async |token| send(token).await.map_err(without_url);
        let token = self.token(None).await?;
        let exposed =
            |token: &Option<SecretString>| token.as_ref().map(|token| token.expose_secret().to_owned());
        match send(exposed(&token)).await {
            Err(error) if token.is_some() && status(&error) == Some(401) => {
                let token = self.token(token.as_ref()).await?;
                send(exposed(&token)).await
            }
            answered => answered,
        }
    }
}

fn without_url(error: Failure) -> Failure {
    match error {
        StreamableHttpError::Client(error) => StreamableHttpError::Client(error.without_url()),
        error => error,
    }
}

/// The status with which a server refused, if it did by one.
pub(super) fn status(error: &Failure) -> Option<u16> {
    match error {
        StreamableHttpError::AuthRequired(_) => Some(401),
        StreamableHttpError::InsufficientScope(_) => Some(403),
        StreamableHttpError::HttpStatus(error) => Some(error.status),
        StreamableHttpError::Client(error) => error.status().map(|status| status.as_u16()),
        // The only place in which it is told: `HTTP 404 Not Found: …`.
        StreamableHttpError::UnexpectedServerResponse(told) => {
            told.strip_prefix("HTTP ").and_then(|told| told.get(..3)).and_then(|status| status.parse().ok())
        }
        _ => None,
    }
}

impl StreamableHttpClient for Http {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session_id, None, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        self.authorized(|token| {
            let (uri, session_id) = (Arc::clone(&uri), session_id.clone());
            let (message, headers) = (message.clone(), headers.clone());
            self.client.post_message_with_response_limits(uri, message, session_id, token, headers, limits)
        })
        .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<(), Failure> {
        self.authorized(|token| {
            self.client.delete_session(Arc::clone(&uri), Arc::clone(&session_id), token, headers.clone())
        })
        .await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let most = MAX_MESSAGE;
        self.get_stream_with_max_sse_event_size(uri, session_id, last_event_id, None, headers, most).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        headers: Headers,
        max_sse_event_size: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        {
            let mut next = self.next_stream.lock().await;
            tokio::time::sleep_until(*next).await;
            *next = Instant::now() + BETWEEN_STREAMS;
        }
        self.authorized(|token| {
            let (uri, session_id) = (Arc::clone(&uri), session_id.clone());
            let (last_event_id, headers) = (last_event_id.clone(), headers.clone());
            let most = max_sse_event_size;
            self.client.get_stream_with_max_sse_event_size(
                uri,
                session_id,
                last_event_id,
                token,
                headers,
                most,
            )
        })
        .await
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
