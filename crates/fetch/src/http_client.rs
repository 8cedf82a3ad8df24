//! How HTTP clients are built: for addresses that an outsider may have chosen, and for servers that the operator
//! named. None sends a `Referer`: it would tell one server what was requested of another.

use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Client, ClientBuilder, Url};
use resources::dns;
use resources::text::error_chain;
use resources::threads::run_blocking;

use super::allowlist::WebAllowlist;
use super::client::{FetchError, resolve_permitted};
use super::target::{Target, TargetHost};

/// The time limit for a server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of redirects followed within one server.
const MAX_REDIRECTS: usize = 5;

/// The settings of a client for addresses that an outsider may have chosen. It connects directly, so that the
/// addresses checked are those connected to, and neither follows redirects nor repeats requests by itself.
pub fn guarded_client(connect_timeout: Duration) -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .connect_timeout(connect_timeout)
}

/// Builds a client on a blocking thread, because that reads the machine's TLS roots from files.
///
/// # Errors
/// The reason why there is no client.
pub async fn build_client(client: ClientBuilder) -> Result<Client, String> {
    let built = run_blocking(move || client.build()).await.ok_or("the engine is stopping")?;
    built.map_err(|error| error_chain(&error))
}

/// Creates a client for the one server at `url`, which an outsider has chosen. Its name is resolved here,
/// once, and the client connects to those addresses only, all of which are public or on the list: the rule of
/// web pages.
///
/// # Errors
/// The address may not be reached.
pub async fn client_for_outsider(
    url: &Url,
    allowed: &WebAllowlist,
    configure: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<Client, FetchError> {
    let target = Target::parse(url.as_str())?;
    let addresses = resolve_permitted(&*dns::SERVER_RESOLVER, allowed, &target).await?;
    let mut client = configure(guarded_client(CONNECT_TIMEOUT));
    if let TargetHost::Name(name) = target.host() {
        client = client.resolve_to_addrs(name, &addresses);
    }
    build_client(client).await.map_err(FetchError::Connection)
}

/// Follows a redirect only within the origin (scheme, host and port) of the request, because elsewhere it
/// would carry the user's data and keys, and only where `may_follow` agrees.
pub fn redirects_within_origin(may_follow: fn(&Attempt<'_>) -> bool) -> Policy {
    let follow_within_origin = move |attempt: Attempt<'_>| -> Action {
        let is_same_origin =
            attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
        let follow = is_same_origin && attempt.previous().len() <= MAX_REDIRECTS && may_follow(&attempt);
        if follow { attempt.follow() } else { attempt.stop() }
    };
    Policy::custom(follow_within_origin)
}

/// Creates a client for servers that the operator named, which follows redirects within their origin.
///
/// # Errors
/// The reason why there is no client.
pub fn operator_client(may_follow: fn(&Attempt<'_>) -> bool) -> Result<Client, String> {
    let client = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .dns_resolver(Arc::new(dns::SERVER_RESOLVER.clone()))
        .referer(false)
        .redirect(redirects_within_origin(may_follow));
    client.build().map_err(|error| error_chain(&error))
}
