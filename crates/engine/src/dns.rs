//! Finds the addresses of names as the machine is set up: by its hosts file, its search domains and its name servers,
//! as every other program on it does (`getaddrinfo`).
//!
//! That blocks, and for a name whose servers do not answer it does so for a long time, which nothing can cut short. So
//! names have threads of their own ([`Lane`]), those that somebody else chose apart from those that the operator chose;
//! who asks waits for a bounded time, and few can wait. One name has half of the threads at most, so a
//! name whose servers are silent holds up no other one.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;

use crate::threads::{Lane, PAGE_DNS_THREADS, PROVIDER_DNS_THREADS, SERVER_DNS_THREADS};

/// How long the addresses of a name may take, the wait for a thread included.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// How many names may be asked for at once, those that wait for a thread included.
const MAX_PENDING_LOOKUPS: usize = 64;

/// For web pages: whoever wrote what the agent reads may have chosen their names.
pub(crate) static PAGE_RESOLVER: LazyLock<DnsResolver> = LazyLock::new(|| DnsResolver::new(PAGE_DNS_THREADS));
/// For tool servers, their authorization servers, and tools of the catalog.
pub(crate) static SERVER_RESOLVER: LazyLock<DnsResolver> =
    LazyLock::new(|| DnsResolver::new(SERVER_DNS_THREADS));
/// For model providers.
pub(crate) static PROVIDER_RESOLVER: LazyLock<DnsResolver> =
    LazyLock::new(|| DnsResolver::new(PROVIDER_DNS_THREADS));

/// Why a name has no address here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DnsError {
    /// Too many are asked for.
    #[error("{MAX_PENDING_LOOKUPS} names are being looked up already: try again in a few seconds")]
    TooManyLookups,
    /// The name servers are slow or silent.
    #[error("no name server answered within {} seconds", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The machine says why.
    #[error(transparent)]
    Failed(#[from] io::Error),
    /// The engine stops.
    #[error("the engine is stopping")]
    Stopping,
}

/// Looks a name up. Blocks.
type Lookup = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Finds addresses for one kind of askers. Clones share its threads.
#[derive(Clone)]
pub(crate) struct DnsResolver {
    lookup: Arc<Lookup>,
    lane: Lane,
    /// How many lookups each name may have at a time.
    max_per_name: usize,
    /// Those of each name that is being looked up.
    active_by_name: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
    pending_lookups: Arc<Semaphore>,
    timeout: Duration,
}

impl DnsResolver {
    fn new(threads: usize) -> Self {
        Self::with_lookup(threads, LOOKUP_TIMEOUT, |name, port| Ok((name, port).to_socket_addrs()?.collect()))
    }

    /// With so many threads, on which names are looked up by `lookup`.
    pub(crate) fn with_lookup(
        threads: usize,
        deadline: Duration,
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        let asked = Arc::new(Semaphore::new(MAX_PENDING_LOOKUPS));
        let max_per_name = threads.div_ceil(2);
        Self {
            lookup: Arc::new(lookup),
            lane: Lane::new(threads),
            max_per_name,
            active_by_name: Arc::default(),
            pending_lookups: asked,
            timeout: deadline,
        }
    }

    /// All addresses of `name`, with this port.
    ///
    /// # Errors
    /// See [`DnsError`]. A name that leads nowhere is refused by the machine.
    pub(crate) async fn addresses(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, DnsError> {
        let _asked = self.pending_lookups.try_acquire().map_err(|_| DnsError::TooManyLookups)?;
        let (lookup, turn, name) = (Arc::clone(&self.lookup), self.name_permits(name), name.to_owned());
        let found = async {
            // Before a thread, or the lookups of a silent name would soon have all of them.
            let permit = turn.acquire_owned().await.ok()?;
            let work = move || {
                let found = lookup(&name, port);
                drop(permit);
                found
            };
            self.lane.run(work).await
        };
        let found = tokio::time::timeout(self.timeout, found).await;
        Ok(found.map_err(|_| DnsError::TimedOut(self.timeout))?.ok_or(DnsError::Stopping)??)
    }

    /// What the lookups of `name` share. Nothing is kept of names that nobody looks up any more.
    fn name_permits(&self, name: &str) -> Arc<Semaphore> {
        let mut by_name = self.active_by_name.lock().unwrap_or_else(PoisonError::into_inner);
        by_name.retain(|_, permit| Arc::strong_count(permit) > 1);
        Arc::clone(
            by_name.entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.max_per_name))),
        )
    }
}

impl Resolve for DnsResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let names = self.clone();
        Box::pin(async move {
            let found = names.addresses(name.as_str(), 0).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
#[path = "dns_tests.rs"]
mod tests;
