//! Requests to authorization servers: bounded in time and size, never redirected by the client itself, and kept
//! out of networks that the MCP server is not part of.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use catalog::ServerOrigin;
use fetch::{WebAllowlist, build_client, client_for_outsider, guarded_client, read_body, special_purpose};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, ClientBuilder, Method, Request, StatusCode, Url};
use resources::dns;
use resources::text::error_chain;
use rmcp::transport::auth::{OAuthHttpClient, OAuthHttpClientFuture, OAuthHttpRequest};
use serde_json::Value;
use url::{Host, form_urlencoded};
use zeroize::Zeroizing;

/// The time limit of a request with its response, and of its connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of a response, in bytes.
const MAX_BODY: usize = 512 * 1024;
/// The maximum length of a server's text that is reported, in characters.
const MAX_SERVER_TEXT_CHARS: usize = 300;

/// An HTTP client for the authorization server of one MCP server.
#[derive(Clone)]
pub(super) struct AuthHttpClient {
    connector: Connector,
    policy: AddressPolicy,
}

/// How addresses are connected to.
#[derive(Clone)]
enum Connector {
    /// By one client, which follows the policy.
    Shared(Client),
    /// For a server that the user has added: by a client for each request, which reaches public addresses and
    /// those on this list, and no others.
    PerRequest(WebAllowlist),
}

/// A response.
pub(super) struct AuthHttpResponse {
    pub(super) status: StatusCode,
    pub(super) body: Zeroizing<Vec<u8>>,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("`{0}` is not contacted: the tool server uses https, so all other servers must")]
    Downgrade(String),
    #[error(
        "`{0}` is not contacted: it is not on the public internet ({1}), but the tool server is; the tool server \
         must have an address of the same network"
    )]
    NotPublic(String, &'static str),
    #[error("{0}")]
    Refused(String),
    #[error("the response of `{0}` has over {MAX_BODY} bytes")]
    ResponseTooLarge(String),
    #[error("the request to `{host}` failed: {reason}")]
    Connection { host: String, reason: String },
}

/// The addresses that may be reached.
#[derive(Clone, Copy)]
struct AddressPolicy {
    /// Only addresses over https.
    https_only: bool,
    /// Also addresses that are not on the public internet.
    allow_private: bool,
}

impl AddressPolicy {
    /// Returns why an address may not be reached. Whoever acts for a public server must be public too: it could
    /// make the engine send requests inside the engine's own network. A private server may use other private ones;
    /// a cloud's metadata service is never allowed.
    fn rejection_reason(self, address: IpAddr) -> Option<&'static str> {
        let what = special_purpose(address)?;
        let always_rejected = ["a cloud's metadata service", "link-local"].contains(&what);
        (always_rejected || !self.allow_private).then_some(what)
    }

    fn check(self, url: &Url) -> Result<(), HttpError> {
        let host = || host_name(url);
        if url.scheme() != "https" && (self.https_only || url.scheme() != "http") {
            return Err(HttpError::Downgrade(host()));
        }
        let rejected = literal_ip(url).and_then(|address| self.rejection_reason(address));
        rejected.map_or(Ok(()), |what| Err(HttpError::NotPublic(host(), what)))
    }
}

/// Checks every address that a name resolves to, at the time of the connection.
struct CheckedResolver(AddressPolicy);

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = self.0;
        Box::pin(async move {
            let found = dns::SERVER_RESOLVER.addresses(name.as_str(), 0).await?;
            if let Some(what) = found.iter().find_map(|address| policy.rejection_reason(address.ip())) {
                return Err(HttpError::NotPublic(name.as_str().to_owned(), what).into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

impl AuthHttpClient {
    /// Creates a client for the authorization server of this MCP server, which may be on a private network if the
    /// operator allows it. It is not kept: an idle engine has neither connections nor TLS roots in memory.
    pub(super) async fn for_server(
        server: &Url,
        origin: ServerOrigin,
        allowed: &WebAllowlist,
    ) -> Result<Self, HttpError> {
        if origin == ServerOrigin::User {
            let policy = AddressPolicy { https_only: server.scheme() == "https", allow_private: true };
            return Ok(Self { connector: Connector::PerRequest(allowed.clone()), policy });
        }
        let port = server.port_or_known_default().unwrap_or_default();
        // The owner of a name decides where it leads, so that alone permits nothing.
        let is_private = match server.host() {
            Some(Host::Domain(name)) => is_localhost(name) || allowed.allows_name(name, port),
            _ => literal_ip(server).is_some_and(|address| special_purpose(address).is_some()),
        };
        let policy = AddressPolicy { https_only: server.scheme() == "https", allow_private: is_private };
        let client = guarded_client(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(1)
            .timeout(REQUEST_TIMEOUT)
            .dns_resolver(Arc::new(CheckedResolver(policy)));
        let failed = |reason| HttpError::Connection { host: host_name(server), reason };
        Ok(Self { connector: Connector::Shared(build_client(client).await.map_err(failed)?), policy })
    }

    /// Whether the MCP server is one of the catalog on a private network, but not on this machine.
    pub(super) fn is_on_private_network(&self, server: &Url) -> bool {
        if matches!(self.connector, Connector::PerRequest(_)) {
            return false;
        }
        let is_local = match server.host() {
            Some(Host::Domain(name)) => is_localhost(name),
            _ => literal_ip(server).is_some_and(|address| address.is_loopback()),
        };
        self.policy.allow_private && !is_local
    }

    /// Posts a form, with an `Authorization` header if the client authenticates with one.
    pub(super) async fn post_form(
        &self,
        url: &Url,
        authorization: Option<HeaderValue>,
        fields: &[(&str, &str)],
    ) -> Result<AuthHttpResponse, HttpError> {
        let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let mut request = request(Method::POST, url);
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization);
        }
        *request.body_mut() = Some(form.into());
        self.send_and_read(url, request).await
    }

    /// Gets JSON.
    pub(super) async fn get_json(&self, url: &Url) -> Result<AuthHttpResponse, HttpError> {
        self.send_and_read(url, request(Method::GET, url)).await
    }

    /// Whether addresses that are not public are allowed, because the MCP server is not public either.
    pub(super) fn allows_private(&self) -> bool {
        self.policy.allow_private
    }

    /// Posts JSON.
    pub(super) async fn post_json(&self, url: &Url, body: &Value) -> Result<AuthHttpResponse, HttpError> {
        let mut request = request(Method::POST, url);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *request.body_mut() = Some(body.to_string().into());
        self.send_and_read(url, request).await
    }

    async fn send_and_read(&self, url: &Url, request: Request) -> Result<AuthHttpResponse, HttpError> {
        let response = self.send(request).await?;
        let status = response.status();
        Ok(AuthHttpResponse { status, body: Zeroizing::new(self.bounded_body(url, response).await?) })
    }

    async fn send(&self, request: Request) -> Result<reqwest::Response, HttpError> {
        let url = request.url().clone();
        self.policy.check(&url)?;
        let client = match &self.connector {
            Connector::Shared(client) => client.clone(),
            Connector::PerRequest(allowed) => {
                let configure = |client: ClientBuilder| {
                    client.connect_timeout(CONNECT_TIMEOUT).pool_max_idle_per_host(0).timeout(REQUEST_TIMEOUT)
                };
                let client = client_for_outsider(&url, allowed, configure).await;
                client.map_err(|error| HttpError::Refused(sanitize_server_text(&error.to_string())))?
            }
        };
        client.execute(request).await.map_err(|error| connection_error(&url, error))
    }

    async fn bounded_body(&self, url: &Url, response: reqwest::Response) -> Result<Vec<u8>, HttpError> {
        let body = read_body(response, MAX_BODY).await.map_err(|error| connection_error(url, error))?;
        if body.is_complete { Ok(body.bytes) } else { Err(HttpError::ResponseTooLarge(host_name(url))) }
    }
}

/// Used for discovery, which follows redirects within an origin itself.
impl OAuthHttpClient for AuthHttpClient {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let request = Request::try_from(request.request)?;
            let url = request.url().clone();
            let mut response = self.send(request).await?;
            let mut builder = axum::http::Response::builder().status(response.status());
            if let Some(headers) = builder.headers_mut() {
                headers.extend(std::mem::take(response.headers_mut()));
            }
            Ok(builder.body(self.bounded_body(&url, response).await?)?)
        })
    }
}

impl AuthHttpResponse {
    /// Returns the body as JSON, if it is JSON.
    pub(super) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

fn request(method: Method, url: &Url) -> Request {
    let mut request = Request::new(method, url.clone());
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
    request
}

/// Prepares a server's text for a person: bounded, without control characters.
pub(super) fn sanitize_server_text(text: &str) -> String {
    let kept = text.chars().filter(|character| !character.is_control());
    kept.take(MAX_SERVER_TEXT_CHARS).collect()
}

/// Describes an error without the full URL, in which a server may have put anything.
fn connection_error(url: &Url, error: reqwest::Error) -> HttpError {
    let reason = if error.is_timeout() {
        format!("it did not answer within {} seconds", REQUEST_TIMEOUT.as_secs())
    } else {
        sanitize_server_text(&error_chain(&error.without_url()))
    };
    HttpError::Connection { host: host_name(url), reason }
}

/// Whether a name means this machine (RFC 6761, section 6.3).
fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

fn host_name(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

fn literal_ip(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.into()),
        Host::Domain(_) => None,
    }
}

#[cfg(test)]
#[path = "../../tests/unit/oauth/http.rs"]
mod tests;
