//! The reverse proxy to a user's engine, through which a product's backend needs neither the engine's address nor
//! its key.

mod by_browser;
mod half_open_stream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::engine::ENGINE_KEY_HEADER;
use api::orchestrator::{ADMIN_KEY_HEADER, PLATFORM_KEY_HEADER};
use api::{EngineId, EngineKey, ErrorBody, ErrorCode, UserId};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::handler::Handler as _;
use axum::http::uri::Uri;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures::StreamExt as _;
use futures::future::Either;
use http_service::http::{
    ApiError, BodyTimeout, Path, end_with_body, is_body_timeout, note_engine, set_status,
};
use http_service::trace_context::propagate;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tower::util::MapResponse;
use traces::{Details, Kind, Span};

use self::half_open_stream::HalfOpenStream;
use super::AppState;
use super::auth::BearerProduct;
use super::error::to_api_error;
use super::guarded_body::with_guard;
use crate::fleet::{EngineEndpoint, Fleet};

/// The path that is forwarded: any method, although the document lists only the common ones.
pub(super) const PATH: &str = "/engines/{user_id}/proxy/{*path}";

/// How long an engine may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an engine may take to start its response once it has the whole request, and to accept each chunk of
/// the request. The duration of the bodies is not limited.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(100);

/// Headers that apply to a single connection and must not be forwarded (RFC 9110, section 7.6.1).
const HOP_BY_HOP_HEADERS: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The HTTP client that sends requests to engines. It does not pool connections, because an engine may be gone at
/// the next request, and it does not normalize URLs: other clients would resolve a `%2E%2E` in a path.
#[derive(Clone)]
pub(super) struct ProxyClient(Arc<Client<Connector, Body>>);

/// Opens connections whose responses are read even after a failed write, see [`HalfOpenStream`].
type Connector = MapResponse<HttpConnector, fn(TokioIo<TcpStream>) -> TokioIo<HalfOpenStream<TcpStream>>>;

impl ProxyClient {
    pub(super) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let connector: Connector =
            MapResponse::new(connector, |stream| TokioIo::new(HalfOpenStream::new(stream.into_inner())));
        Self(Arc::new(Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector)))
    }
}

/// Forwards a request to the user's engine and streams the response back. The orchestrator adds the engine's key;
/// the engine's own limits apply. Counts as activity. A browser token in `Authorization` is passed on instead of the key.
#[utoipa::path(
    method(get, post, put, patch, delete), path = PATH, operation_id = "proxy", tag = "engines",
    security(("platform_key" = []), ("browser_token" = [])),
    params(
        ("user_id" = UserId, Path, description = "The product's user"),
        ("path" = String, Path, description = "The engine's path"),
    ),
    responses(
        (status = 200, description = "The engine's response, unchanged, including errors"),
        (status = 400, description = "`INVALID_REQUEST`", body = ErrorBody),
        (status = 401, description = "`INVALID_PLATFORM_KEY`; with a browser token `INVALID_TOKEN`, `TOKEN_EXPIRED`, \
            `TOKEN_REVOKED`", body = ErrorBody),
        (status = 403, description = "`POLICY_DENIED`: suspended", body = ErrorBody),
        (status = 404, description = "`ENGINE_NOT_FOUND`", body = ErrorBody),
        (status = 409, description = "`ENGINE_NOT_RUNNING`", body = ErrorBody),
        (status = 500, description = "`INTERNAL_ERROR`", body = ErrorBody),
        (status = 502, description = "`BACKEND_ERROR`: the engine does not respond", body = ErrorBody),
        (status = 503, description = "`CAPACITY_EXHAUSTED`: too many open requests, `STARTING_UP`", body = ErrorBody),
    ),
)]
pub(super) async fn proxy(State(app): State<AppState>, request: Request) -> Response {
    match by_browser::handle(&app, request).await {
        Either::Left(response) => response,
        Either::Right(request) => by_product.call(request, app).await,
    }
}

/// Forwards a request of a product's backend.
async fn by_product(
    BearerProduct(product, permit): BearerProduct,
    State(fleet): State<Arc<Fleet>>,
    State(proxy_client): State<ProxyClient>,
    Path(path): Path<(UserId, String)>,
    request: Request,
) -> Result<Response, ApiError> {
    let (user_id, _) = path;
    let target = engine_target(request.uri()).ok_or_else(invalid_path_error)?;
    let EngineEndpoint { engine_id, address, key } =
        fleet.engines.resolve_endpoint(&product, user_id).await.map_err(to_api_error)?;
    let mut headers = forwarded_headers(request.headers(), &key).ok_or_else(ApiError::internal)?;
    say_address(&mut headers, request.headers(), request.uri().path());
    note_engine(engine_id);
    let request = addressed(request, address, &target, headers)?;
    let response = proxy_client.send_to(&fleet, engine_id, request).await?;
    if response.status() == StatusCode::UNAUTHORIZED {
        fleet.engines.mark_key_refused(engine_id);
    }
    Ok(response.map(|body| with_guard(body, permit)))
}

impl ProxyClient {
    /// Sends the request to this engine, and notes for a rollout whether that has answered it.
    async fn send_to(
        &self,
        fleet: &Fleet,
        engine_id: EngineId,
        request: Request,
    ) -> Result<Response, ApiError> {
        let sent = self.send_traced(request).await;
        let answered = sent.as_ref().is_ok_and(|response| !response.status().is_server_error());
        fleet.rollouts.note_call(engine_id, !answered);
        sent
    }

    /// Sends the request to its engine like [`ProxyClient::send`], within a span that ends with the response's body.
    async fn send_traced(&self, mut request: Request) -> Result<Response, ApiError> {
        if !traces::is_on() {
            return self.send(request).await;
        }
        let span = Span::start(Kind::Client, || {
            let method = request.method().as_str().to_owned();
            Details::new(format!("{method} engine")).with("http.request.method", method)
        });
        propagate(&span, request.headers_mut());
        match traces::in_span(&span, self.send(request)).await {
            Ok(response) => {
                set_status(&span, response.status());
                Ok(response.map(|body| end_with_body(span, body)))
            }
            Err(error) => {
                span.fail("engine_unreachable");
                Err(error)
            }
        }
    }

    /// Sends the request to its engine, and returns the response as soon as its head has arrived. Fails if the
    /// engine exceeds [`RESPONSE_TIMEOUT`].
    async fn send(&self, request: Request) -> Result<Response, ApiError> {
        let progress = Arc::new(Notify::new());
        let timeout = {
            let progress = Arc::clone(&progress);
            // A caller that stops sending fails earlier, by the body timeout of the service.
            async move { while tokio::time::timeout(RESPONSE_TIMEOUT, progress.notified()).await.is_ok() {} }
        };
        // The client drops the body when it is done with it: at its end, after the last byte by Content-Length, or
        // without polling an empty one. So the notification of the end is tied to the drop of the stream.
        let notifier = NotifyOnDrop(progress);
        let request = request
            .map(|body| Body::from_stream(body.into_data_stream().inspect(move |_| notifier.0.notify_one())));
        let result = tokio::select! {
            result = self.0.request(request) => Some(result),
            () = timeout => None,
        };
        match result {
            Some(Ok(incoming)) => {
                let mut response = incoming.map(Body::new);
                *response.headers_mut() = without_hop_by_hop_headers(response.headers());
                Ok(response)
            }
            Some(Err(error)) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                if is_body_timeout(error) {
                    return Err(BodyTimeout.into());
                }
                tracing::warn!(error, "A request could not be forwarded to an engine.");
                Err(unanswered_error())
            }
            None => Err(ApiError::new(ErrorCode::BackendError, "the engine did not answer in time")),
        }
    }
}

/// Notifies the waiting task when it is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Returns the request as it is sent to the engine at `address`.
fn addressed(
    request: Request,
    address: Option<SocketAddr>,
    target: &str,
    headers: HeaderMap,
) -> Result<Request, ApiError> {
    let Some(address) = address else {
        tracing::warn!("A request could not be forwarded to an engine: its backend knows no address of it.");
        return Err(unanswered_error());
    };
    let (parts, body) = request.into_parts();
    let uri = format!("http://{address}{target}").parse::<Uri>().map_err(|_| invalid_path_error())?;
    let mut outgoing = Request::new(body);
    *outgoing.method_mut() = parts.method;
    *outgoing.uri_mut() = uri;
    *outgoing.headers_mut() = headers;
    Ok(outgoing)
}

fn unanswered_error() -> ApiError {
    ApiError::new(ErrorCode::BackendError, "the engine did not answer this request")
}

fn invalid_path_error() -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, "the path must be /engines/{user_id}/proxy/{path of the engine}")
}

/// Returns the engine's path and query exactly as the caller wrote them, with escapes unchanged.
fn engine_target(uri: &Uri) -> Option<String> {
    // The segments: "", "engines", the user, "proxy", the rest.
    let rest = uri.path().splitn(5, '/').nth(4)?;
    Some(match uri.query() {
        Some(query) => format!("/{rest}?{query}"),
        None => format!("/{rest}"),
    })
}

/// Returns the caller's headers, with the engine's key in place of the caller's keys; `None` if the key is not a
/// valid header value.
fn forwarded_headers(headers: &HeaderMap, key: &EngineKey) -> Option<HeaderMap> {
    let mut forwarded = without_hop_by_hop_headers(headers);
    for name in [PLATFORM_KEY_HEADER, ADMIN_KEY_HEADER, ENGINE_KEY_HEADER, header::HOST.as_str()] {
        forwarded.remove(name);
    }
    if !headers.contains_key(PLATFORM_KEY_HEADER) {
        // It was the caller's key.
        forwarded.remove(header::AUTHORIZATION);
    }
    let mut value = HeaderValue::from_str(key.expose()).ok()?;
    value.set_sensitive(true);
    forwarded.insert(HeaderName::from_static(ENGINE_KEY_HEADER), value);
    Some(forwarded)
}

/// Says under which address the caller sees the engine, for what the engine tells about itself. A proxy before this one
/// may have said more.
fn say_address(forwarded: &mut HeaderMap, headers: &HeaderMap, path: &str) {
    const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
    const PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
    if let Some(host) = headers.get(header::HOST).filter(|_| !headers.contains_key(HOST)) {
        forwarded.insert(HOST, host.clone());
    }
    // The segments: "", "engines", the user, "proxy".
    let own: Vec<&str> = path.split('/').take(4).collect();
    let before = headers.get(PREFIX).and_then(|prefix| prefix.to_str().ok()).unwrap_or_default();
    if let Ok(prefix) = HeaderValue::try_from(format!("{}{}", before.trim_end_matches('/'), own.join("/"))) {
        forwarded.insert(PREFIX, prefix);
    }
}

/// Returns `headers` without the hop-by-hop ones, including those that `Connection` names.
fn without_hop_by_hop_headers(headers: &HeaderMap) -> HeaderMap {
    let named = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> =
        named.flat_map(|names| names.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    let mut remaining = headers.clone();
    for name in HOP_BY_HOP_HEADERS.iter().chain(&named) {
        remaining.remove(name);
    }
    remaining
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;

    use super::*;

    /// The engine accepts the request and sends nothing.
    #[tokio::test(start_paused = true)]
    async fn an_engine_that_never_answers_is_given_up_whatever_the_request_is_like() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let engine = tokio::spawn(async move {
            let mut connections = Vec::new();
            loop {
                connections.push(listener.accept().await.unwrap());
            }
        });
        let proxy_client = ProxyClient::new();
        let streamed = || {
            let pieces = [Ok::<_, std::io::Error>(Bytes::from_static(b"{}")), Ok(Bytes::from_static(b" "))];
            Body::from_stream(futures::stream::iter(pieces))
        };
        for (method, body, length) in [
            ("GET", Body::empty(), None),
            ("HEAD", Body::empty(), None),
            ("POST", Body::from("{}"), Some(2)),
            ("POST", streamed(), None),
            ("DELETE", Body::empty(), None),
            // More than the socket buffers hold while the engine does not read.
            ("POST", Body::from(vec![b' '; 64 << 20]), Some(64 << 20)),
        ] {
            let request = Request::builder().method(method).uri(format!("http://{address}/tasks"));
            let request = match length {
                Some(length) => request.header(header::CONTENT_LENGTH, length),
                None => request,
            };
            let started = tokio::time::Instant::now();
            let response = proxy_client.send(request.body(body).unwrap());
            let response = tokio::time::timeout(RESPONSE_TIMEOUT * 3, response).await;
            assert!(response.expect("the proxy waits without a limit").is_err(), "{method}");
            assert!(started.elapsed() >= RESPONSE_TIMEOUT, "{method}: {:?}", started.elapsed());
        }
        engine.abort();
    }

    #[test]
    fn a_path_is_passed_on_as_it_was_written() {
        for (uri, expected) in [
            (
                "/engines/ann/proxy/execute/replay?task_id=a%2Fb&after=",
                Some("/execute/replay?task_id=a%2Fb&after="),
            ),
            ("/engines/a%2Fproxy%2Fb/proxy/%70roxy//x/", Some("/%70roxy//x/")),
            ("/engines/ann/proxy/", Some("/")),
            ("/engines/ann/proxy", None),
        ] {
            assert_eq!(engine_target(&uri.parse().unwrap()).as_deref(), expected, "{uri}");
        }
    }

    #[test]
    fn the_engine_is_told_under_which_address_it_is_seen() {
        let said = |given: &[(&'static str, &'static str)]| {
            let headers: HeaderMap = given
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
            let mut forwarded = HeaderMap::new();
            say_address(&mut forwarded, &headers, "/engines/a%2Fb/proxy/v1/models");
            ["x-forwarded-host", "x-forwarded-prefix"]
                .map(|name| forwarded.get(name).map(|value| value.to_str().unwrap().to_owned()))
        };
        let prefix = Some("/engines/a%2Fb/proxy".to_owned());
        assert_eq!(said(&[("host", "here:80")]), [Some("here:80".to_owned()), prefix.clone()]);
        assert_eq!(said(&[]), [None, prefix]);
        let outer = [("host", "inner"), ("x-forwarded-host", "outer"), ("x-forwarded-prefix", "/agents/")];
        assert_eq!(said(&outer), [None, Some("/agents/engines/a%2Fb/proxy".to_owned())]);
    }

    #[test]
    fn keys_and_what_is_of_the_connection_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-platform-key", "pk"),
            ("x-admin-key", "open sesame"),
            ("x-engine-key", "another's"),
            ("host", "here"),
            ("connection", "close, X-Secret"),
            ("x-secret", "1"),
            ("te", "trailers"),
            ("accept", "text/event-stream"),
            ("authorization", "Bearer another's"),
            ("last-event-id", "7"),
        ] {
            headers.insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
        }
        let key = EngineKey::generate().unwrap();
        let forwarded = forwarded_headers(&headers, &key).unwrap();
        let mut names: Vec<_> = forwarded.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "authorization", "last-event-id", "x-engine-key"]);
        assert_eq!(forwarded["x-engine-key"], key.expose());
        assert!(!format!("{forwarded:?}").contains(key.expose()));
        // Without the product's own header, the other one has its key.
        headers.remove(PLATFORM_KEY_HEADER);
        assert!(!forwarded_headers(&headers, &key).unwrap().contains_key("authorization"));
    }
}
