//! Finds the addresses of names as the machine is set up: by its hosts file, its search domains and its name servers,
//! as every other program on it does (`getaddrinfo`).
//!
//! That blocks, and for a name whose servers do not answer it does so for a long time, which nothing can cut short. So
//! names have threads of their own ([`Lane`]), those that somebody else chose apart from those that the operator chose;
//! who asks waits for a bounded time, and few can wait. One name has one thread at most, so a name whose servers are silent
//! holds up no other one.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;

use crate::threads::{Lane, PAGE_NAME_THREADS, PROVIDER_NAME_THREADS, SERVER_NAME_THREADS};

/// How long the addresses of a name may take, the wait for a thread included.
const DEADLINE: Duration = Duration::from_secs(10);
/// How many names may be asked for at once, those that wait for a thread included.
const MAX_ASKED: usize = 64;

/// For web pages: whoever wrote what the agent reads may have chosen their names.
pub(crate) static OF_PAGES: LazyLock<Names> = LazyLock::new(|| Names::of(PAGE_NAME_THREADS));
/// For tool servers, their authorization servers, and tools of the catalog.
pub(crate) static OF_SERVERS: LazyLock<Names> = LazyLock::new(|| Names::of(SERVER_NAME_THREADS));
/// For model providers.
pub(crate) static OF_PROVIDERS: LazyLock<Names> = LazyLock::new(|| Names::of(PROVIDER_NAME_THREADS));

/// Why a name has no address here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameError {
    /// Too many are asked for.
    #[error("{MAX_ASKED} names are being looked up already: try again in a few seconds")]
    Full,
    /// The name servers are slow or silent.
    #[error("no name server answered within {} seconds", .0.as_secs_f32())]
    Late(Duration),
    /// The machine says why.
    #[error(transparent)]
    Refused(#[from] io::Error),
    /// The engine stops.
    #[error("the engine is stopping")]
    Stopping,
}

/// Looks a name up. Blocks.
type Lookup = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Finds addresses for one kind of askers. Clones share its threads.
#[derive(Clone)]
pub(crate) struct Names {
    lookup: Arc<Lookup>,
    lane: Lane,
    /// The one lookup at a time of each name that is being looked up.
    by_name: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
    asked: Arc<Semaphore>,
    deadline: Duration,
}

impl Names {
    fn of(threads: usize) -> Self {
        Self::by(threads, DEADLINE, |name, port| Ok((name, port).to_socket_addrs()?.collect()))
    }

    /// With so many threads, on which names are looked up by `lookup`.
    pub(crate) fn by(
        threads: usize,
        deadline: Duration,
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        let asked = Arc::new(Semaphore::new(MAX_ASKED));
        Self { lookup: Arc::new(lookup), lane: Lane::of(threads), by_name: Arc::default(), asked, deadline }
    }

    /// All addresses of `name`, with this port.
    ///
    /// # Errors
    /// See [`NameError`]. A name that leads nowhere is refused by the machine.
    pub(crate) async fn addresses(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, NameError> {
        let _asked = self.asked.try_acquire().map_err(|_| NameError::Full)?;
        let (lookup, turn, name) = (Arc::clone(&self.lookup), self.permit_of(name), name.to_owned());
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
        let found = tokio::time::timeout(self.deadline, found).await;
        Ok(found.map_err(|_| NameError::Late(self.deadline))?.ok_or(NameError::Stopping)??)
    }

    /// What the lookups of `name` share. Nothing is kept of names that nobody looks up any more.
    fn permit_of(&self, name: &str) -> Arc<Semaphore> {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        by_name.retain(|_, permit| Arc::strong_count(permit) > 1);
        Arc::clone(by_name.entry(name.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let names = self.clone();
        Box::pin(async move {
            let found = names.addresses(name.as_str(), 0).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
