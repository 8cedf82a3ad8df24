//! Receives the redirect at the end of an authorization on this machine. The command acts in place of the
//! product's backend, and forwards the redirect's parameters to the engine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::assets::Callback;
use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONNECTION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use http_service::serve::{ServeLimits, serve};
use parking_lot::Mutex;
use reqwest::Url;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error::Failure;

/// Limits for a server that one browser uses.
const BOUNDS: ServeLimits = ServeLimits {
    max_connections: 16,
    header_read_timeout: Duration::from_secs(10),
    drain_timeout: Duration::from_secs(1),
};

/// A redirect address on this machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallbackAddress {
    /// The socket address to listen on.
    pub(super) address: SocketAddr,
    path: String,
}

impl CallbackAddress {
    /// Parses `url`; `None` unless it is a loopback address of plain HTTP with a port.
    pub(super) fn parse_url(url: &Url) -> Option<Self> {
        let ip = match url.host_str()? {
            // Browsers try this address too.
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.trim_start_matches('[').trim_end_matches(']').parse().ok()?,
        };
        let address = SocketAddr::new(ip, url.port()?);
        (url.scheme() == "http" && ip.is_loopback()).then(|| Self { address, path: url.path().to_owned() })
    }

    /// Binds a listener.
    pub(super) async fn listen(&self) -> io::Result<TcpListener> {
        TcpListener::bind(self.address).await
    }

    /// Waits until the browser brings `state` back, runs `finish`, and shows its result in the browser. Any other
    /// request is refused. `None` if nobody comes in time.
    pub(super) async fn receive<T>(
        self,
        listener: TcpListener,
        state: String,
        timeout: Duration,
        finish: impl AsyncFnOnce(Callback) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        let (sender, arrival) = oneshot::channel();
        let callback_state =
            Arc::new(CallbackState { path: self.path, state, pending: Mutex::new(Some(sender)) });
        let shutdown = CancellationToken::new();
        let router = Router::new().fallback(handle_request).with_state(callback_state);
        let serving = serve(listener, router, BOUNDS, shutdown.clone());
        let receiving = async {
            let received = match tokio::time::timeout(timeout, arrival).await {
                Ok(Ok(ReceivedCallback { callback, respond: page })) => {
                    let finished = finish(callback).await;
                    // If the browser has gone, the terminal shows the same.
                    let _ = page.send(Page::from_result(&finished));
                    finished.map(Some)
                }
                Ok(Err(_)) | Err(_) => Ok(None),
            };
            shutdown.cancel();
            received
        };
        tokio::join!(serving, receiving).1
    }
}

/// State shared by the handlers of the browser's requests.
struct CallbackState {
    path: String,
    state: String,
    /// The waiting receiver, until the callback has arrived.
    pending: Mutex<Option<oneshot::Sender<ReceivedCallback>>>,
}

/// The parameters that the browser brought, and the channel for the page to show.
struct ReceivedCallback {
    callback: Callback,
    respond: oneshot::Sender<Page>,
}

/// The page shown in the browser.
struct Page {
    status: StatusCode,
    text: String,
}

async fn handle_request(State(state): State<Arc<CallbackState>>, request: Request) -> Page {
    // A HEAD request must not use up the one callback.
    if request.uri().path() != state.path || request.method() != Method::GET {
        return Page::new(StatusCode::NOT_FOUND, "There is no page at this address.");
    }
    let callback = match Query::<Callback>::try_from_uri(request.uri()) {
        Ok(Query(callback)) if callback.state.as_ref() == Some(&state.state) => callback,
        Ok(_) | Err(_) => {
            let text = "This is not the expected authorization. Open the address that the terminal shows.";
            return Page::new(StatusCode::BAD_REQUEST, text);
        }
    };
    let receiver = state.pending.lock().take();
    let (page, result) = oneshot::channel();
    let is_first =
        receiver.is_some_and(|receiver| receiver.send(ReceivedCallback { callback, respond: page }).is_ok());
    if !is_first {
        return Page::new(StatusCode::GONE, "This address was already used. The terminal shows the result.");
    }
    result.await.unwrap_or_else(|_| Page::new(StatusCode::SERVICE_UNAVAILABLE, "The command has ended."))
}

impl Page {
    fn new(status: StatusCode, text: &str) -> Self {
        Self { status, text: text.to_owned() }
    }

    fn from_result<T>(finished: &Result<T, Failure>) -> Self {
        match finished {
            Ok(_) => Self::new(StatusCode::OK, "Connected. You can close this page."),
            Err(failure) => {
                let text = format!("Not connected: {failure}\n\nYou can close this page.");
                Self { status: StatusCode::BAD_GATEWAY, text }
            }
        }
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        // Plain text cannot execute anything, and the page's address contains a code.
        let headers = [
            (CACHE_CONTROL, "no-store"),
            (CONNECTION, "close"),
            (REFERRER_POLICY, "no-referrer"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        (self.status, headers, self.text + "\n").into_response()
    }
}

#[cfg(test)]
#[path = "../../tests/unit/connection/callback.rs"]
mod tests;
