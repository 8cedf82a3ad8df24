//! Asks a server for a page. Each address is judged before it is connected to, and only what was judged is connected
//! to: names are resolved here, once for each hop, and the connection is made to those very addresses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use reqwest::{Client, Response, StatusCode, Url, redirect};

use super::address::special;
use super::allowed::Allowed;
use super::target::{NoTarget, Server, Target};
use crate::memory_budget::{Growing, MemoryBudget, MemoryUse, NoMemory, SMALL};
use crate::names::{self, NameError, Names};

/// How many redirects are followed.
const MAX_REDIRECTS: usize = 5;

/// How many times as large as a body it is together with what is made of it: its text, and that without its tags.
const IN_ALL: usize = 3;

/// What servers are told of who asks.
const USER_AGENT: &str =
    concat!("Roundhouse/", env!("CARGO_PKG_VERSION"), " (an assistant fetching for one user)");

/// What is asked for.
const ACCEPTED: &str =
    "text/html, application/xhtml+xml, text/*, application/json, application/xml;q=0.9, */*;q=0.1";

/// What a fetch may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Until a server accepts a connection.
    pub(crate) connect: Duration,
    /// Without a byte from the server.
    pub(crate) idle: Duration,
    /// For all of it, redirects included.
    pub(crate) whole: Duration,
    /// Bytes of the body; what is beyond is not read.
    pub(crate) body: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(10),
            whole: Duration::from_secs(30),
            body: 5 * 1024 * 1024,
        }
    }
}

/// Finds the addresses of names.
pub(crate) trait Resolver: Send + Sync {
    /// All addresses of `name`, with this port.
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> BoxFuture<'a, Result<Vec<SocketAddr>, NameError>>;
}

impl Resolver for Names {
    fn resolve<'a>(&'a self, name: &'a str, port: u16) -> BoxFuture<'a, Result<Vec<SocketAddr>, NameError>> {
        Box::pin(async move { self.addresses(name, port).await })
    }
}

/// Asks for pages, of public servers and of those that the configuration allows.
#[derive(Clone)]
pub(crate) struct Web {
    resolver: Arc<dyn Resolver>,
    allowed: Arc<Allowed>,
    limits: Limits,
    memory: MemoryBudget,
}

/// A server's answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Page {
    /// Where it was at last.
    pub(crate) url: Url,
    /// The server's status.
    pub(crate) status: StatusCode,
    /// The `Content-Type`, as it was sent; empty if it was not.
    pub(crate) content_type: String,
    /// What was read of the body.
    pub(crate) body: Body,
}

/// What was read of a body.
#[derive(Debug)]
pub(crate) struct Body {
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
    /// Whether that is all.
    pub(crate) is_whole: bool,
    /// The memory of it and of what is made of it.
    _memory: Option<Growing>,
}

/// Why a body could not be read.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// The connection broke, or was silent for too long.
    Broken(reqwest::Error),
    /// It is large, and other large ones are being read.
    NoMemory(NoMemory),
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// An address that is never asked.
    #[error(transparent)]
    Target(#[from] NoTarget),
    /// A redirect to one.
    #[error("the server redirects to an address that is not fetched: {0}")]
    Redirect(NoTarget),
    /// It is not on the public internet.
    #[error(
        "`{host}` is not on the public internet ({what}), so it is not fetched. Only who runs this service can allow \
         it, with ENGINE_WEB_ALLOW"
    )]
    NotPublic {
        /// The name or address.
        host: String,
        /// What its address is for.
        what: &'static str,
    },
    /// The name has no address.
    #[error("the name `{host}` cannot be resolved: {reason}")]
    NoAddress {
        /// The name.
        host: String,
        /// Why.
        reason: String,
    },
    /// From a secure address to one that is not.
    #[error("the server redirects from https to http (`{0}`): that is not followed")]
    Downgrade(Url),
    /// Redirects without end.
    #[error("the server redirects more than {MAX_REDIRECTS} times")]
    TooManyRedirects,
    /// Nothing readable.
    #[error("this is {content_type}{}: only text, HTML, JSON and XML are read", told_size(*.size))]
    NotText {
        /// What it is.
        content_type: String,
        /// Its size in bytes, if the server told.
        size: Option<u64>,
    },
    /// Compressed although that was not asked for: what is small here may be without end once it is unpacked.
    #[error("the server sent its answer compressed (`{0}`), which was not asked for; it is not unpacked")]
    Compressed(String),
    /// No connection in time.
    #[error("`{host}` did not accept a connection within {} s", .after.as_secs_f32())]
    ConnectTimeout {
        /// The name or address.
        host: String,
        /// How long it had.
        after: Duration,
    },
    /// No byte in time.
    #[error("the server sent nothing for {} s, so it was given up", .0.as_secs_f32())]
    Silent(Duration),
    /// Not all of it in time.
    #[error("the page was not there within {} s, so it was given up", .0.as_secs_f32())]
    Deadline(Duration),
    /// It is large, and other large ones are being read.
    #[error("the page is not read: {0}")]
    NoMemory(NoMemory),
    /// The connection failed.
    #[error("the connection to the server failed: {0}")]
    Connection(String),
}

fn told_size(size: Option<u64>) -> String {
    size.map(|size| format!(" of {size} bytes")).unwrap_or_default()
}

impl Web {
    /// One that uses the machine's own resolver.
    pub(crate) fn new(allowed: Allowed, memory: MemoryBudget) -> Self {
        Self { memory, ..Self::with(Arc::new(names::OF_PAGES.clone()), allowed, Limits::default()) }
    }

    /// One with all that it works with.
    pub(crate) fn with(resolver: Arc<dyn Resolver>, allowed: Allowed, limits: Limits) -> Self {
        Self { resolver, allowed: Arc::new(allowed), limits, memory: MemoryBudget::default() }
    }

    /// The page at an address.
    ///
    /// # Errors
    /// There is none that may be read; a status that tells of an error is not one.
    pub(crate) async fn fetch(&self, target: Target) -> Result<Page, FetchError> {
        let whole = self.limits.whole;
        tokio::time::timeout(whole, self.follow(target)).await.map_err(|_| FetchError::Deadline(whole))?
    }

    async fn follow(&self, mut target: Target) -> Result<Page, FetchError> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.ask(&target).await?;
            match redirect(&target, &response)? {
                Some(next) => target = next,
                None => return self.read(response).await,
            }
        }
        Err(FetchError::TooManyRedirects)
    }

    async fn ask(&self, target: &Target) -> Result<Response, FetchError> {
        let addresses = self.judged(target).await?;
        let client = self.client(target, addresses).await?;
        let request = client.get(target.url().clone()).header(ACCEPT, ACCEPTED);
        request.header(ACCEPT_ENCODING, "identity").send().await.map_err(|error| self.failed(target, &error))
    }

    /// The addresses of a server, all of which may be connected to.
    async fn judged(&self, target: &Target) -> Result<Vec<SocketAddr>, FetchError> {
        let port = target.port();
        let (host, addresses, by_name) = match target.server() {
            Server::Address(address) => (address.to_string(), vec![SocketAddr::new(address, port)], false),
            Server::Name(name) => {
                let no_address = |reason: String| FetchError::NoAddress { host: name.to_owned(), reason };
                let resolved = self.resolver.resolve(name, port).await;
                let addresses = resolved.map_err(|error| no_address(error.to_string()))?;
                if addresses.is_empty() {
                    return Err(no_address("it has no address".into()));
                }
                (name.to_owned(), addresses, self.allowed.has_name(name, port))
            }
        };
        let refused = |address: &SocketAddr| {
            let may = by_name || self.allowed.has_address(*address);
            if may { None } else { special(address.ip()) }
        };
        match addresses.iter().find_map(refused) {
            Some(what) => Err(FetchError::NotPublic { host, what }),
            None => Ok(addresses),
        }
    }

    /// A client for one hop, which knows no other addresses. It is not kept: an idle engine has neither connections
    /// nor TLS roots in memory.
    async fn client(&self, target: &Target, addresses: Vec<SocketAddr>) -> Result<Client, FetchError> {
        let mut client = Client::builder()
            .user_agent(USER_AGENT)
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .pool_max_idle_per_host(0)
            .connect_timeout(self.limits.connect)
            .read_timeout(self.limits.idle);
        if let Server::Name(name) = target.server() {
            client = client.resolve_to_addrs(name, &addresses);
        }
        // It reads the machine's TLS roots from files.
        let built = tokio::task::spawn_blocking(move || client.build()).await;
        let built = built.map_err(|error| FetchError::Connection(error.to_string()))?;
        built.map_err(|error| FetchError::Connection(chain(&error)))
    }

    async fn read(&self, response: Response) -> Result<Page, FetchError> {
        let header =
            |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let encoding = header(CONTENT_ENCODING);
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            return Err(FetchError::Compressed(encoding.to_owned()));
        }
        let content_type = header(CONTENT_TYPE).to_owned();
        if !is_text(media_type(&content_type)) {
            // What the server says, not what is left to read: a compressed body has no such length.
            let size = header(CONTENT_LENGTH).parse().ok();
            return Err(FetchError::NotText { content_type, size });
        }
        let (url, status) = (response.url().clone(), response.status());
        let body = read_large_body(response, self.limits.body, &self.memory).await;
        let body = body.map_err(|error| match error {
            BodyError::Broken(error) if error.is_timeout() => FetchError::Silent(self.limits.idle),
            BodyError::Broken(error) => FetchError::Connection(chain(&error)),
            BodyError::NoMemory(reason) => FetchError::NoMemory(reason),
        })?;
        Ok(Page { url, status, content_type, body })
    }

    fn failed(&self, target: &Target, error: &reqwest::Error) -> FetchError {
        let Limits { connect, idle, .. } = self.limits;
        let host = target.url().host_str().unwrap_or_default().to_owned();
        match (error.is_timeout(), error.is_connect()) {
            (true, true) => FetchError::ConnectTimeout { host, after: connect },
            (true, false) => FetchError::Silent(idle),
            (false, _) => FetchError::Connection(chain(error)),
        }
    }
}

/// Where an answer sends us, if it does.
fn redirect(target: &Target, response: &Response) -> Result<Option<Target>, FetchError> {
    let follows = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|_| follows) else { return Ok(None) };
    let location = String::from_utf8_lossy(location.as_bytes());
    let next = target.join(&location).map_err(FetchError::Redirect)?;
    if target.is_secure() && !next.is_secure() {
        return Err(FetchError::Downgrade(next.url().clone()));
    }
    Ok(Some(next))
}

/// Reads the first `max` bytes of a body, which are few.
pub(crate) async fn read_body(mut response: Response, max: usize) -> Result<Body, reqwest::Error> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if bytes.len() + chunk.len() > max {
            bytes.extend(chunk.iter().take(max - bytes.len()));
            return Ok(Body { bytes, is_whole: false, _memory: None });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Body { bytes, is_whole: true, _memory: None })
}

/// Reads the first `max` bytes of a body. What is large waits for its memory, and keeps the server waiting: at one go where
/// its length is known, so that of many each gets all it needs, else as it comes.
pub(crate) async fn read_large_body(
    mut response: Response,
    max: usize,
    memory: &MemoryBudget,
) -> Result<Body, BodyError> {
    let told =
        response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0).min(max);
    let (mut bytes, mut reserved) = (Vec::new(), memory.growing(MemoryUse::Tools));
    while let Some(chunk) = response.chunk().await.map_err(BodyError::Broken)? {
        let length = bytes.len().saturating_add(chunk.len()).min(max);
        let in_all = if length > SMALL { length.max(told).saturating_mul(IN_ALL) } else { length };
        reserved.grow(in_all).await.map_err(BodyError::NoMemory)?;
        if bytes.len() + chunk.len() > max {
            bytes.extend(chunk.iter().take(max - bytes.len()));
            return Ok(Body { bytes, is_whole: false, _memory: Some(reserved) });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Body { bytes, is_whole: true, _memory: Some(reserved) })
}

/// A content type without its parameters.
pub(crate) fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Whether what has this type is text. What has none is read, and refused if it turns out to be none.
fn is_text(media_type: &str) -> bool {
    let media_type = media_type.to_ascii_lowercase();
    let Some((kind, of)) = media_type.split_once('/') else { return media_type.is_empty() };
    let text =
        ["json", "xml", "yaml", "x-yaml", "toml", "javascript", "ecmascript", "x-ndjson", "x-sh", "sql"];
    kind == "text"
        || of.ends_with("+json")
        || (of.ends_with("+xml") && kind == "application")
        || (kind == "application" && text.contains(&of))
}

/// An error with its causes, which alone tell what happened on a connection.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
