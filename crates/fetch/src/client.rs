//! Fetches pages from web servers. Each address is checked before the connection, and only checked addresses are
//! connected to: names are resolved here, once for each hop, and the connection uses exactly those addresses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use reqwest::{Client, ClientBuilder, Response, StatusCode, Url};
use resources::dns::{self, DnsError, DnsResolver};
use resources::memory_budget::{GrowingReservation, MAX_UNCOUNTED_BYTES, MemoryBudget, MemoryUse, NoMemory};
use resources::text::error_chain;

use super::allowlist::WebAllowlist;
use super::http_client::{build_client, guarded_client};
use super::ip_ranges::special_purpose;
use super::target::{Target, TargetError, TargetHost};

/// The maximum number of redirects followed.
const MAX_REDIRECTS: usize = 5;

/// How long an idle connection of a client that is kept stays open.
const KEPT_CONNECTION_IDLE: Duration = Duration::from_secs(2);

/// The memory of a body and of what is made of it (its text, and that without tags), as a multiple of the body's
/// size.
const BODY_MEMORY_FACTOR: usize = 3;

/// The `User-Agent` header.
const USER_AGENT: &str =
    concat!("Roundhouse/", env!("CARGO_PKG_VERSION"), " (an assistant fetching for one user)");

/// The `Accept` header.
const ACCEPTED_TYPES: &str =
    "text/html, application/xhtml+xml, text/*, application/json, application/xml;q=0.9, */*;q=0.1";

/// What a fetch accepts.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// The `Accept` header.
    pub accept: &'static str,
    /// The maximum number of bytes that are read of a body, given its media type, which may be empty, and the
    /// client's own maximum; `None` if nothing is read of it.
    pub max_bytes: &'a (dyn Fn(&str, usize) -> Option<usize> + Sync),
}

impl Wanted<'static> {
    /// Pages: texts in the widest sense.
    pub const TEXT: Self = Self { accept: ACCEPTED_TYPES, max_bytes: &max_text_bytes };
}

fn max_text_bytes(media_type: &str, own_limit: usize) -> Option<usize> {
    is_text(media_type).then_some(own_limit)
}

/// The limits of a fetch.
#[derive(Clone, Copy, Debug)]
pub struct FetchLimits {
    /// For a server to accept a connection.
    pub connect_timeout: Duration,
    /// Without a byte from the server.
    pub(crate) idle_timeout: Duration,
    /// For the whole fetch, redirects included.
    pub(crate) total_timeout: Duration,
    /// The maximum number of body bytes; the rest is not read.
    pub(crate) max_body_bytes: usize,
}

impl Default for FetchLimits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(10),
            total_timeout: Duration::from_secs(30),
            max_body_bytes: 5 * 1024 * 1024,
        }
    }
}

/// Resolves host names.
pub trait Resolver: Send + Sync {
    /// Returns all addresses of `name`, with this port.
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> BoxFuture<'a, Result<Vec<SocketAddr>, DnsError>>;
}

impl Resolver for DnsResolver {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> BoxFuture<'a, Result<Vec<SocketAddr>, DnsError>> {
        Box::pin(async move { self.addresses(name, port).await })
    }
}

/// Fetches pages from public servers and from those that the configuration allows.
#[derive(Clone)]
pub struct WebClient {
    resolver: Arc<dyn Resolver>,
    allowlist: Arc<WebAllowlist>,
    pub(super) limits: FetchLimits,
    pub(super) memory_budget: MemoryBudget,
}

/// A server's response, whatever its status.
#[derive(Debug)]
pub struct Page {
    /// The final URL, after redirects.
    pub url: Url,
    /// The HTTP status.
    pub status: StatusCode,
    /// The `Content-Type` as sent; empty if there was none.
    pub content_type: String,
    /// The part of the body that was read.
    pub body: Body,
}

/// The part of a body that was read.
#[derive(Debug)]
pub struct Body {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether this is the whole body.
    pub is_complete: bool,
    /// The memory reserved for the body and what is made of it.
    memory: Option<GrowingReservation>,
}

/// The memory that is reserved for a body, until this is dropped.
#[derive(Debug)]
pub struct BodyMemory {
    _reserved: Option<GrowingReservation>,
}

impl Body {
    /// Returns the bytes, and their memory.
    pub fn into_parts(self) -> (Vec<u8>, BodyMemory) {
        (self.bytes, BodyMemory { _reserved: self.memory })
    }
}

/// Why a body could not be read.
#[derive(Debug)]
pub enum BodyError {
    /// The connection broke, or was silent for too long.
    Transport(reqwest::Error),
    /// The body is large, and other large ones are being read.
    NoMemory(NoMemory),
}

/// Why a page could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The address is never fetched.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A redirect leads to such an address.
    #[error("the server redirects to an address that is not fetched: {0}")]
    Redirect(TargetError),
    /// The address is not on the public internet.
    #[error(
        "`{host}` is not on the public internet ({what}), so it is not fetched. Only the operator of this service \
         can allow it, with ENGINE_WEB_ALLOW"
    )]
    NotPublic {
        /// The name or address.
        host: String,
        /// The purpose of the address.
        what: &'static str,
    },
    /// The name has no address.
    #[error("the name `{host}` cannot be resolved: {reason}")]
    NoAddress {
        /// The name.
        host: String,
        /// The reason.
        reason: String,
    },
    /// A redirect leads from https to http.
    #[error("the server redirects from https to http (`{0}`): that is not followed")]
    Downgrade(Url),
    /// There were too many redirects.
    #[error("the server redirects more than {MAX_REDIRECTS} times")]
    TooManyRedirects,
    /// The content is not text.
    #[error(
        "this is {content_type}{}: only text, HTML, JSON, XML, PDF, DOCX and XLSX are read",
        size_suffix(*.size)
    )]
    NotText {
        /// Its content type.
        content_type: String,
        /// Its size in bytes, if the server sent one.
        size: Option<u64>,
    },
    /// The content is compressed although that was not requested: a small body may be endless once it is unpacked.
    #[error(
        "the server sent its answer compressed (`{0}`), although that was not requested; it is not unpacked"
    )]
    Compressed(String),
    /// The server did not accept a connection in time.
    #[error("`{host}` did not accept a connection within {} s", .after.as_secs_f32())]
    ConnectTimeout {
        /// The name or address.
        host: String,
        /// The time limit.
        after: Duration,
    },
    /// No byte arrived in time.
    #[error("the server sent nothing for {} s, so the fetch was aborted", .0.as_secs_f32())]
    IdleTimeout(Duration),
    /// The page did not arrive completely in time.
    #[error("the page did not arrive completely within {} s, so the fetch was aborted", .0.as_secs_f32())]
    TotalTimeout(Duration),
    /// The page is large, and other large ones are being read.
    #[error("the page is not read: {0}")]
    NoMemory(NoMemory),
    /// The connection failed.
    #[error("the connection to the server failed: {0}")]
    Connection(String),
}

fn size_suffix(size: Option<u64>) -> String {
    size.map(|size| format!(" of {size} bytes")).unwrap_or_default()
}

impl WebClient {
    /// Creates a client with the machine's own resolver.
    pub fn new(allowed: WebAllowlist, memory: MemoryBudget) -> Self {
        Self {
            memory_budget: memory,
            ..Self::with_resolver(Arc::new(dns::PAGE_RESOLVER.clone()), allowed, FetchLimits::default())
        }
    }

    /// Creates a client with the given dependencies.
    pub fn with_resolver(resolver: Arc<dyn Resolver>, allowed: WebAllowlist, limits: FetchLimits) -> Self {
        Self { resolver, allowlist: Arc::new(allowed), limits, memory_budget: MemoryBudget::default() }
    }

    /// Fetches the page at an address.
    ///
    /// # Errors
    /// There is no page that may be read; an error status is not an error here.
    pub async fn fetch(&self, target: Target) -> Result<Page, FetchError> {
        self.fetch_wanted(target, Wanted::TEXT).await
    }

    /// Fetches what is at an address, if it is wanted.
    ///
    /// # Errors
    /// As [`Self::fetch`].
    pub async fn fetch_wanted(&self, target: Target, wanted: Wanted<'_>) -> Result<Page, FetchError> {
        let limit = self.limits.total_timeout;
        tokio::time::timeout(limit, self.fetch_following_redirects(target, wanted))
            .await
            .map_err(|_| FetchError::TotalTimeout(limit))?
    }

    async fn fetch_following_redirects(
        &self,
        mut target: Target,
        wanted: Wanted<'_>,
    ) -> Result<Page, FetchError> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_request(&target, wanted.accept).await?;
            match redirect_target(&target, &response)? {
                Some(next) => target = next,
                None => return self.read_page(response, wanted).await,
            }
        }
        Err(FetchError::TooManyRedirects)
    }

    async fn send_request(&self, target: &Target, accept: &str) -> Result<Response, FetchError> {
        let client = self.client_for(target).await?;
        let request = client.get(target.url().clone()).header(ACCEPT, accept);
        request
            .header(ACCEPT_ENCODING, "identity")
            .send()
            .await
            .map_err(|error| self.request_error(target, &error))
    }

    /// Creates a client for a server, all of whose addresses may be connected to.
    pub(super) async fn client_for(&self, target: &Target) -> Result<Client, FetchError> {
        let addresses = resolve_permitted(&*self.resolver, &self.allowlist, target).await?;
        self.client_for_hop(target, addresses).await
    }

    /// Creates a client for a server that is called often, all of whose addresses may be connected to.
    pub(super) async fn keeping_client_for(&self, target: &Target) -> Result<Client, FetchError> {
        let addresses = resolve_permitted(&*self.resolver, &self.allowlist, target).await?;
        // Shorter than servers keep an idle connection: a request on one that was just closed would fail.
        let configure = |client: ClientBuilder| client.pool_idle_timeout(KEPT_CONNECTION_IDLE);
        self.build_client_for(target, addresses, configure).await
    }

    /// Creates a client for one hop, which knows no other addresses. It is not kept: an idle engine has neither
    /// connections nor TLS roots in memory.
    async fn client_for_hop(
        &self,
        target: &Target,
        addresses: Vec<SocketAddr>,
    ) -> Result<Client, FetchError> {
        let configure = |client: ClientBuilder| client.user_agent(USER_AGENT).pool_max_idle_per_host(0);
        self.build_client_for(target, addresses, configure).await
    }

    async fn build_client_for(
        &self,
        target: &Target,
        addresses: Vec<SocketAddr>,
        configure: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Client, FetchError> {
        let client = guarded_client(self.limits.connect_timeout).read_timeout(self.limits.idle_timeout);
        let mut client = configure(client);
        if let TargetHost::Name(name) = target.host() {
            client = client.resolve_to_addrs(name, &addresses);
        }
        build_client(client).await.map_err(FetchError::Connection)
    }

    async fn read_page(&self, response: Response, wanted: Wanted<'_>) -> Result<Page, FetchError> {
        let header =
            |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let encoding = header(CONTENT_ENCODING);
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            return Err(FetchError::Compressed(encoding.to_owned()));
        }
        let content_type = header(CONTENT_TYPE).to_owned();
        let max_bytes = (wanted.max_bytes)(media_type(&content_type), self.limits.max_body_bytes);
        let Some(max_bytes) = max_bytes else {
            // The declared size, not what is left to read: a decoded body has no such length.
            let size = header(CONTENT_LENGTH).parse().ok();
            return Err(FetchError::NotText { content_type, size });
        };
        let (url, status) = (response.url().clone(), response.status());
        let body = read_large_body(response, max_bytes, &self.memory_budget).await;
        let body = body.map_err(|error| match error {
            BodyError::Transport(error) if error.is_timeout() => {
                FetchError::IdleTimeout(self.limits.idle_timeout)
            }
            BodyError::Transport(error) => FetchError::Connection(error_chain(&error)),
            BodyError::NoMemory(reason) => FetchError::NoMemory(reason),
        })?;
        Ok(Page { url, status, content_type, body })
    }

    pub(super) fn request_error(&self, target: &Target, error: &reqwest::Error) -> FetchError {
        let FetchLimits { connect_timeout: connect, idle_timeout: idle, .. } = self.limits;
        let host = target.url().host_str().unwrap_or_default().to_owned();
        match (error.is_timeout(), error.is_connect()) {
            (true, true) => FetchError::ConnectTimeout { host, after: connect },
            (true, false) => FetchError::IdleTimeout(idle),
            (false, _) => FetchError::Connection(error_chain(error)),
        }
    }
}

/// Resolves a server's name to addresses, all of which may be connected to.
pub(super) async fn resolve_permitted(
    resolver: &dyn Resolver,
    allowlist: &WebAllowlist,
    target: &Target,
) -> Result<Vec<SocketAddr>, FetchError> {
    let port = target.port();
    let (host, addresses, by_name) = match target.host() {
        TargetHost::Address(address) => (address.to_string(), vec![SocketAddr::new(address, port)], false),
        TargetHost::Name(name) => {
            let no_address = |reason: String| FetchError::NoAddress { host: name.to_owned(), reason };
            let found = resolver.resolve(name, port).await;
            let addresses = found.map_err(|error| no_address(error.to_string()))?;
            if addresses.is_empty() {
                return Err(no_address("it has no address".into()));
            }
            (name.to_owned(), addresses, allowlist.allows_name(name, port))
        }
    };
    let refused = |address: &SocketAddr| {
        let permitted = by_name || allowlist.allows_address(*address);
        if permitted { None } else { special_purpose(address.ip()) }
    };
    match addresses.iter().find_map(refused) {
        Some(what) => Err(FetchError::NotPublic { host, what }),
        None => Ok(addresses),
    }
}

/// Returns the target of a redirect, if the response is one.
fn redirect_target(target: &Target, response: &Response) -> Result<Option<Target>, FetchError> {
    let follows = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|_| follows) else { return Ok(None) };
    let location = String::from_utf8_lossy(location.as_bytes());
    let next = target.join(&location).map_err(FetchError::Redirect)?;
    if target.is_secure() && !next.is_secure() {
        return Err(FetchError::Downgrade(next.url().clone()));
    }
    Ok(Some(next))
}

/// Reads the first `max` bytes of a body; `max` is small.
pub async fn read_body(mut response: Response, max: usize) -> Result<Body, reqwest::Error> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if bytes.len() + chunk.len() > max {
            bytes.extend(chunk.iter().take(max - bytes.len()));
            return Ok(Body { bytes, is_complete: false, memory: None });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Body { bytes, is_complete: true, memory: None })
}

/// Reads the first `max` bytes of a body. A large body waits for its memory, and keeps the server waiting: all at
/// once if its length is known, so that each of several gets all it needs, else as it arrives.
pub async fn read_large_body(
    mut response: Response,
    max: usize,
    memory: &MemoryBudget,
) -> Result<Body, BodyError> {
    let declared_length =
        response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0).min(max);
    let (mut bytes, mut reserved) = (Vec::new(), memory.growing_reservation(MemoryUse::Tools));
    while let Some(chunk) = response.chunk().await.map_err(BodyError::Transport)? {
        let length = bytes.len().saturating_add(chunk.len()).min(max);
        let in_all = if length > MAX_UNCOUNTED_BYTES {
            length.max(declared_length).saturating_mul(BODY_MEMORY_FACTOR)
        } else {
            length
        };
        reserved.grow_to(in_all).await.map_err(BodyError::NoMemory)?;
        if bytes.len() + chunk.len() > max {
            bytes.extend(chunk.iter().take(max - bytes.len()));
            return Ok(Body { bytes, is_complete: false, memory: Some(reserved) });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Body { bytes, is_complete: true, memory: Some(reserved) })
}

/// Returns a content type without its parameters.
pub fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Whether this media type is text. A body without a type is read, and refused if it is not text.
pub fn is_text(media_type: &str) -> bool {
    let media_type = media_type.to_ascii_lowercase();
    let Some((kind, of)) = media_type.split_once('/') else { return media_type.is_empty() };
    let text =
        ["json", "xml", "yaml", "x-yaml", "toml", "javascript", "ecmascript", "x-ndjson", "x-sh", "sql"];
    kind == "text"
        || of.ends_with("+json")
        || (of.ends_with("+xml") && kind == "application")
        || (kind == "application" && text.contains(&of))
}

#[cfg(test)]
#[path = "../tests/unit/client.rs"]
mod tests;
