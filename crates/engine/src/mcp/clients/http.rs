//! Servers at an address: streamable HTTP, with what shows on whose behalf each request is made.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
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

use super::transport_guard::TransportState;
use super::{ClientError, MAX_MESSAGE_BYTES};
use crate::catalog::{ApiKeyLocation, Auth, McpServerSpec, Transport};
use crate::dns;
use crate::mcp::request_auth::RequestAuth;

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How far apart streams of events are opened at the least.
const MIN_STREAM_INTERVAL: Duration = Duration::from_secs(1);
/// How many redirects within one server are followed.
const MAX_REDIRECTS: usize = 5;
/// How much of a refusal is read, in bytes.
const MAX_ERROR_RESPONSE_BYTES: usize = 4 * 1024;
/// Why a line ends whose session the server does not know any more.
pub(super) const SESSION_EXPIRED: &str = "its session is over";
/// How often a stream that broke is taken up again.
const MAX_STREAM_RETRIES: usize = 5;

/// What rmcp sends its requests by.
#[derive(Clone)]
pub(super) struct McpHttpClient {
    client: Client,
    auth: RequestAuth,
    /// When a stream of events may be opened next: one that breaks at once is not opened as often as it breaks.
    next_stream_at: Arc<tokio::sync::Mutex<Instant>>,
    /// What requests end with. The SDK waits for the first answer, and for the first word of a stream that is one, in a
    /// task of its own that nothing else ends.
    transport_state: Arc<TransportState>,
}

/// What a server at an address is reached by.
pub(super) struct HttpEndpoint {
    pub(super) url: Url,
    /// The headers of the catalog, and the user's key.
    pub(super) headers: HashMap<HeaderName, HeaderValue>,
    client: Client,
    auth: RequestAuth,
}

type StreamableError = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;
type SseStream = BoxStream<'static, Result<Sse, SseError>>;

impl HttpEndpoint {
    /// Makes what is needed to speak to a server.
    pub(super) fn new(spec: &McpServerSpec, access: &RequestAuth) -> Result<Self, ClientError> {
        let Transport::Http { url, headers } = &spec.transport else {
            return Err(ClientError::Failed("it is at no address".into()));
        };
        let mut headers: Headers =
            headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        if let (Auth::ApiKey(place), RequestAuth::ApiKey(key)) = (&spec.auth, access) {
            let key = key.expose_secret();
            let (name, value) = match place {
                ApiKeyLocation::Header(name) => (name.clone(), key.to_owned()),
                ApiKeyLocation::Bearer | ApiKeyLocation::EnvVar(_) => {
                    (AUTHORIZATION, format!("Bearer {key}"))
                }
            };
            let value = HeaderValue::try_from(value);
            let mut value = value.map_err(|_| ClientError::Failed("the key cannot be sent".into()))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let names = Arc::new(dns::SERVER_RESOLVER.clone());
        let client = Client::builder().connect_timeout(CONNECT_TIMEOUT).dns_resolver(names).referer(false);
        let client = client.redirect(redirect::Policy::custom(follow_same_origin)).build();
        let client = client.map_err(|error| ClientError::Failed(error_chain(&error)))?;
        Ok(Self { url: url.clone(), headers, client, auth: access.clone() })
    }

    /// What requests over this line are sent by; they end with it.
    pub(super) fn http_client(&self, line: Arc<TransportState>) -> McpHttpClient {
        let next_stream_at = Arc::new(tokio::sync::Mutex::new(Instant::now()));
        let (client, access) = (self.client.clone(), self.auth.clone());
        McpHttpClient { client, auth: access, next_stream_at, transport_state: line }
    }

    /// The transport of the revisions since 2025-03-26.
    pub(super) fn streamable_transport(
        &self,
        line: Arc<TransportState>,
    ) -> StreamableHttpClientTransport<McpHttpClient> {
        let mut config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str());
        config.custom_headers.clone_from(&self.headers);
        config.max_sse_event_size = MAX_MESSAGE_BYTES;
        config.max_json_response_size = MAX_MESSAGE_BYTES;
        config.max_error_response_size = MAX_ERROR_RESPONSE_BYTES;
        // A session that is over ends the line: a new one within the old would pass for a refusal of what was under way.
        config.reinit_on_expired_session = false;
        let mut retries = ExponentialBackoff::default();
        (retries.max_times, retries.max_delay) = (Some(MAX_STREAM_RETRIES), Some(Duration::from_secs(8)));
        config.retry_config = Arc::new(retries);
        StreamableHttpClientTransport::with_client(self.http_client(line), config)
    }
}

/// Follows a redirect only to where the request was sent, and only as the same request: elsewhere it would carry the
/// user's key.
fn follow_same_origin(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let same_server =
        attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
    let same_request = matches!(attempt.status().as_u16(), 307 | 308);
    let follow = same_server && same_request && attempt.previous().len() <= MAX_REDIRECTS;
    if follow { attempt.follow() } else { attempt.stop() }
}

/// An error with what caused it.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

impl McpHttpClient {
    /// A token to send, where there are tokens; another one than `refused`.
    pub(super) async fn token(
        &self,
        refused: Option<&SecretString>,
    ) -> Result<Option<SecretString>, io::Error> {
        match &self.auth {
            RequestAuth::None | RequestAuth::ApiKey(_) => Ok(None),
            // Told apart again by its type.
            RequestAuth::OAuth(bearer) => bearer.token(refused).await.map(Some).map_err(io::Error::other),
        }
    }

    /// Sends a request, and once more with a fresh token where the first one is refused.
    async fn send_authorized<T, F>(&self, send: impl Fn(Option<String>) -> F) -> Result<T, StreamableError>
    where
        F: Future<Output = Result<T, StreamableError>>,
    {
        // An address may hold a key, and what goes wrong is told and logged.
        let send = async |token| send(token).await.map_err(without_url);
        let token = self.token(None).await?;
        let exposed =
            |token: &Option<SecretString>| token.as_ref().map(|token| token.expose_secret().to_owned());
        match send(exposed(&token)).await {
            Err(error) if token.is_some() && http_status(&error) == Some(401) => {
                let token = self.token(token.as_ref()).await?;
                send(exposed(&token)).await
            }
            answered => answered,
        }
    }

    /// Goes on with a request until the line ends. It is large: it comes in a box.
    async fn until_ended<T>(
        &self,
        request: Pin<Box<impl Future<Output = Result<T, StreamableError>>>>,
    ) -> Result<T, StreamableError> {
        tokio::select! {
            biased;
            () = self.transport_state.wait_ended() => Err(StreamableHttpError::TransportChannelClosed),
            answered = request => answered,
        }
    }

    /// The events until the line ends.
    fn events_until_ended(&self, events: SseStream) -> SseStream {
        events.take_until(self.transport_state.wait_ended_owned()).boxed()
    }
}

fn without_url(error: StreamableError) -> StreamableError {
    match error {
        StreamableHttpError::Client(error) => StreamableHttpError::Client(error.without_url()),
        error => error,
    }
}

/// The status with which a server refused, if it did by one.
pub(super) fn http_status(error: &StreamableError) -> Option<u16> {
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

impl StreamableHttpClient for McpHttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, StreamableError> {
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
    ) -> Result<StreamableHttpPostResponse, StreamableError> {
        let is_reply = matches!(message, ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_));
        let posted = self.send_authorized(|token| {
            let (uri, session_id) = (Arc::clone(&uri), session_id.clone());
            let (message, headers) = (message.clone(), headers.clone());
            self.client.post_message_with_response_limits(uri, message, session_id, token, headers, limits)
        });
        match self.until_ended(Box::pin(posted)).await {
            Ok(StreamableHttpPostResponse::Sse(events, session_id)) => {
                Ok(StreamableHttpPostResponse::Sse(self.events_until_ended(events), session_id))
            }
            Err(StreamableHttpError::SessionExpired) if is_reply => {
                // Whoever waits for what the server makes of the reply is told by nobody else.
                self.transport_state.end(SESSION_EXPIRED);
                Err(StreamableHttpError::SessionExpired)
            }
            answered => answered,
        }
    }

    /// The only request that comes after the line's end; the SDK gives it five seconds.
    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<(), StreamableError> {
        self.send_authorized(|token| {
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
    ) -> Result<SseStream, StreamableError> {
        let most = MAX_MESSAGE_BYTES;
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
    ) -> Result<SseStream, StreamableError> {
        let opened = async {
            {
                let mut next = self.next_stream_at.lock().await;
                tokio::time::sleep_until(*next).await;
                *next = Instant::now() + MIN_STREAM_INTERVAL;
            }
            let opened = self.send_authorized(|token| {
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
            });
            opened.await
        };
        Ok(self.events_until_ended(self.until_ended(Box::pin(opened)).await?))
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
