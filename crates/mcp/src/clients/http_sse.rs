//! The HTTP+SSE transport of the revision of 2024-11-05: an event stream names a URL to which requests are posted,
//! and their responses arrive on the stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient as _, StreamableHttpError, StreamableHttpResponseLimits,
};
use sse_stream::Sse;

use super::http::{HttpEndpoint, McpHttpClient};
use super::transport_guard::TransportState;
use super::{ClientError, MAX_MESSAGE_BYTES};

/// How long a server may take to send the endpoint event.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(5);

/// An open HTTP+SSE connection.
pub(super) struct HttpSse {
    http: McpHttpClient,
    headers: HashMap<HeaderName, HeaderValue>,
    endpoint: Arc<str>,
    events: BoxStream<'static, Result<Sse, SseError>>,
}

impl HttpSse {
    /// Opens the stream and waits for its endpoint event.
    pub(super) async fn open(
        address: &HttpEndpoint,
        transport_state: Arc<TransportState>,
    ) -> Result<Self, ClientError> {
        let timed_out = |_| ClientError::Failed("its event stream names no endpoint for requests".into());
        tokio::time::timeout(ENDPOINT_TIMEOUT, Self::open_stream(address, transport_state))
            .await
            .map_err(timed_out)?
    }

    async fn open_stream(
        address: &HttpEndpoint,
        transport_state: Arc<TransportState>,
    ) -> Result<Self, ClientError> {
        let failed = |reason: &str| ClientError::Failed(reason.into());
        let (http, headers) = (address.http_client(transport_state), address.headers.clone());
        let url = address.url.as_str().into();
        let opened = http.get_stream_with_max_sse_event_size(
            url,
            None,
            None,
            None,
            headers.clone(),
            MAX_MESSAGE_BYTES,
        );
        let mut events = opened.await.map_err(|_| failed("it does not open an event stream"))?;
        while let Some(Ok(event)) = events.next().await {
            if event.event.as_deref() == Some("endpoint") {
                let endpoint = resolve_endpoint(&address.url, &event.data.unwrap_or_default());
                let endpoint =
                    endpoint.ok_or_else(|| failed("its endpoint for requests is on another server"))?;
                return Ok(Self { http, headers, endpoint: endpoint.as_str().into(), events });
            }
        }
        Err(failed("its event stream names no endpoint for requests"))
    }
}

/// Resolves the URL for requests. On another server, requests would leak the user's key there.
fn resolve_endpoint(base: &Url, endpoint: &str) -> Option<Url> {
    base.join(endpoint.trim()).ok().filter(|url| url.origin() == base.origin())
}

impl Transport<RoleClient> for HttpSse {
    type Error = StreamableHttpError<reqwest::Error>;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let (http, headers, endpoint) = (self.http.clone(), self.headers.clone(), Arc::clone(&self.endpoint));
        async move {
            let mut limits = StreamableHttpResponseLimits::default();
            limits.max_json_response_size = MAX_MESSAGE_BYTES;
            match http.post_message_with_response_limits(endpoint, item, None, None, headers, limits).await {
                // The response to a POST has no meaning: the answer comes on the stream.
                Ok(_) | Err(StreamableHttpError::UnexpectedContentType(_)) => Ok(()),
                Err(error) => Err(error),
            }
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let event = self.events.next().await?.ok()?;
            if event.event.as_deref().is_some_and(|kind| kind != "message") {
                continue;
            }
            if let Ok(message) = serde_json::from_str(event.data.as_deref().unwrap_or_default()) {
                return Some(message);
            }
            // The parser's error would quote the message.
            tracing::debug!("A tool server sent an event that is not a message; it is ignored.");
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.events = futures::stream::empty().boxed();
        Ok(())
    }
}
