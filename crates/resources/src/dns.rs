//! Resolves host names as the machine is configured (hosts file, search domains, name servers), like every other
//! program on it: with `getaddrinfo`.
//!
//! That call blocks, for a long time if the name servers do not answer, and cannot be cancelled. Therefore lookups
//! have threads of their own ([`Lane`]), separate for names that outsiders chose and names that the operator
//! chose; the time and the number of waiting lookups are bounded. One name gets at most half of the threads, so
//! that a name whose servers are silent does not block the others.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;

use crate::threads::{Lane, PAGE_DNS_THREADS, PROVIDER_DNS_THREADS, SERVER_DNS_THREADS};

/// The time limit of a lookup, including the wait for a thread.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of pending lookups, including those that wait for a thread.
const MAX_PENDING_LOOKUPS: usize = 64;

/// For web pages: their names may have been chosen by the author of anything that the agent reads.
pub static PAGE_RESOLVER: LazyLock<DnsResolver> = LazyLock::new(|| DnsResolver::new(PAGE_DNS_THREADS));
/// For MCP servers, their authorization servers, and catalog tools.
pub static SERVER_RESOLVER: LazyLock<DnsResolver> = LazyLock::new(|| DnsResolver::new(SERVER_DNS_THREADS));
/// For model providers.
pub static PROVIDER_RESOLVER: LazyLock<DnsResolver> =
    LazyLock::new(|| DnsResolver::new(PROVIDER_DNS_THREADS));

/// Why a name could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// Too many lookups are pending.
    #[error("{MAX_PENDING_LOOKUPS} names are being looked up already: try again in a few seconds")]
    TooManyLookups,
    /// The name servers are slow or silent.
    #[error("no name server answered within {} seconds", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The system's resolver reported an error.
    #[error(transparent)]
    Failed(#[from] io::Error),
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
}

/// A blocking lookup.
type Lookup = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Resolves names for one kind of caller. Clones share its threads.
#[derive(Clone)]
pub struct DnsResolver {
    lookup: Arc<Lookup>,
    lane: Lane,
    /// The maximum number of concurrent lookups of one name.
    max_per_name: usize,
    /// The permits of each name that is being looked up.
    active_by_name: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
    pending_lookups: Arc<Semaphore>,
    timeout: Duration,
}

impl DnsResolver {
    fn new(threads: usize) -> Self {
        Self::with_lookup(threads, LOOKUP_TIMEOUT, |name, port| Ok((name, port).to_socket_addrs()?.collect()))
    }

    /// Creates a resolver with this many threads, which run `lookup`.
    pub(crate) fn with_lookup(
        threads: usize,
        timeout: Duration,
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        let pending_lookups = Arc::new(Semaphore::new(MAX_PENDING_LOOKUPS));
        let max_per_name = threads.div_ceil(2);
        Self {
            lookup: Arc::new(lookup),
            lane: Lane::new(threads),
            max_per_name,
            active_by_name: Arc::default(),
            pending_lookups,
            timeout,
        }
    }

    /// Returns all addresses of `name`, with this port.
    ///
    /// # Errors
    /// See [`DnsError`]. A name that does not exist is [`DnsError::Failed`].
    pub async fn addresses(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, DnsError> {
        let _pending = self.pending_lookups.try_acquire().map_err(|_| DnsError::TooManyLookups)?;
        let (lookup, permits, name) = (Arc::clone(&self.lookup), self.name_permits(name), name.to_owned());
        let found = async {
            // Acquired before a thread, or the lookups of a silent name would soon occupy all of them.
            let permit = permits.acquire_owned().await.ok()?;
            let run_lookup = move || {
                let found = lookup(&name, port);
                drop(permit);
                found
            };
            self.lane.run(run_lookup).await
        };
        let found = tokio::time::timeout(self.timeout, found).await;
        Ok(found.map_err(|_| DnsError::TimedOut(self.timeout))?.ok_or(DnsError::Stopping)??)
    }

    /// Returns the permits shared by the lookups of `name`. They are dropped when nobody looks the name up any
    /// more.
    fn name_permits(&self, name: &str) -> Arc<Semaphore> {
        let mut by_name = self.active_by_name.lock();
        by_name.retain(|_, permit| Arc::strong_count(permit) > 1);
        Arc::clone(
            by_name.entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.max_per_name))),
        )
    }
}

impl Resolve for DnsResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            let found = resolver.addresses(name.as_str(), 0).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
#[path = "../tests/unit/dns.rs"]
mod tests;
