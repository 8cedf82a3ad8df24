//! Servers at a URL: the streamable HTTP transport, with credentials on each request.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use catalog::{ApiKeyLocation, Auth, McpServerSpec, ServerOrigin, Transport};
use fetch::{WebAllowlist, client_for_outsider, operator_client, redirects_within_origin};
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
use crate::request_auth::RequestAuth;

/// The minimum interval between two openings of an event stream.
const MIN_STREAM_INTERVAL: Duration = Duration::from_secs(1);
/// How much of an error response is read, in bytes.
const MAX_ERROR_RESPONSE_BYTES: usize = 4 * 1024;
/// The reason for ending a transport whose session the server no longer knows.
pub(super) const SESSION_EXPIRED: &str = "its session has expired";
/// How often a broken stream is resumed.
const MAX_STREAM_RETRIES: usize = 5;

/// The HTTP client that rmcp uses for its requests.
#[derive(Clone)]
pub(super) struct McpHttpClient {
    client: Client,
    auth: RequestAuth,
    /// When the next event stream may be opened, so that a stream that breaks at once is not reopened in a tight
    /// loop.
    next_stream_at: Arc<tokio::sync::Mutex<Instant>>,
    /// Ends the requests. The SDK waits for the first response, and for the first event if that is a stream, in a
    /// task of its own that nothing else ends.
    transport_state: Arc<TransportState>,
}

/// The connection settings of a server at a URL.
pub(super) struct HttpEndpoint {
    pub(super) url: Url,
    /// The headers of the catalog, and the user's API key.
    pub(super) headers: HashMap<HeaderName, HeaderValue>,
    client: Client,
    auth: RequestAuth,
}

type StreamableError = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;
type SseStream = BoxStream<'static, Result<Sse, SseError>>;

impl HttpEndpoint {
    /// Creates the settings for a server.
    pub(super) async fn new(
        spec: &McpServerSpec,
        access: &RequestAuth,
        web_allowlist: &WebAllowlist,
    ) -> Result<Self, ClientError> {
        let Transport::Http { url, headers } = &spec.transport else {
            return Err(ClientError::Failed("it has no URL".into()));
        };
        let mut headers: Headers =
            headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        if let (Auth::ApiKey(location), RequestAuth::ApiKey(key)) = (&spec.auth, access) {
            let key = key.expose_secret();
            let (name, value) = match location {
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
        let client = match spec.origin {
            ServerOrigin::Catalog => operator_client(repeats_the_request).map_err(ClientError::Failed)?,
            ServerOrigin::User => {
                let redirects = redirects_within_origin(repeats_the_request);
                let client =
                    client_for_outsider(url, web_allowlist, |client| client.redirect(redirects)).await;
                client.map_err(|error| ClientError::Failed(error.to_string()))?
            }
        };
        Ok(Self { url: url.clone(), headers, client, auth: access.clone() })
    }

    /// Returns the client for the requests of this transport; they end with it.
    pub(super) fn http_client(&self, transport_state: Arc<TransportState>) -> McpHttpClient {
        let next_stream_at = Arc::new(tokio::sync::Mutex::new(Instant::now()));
        let (client, access) = (self.client.clone(), self.auth.clone());
        McpHttpClient { client, auth: access, next_stream_at, transport_state }
    }

    /// Returns the transport of the revisions since 2025-03-26.
    pub(super) fn streamable_transport(
        &self,
        transport_state: Arc<TransportState>,
    ) -> StreamableHttpClientTransport<McpHttpClient> {
        let mut config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str());
        config.custom_headers.clone_from(&self.headers);
        config.max_sse_event_size = MAX_MESSAGE_BYTES;
        config.max_json_response_size = MAX_MESSAGE_BYTES;
        config.max_error_response_size = MAX_ERROR_RESPONSE_BYTES;
        // An expired session ends the transport: a new session within it would look like a refusal of pending
        // requests.
        config.reinit_on_expired_session = false;
        let mut retries = ExponentialBackoff::default();
        (retries.max_times, retries.max_delay) = (Some(MAX_STREAM_RETRIES), Some(Duration::from_secs(8)));
        config.retry_config = Arc::new(retries);
        StreamableHttpClientTransport::with_client(self.http_client(transport_state), config)
    }
}

/// Whether a redirect leads to the same request, and not to a `GET` without its body.
fn repeats_the_request(attempt: &redirect::Attempt<'_>) -> bool {
    matches!(attempt.status().as_u16(), 307 | 308)
}

impl McpHttpClient {
    /// Returns a token to send, if the server uses tokens; another one than `refused`.
    pub(super) async fn token(
        &self,
        refused: Option<&SecretString>,
    ) -> Result<Option<SecretString>, io::Error> {
        match &self.auth {
            RequestAuth::None | RequestAuth::ApiKey(_) => Ok(None),
            // The caller recognizes the error by its type.
            RequestAuth::OAuth(source) => source.token(refused).await.map(Some).map_err(io::Error::other),
        }
    }

    /// Sends a request, and sends it once more with a fresh token if the first token is rejected.
    async fn send_authorized<T, F>(&self, send: impl Fn(Option<String>) -> F) -> Result<T, StreamableError>
    where
        F: Future<Output = Result<T, StreamableError>>,
    {
        // The URL may hold a key, and errors are reported and logged.
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

    /// Runs a request until the transport ends. The future is large, so it is boxed.
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

    /// Returns the events until the transport ends.
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

/// Returns the status with which a server refused, if it sent one.
pub(super) fn http_status(error: &StreamableError) -> Option<u16> {
    match error {
        StreamableHttpError::AuthRequired(_) => Some(401),
        StreamableHttpError::InsufficientScope(_) => Some(403),
        StreamableHttpError::HttpStatus(error) => Some(error.status),
        StreamableHttpError::Client(error) => error.status().map(|status| status.as_u16()),
        // The SDK reports the status only in this text: `HTTP 404 Not Found: …`.
        StreamableHttpError::UnexpectedServerResponse(text) => {
            text.strip_prefix("HTTP ").and_then(|text| text.get(..3)).and_then(|status| status.parse().ok())
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
                // Nothing else informs whoever waits for the server's response to this reply.
                self.transport_state.end(SESSION_EXPIRED);
                Err(StreamableHttpError::SessionExpired)
            }
            answered => answered,
        }
    }

    /// The only request that is sent after the transport's end; the SDK gives it five seconds.
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
        let max_bytes = MAX_MESSAGE_BYTES;
        self.get_stream_with_max_sse_event_size(uri, session_id, last_event_id, None, headers, max_bytes)
            .await
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
                let max_bytes = max_sse_event_size;
                self.client.get_stream_with_max_sse_event_size(
                    uri,
                    session_id,
                    last_event_id,
                    token,
                    headers,
                    max_bytes,
                )
            });
            opened.await
        };
        Ok(self.events_until_ended(self.until_ended(Box::pin(opened)).await?))
    }
}

#[cfg(test)]
#[path = "../../tests/unit/clients/http/mod.rs"]
mod tests;
