//! Who may be connected, where not everybody can be.
//!
//! One rule shares the places out: an address may have at most [`MAX_CONNECTIONS_PER_FREE`] times as many connections as there are
//! places free. So one address alone may have nearly all of them, and yet there is always a place for another one.
//! Where all places are taken, connections that wait for a request make room, the longest idle ones of the address that
//! has most first. An address that is at its limit while places are free closes idle connections of its own only. Who
//! gets no place may stand: that is long enough to be told so, and to ask for the health.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::connection_state::ConnectionState;

/// How many connections an address may have for each place that is free.
const MAX_CONNECTIONS_PER_FREE: usize = 8;

/// How many may stand beside the places, at most.
const MAX_OVERFLOW: usize = 256;

/// What part of the places is made free at once, so that not each newcomer looks through all of them.
const EVICTION_DIVISOR: usize = 64;

/// How long no idle connection is looked for once none was found.
const EVICTION_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The places of an accept loop.
pub(super) struct ConnectionLimiter {
    epoch: Instant,
    state: Mutex<LimiterState>,
}

/// A connection's place, given back when it is dropped.
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    id: u64,
    pub(super) is_overflow: bool,
    pub(super) connection_state: Arc<ConnectionState>,
    /// Cancelled when the place is given to another.
    pub(super) evicted: CancellationToken,
}

struct LimiterState {
    next_id: u64,
    permits: PermitTier,
    overflow: PermitTier,
    connections: HashMap<u64, OpenConnection>,
    /// The last search that found no idle connection: whose were looked for, and when.
    last_failed_eviction: Option<(Option<IpAddr>, Instant)>,
}

struct OpenConnection {
    address: IpAddr,
    is_overflow: bool,
    connection_state: Arc<ConnectionState>,
    evicted: CancellationToken,
}

/// Places of one kind, and how many each address has of them.
struct PermitTier {
    capacity: usize,
    in_use: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl ConnectionLimiter {
    pub(super) fn new(places: usize) -> Arc<Self> {
        let table = LimiterState {
            next_id: 0,
            permits: PermitTier::new(places),
            overflow: PermitTier::new(MAX_OVERFLOW),
            connections: HashMap::new(),
            last_failed_eviction: None,
        };
        Arc::new(Self { epoch: Instant::now(), state: Mutex::new(table) })
    }

    /// A place for a connection from `address`; none where there is not even room to stand.
    pub(super) fn try_acquire(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        let address = client_key(address);
        let mut table = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_seated = table.permits.try_acquire(address) || {
            let only = table.permits.has_free().then_some(address);
            table.evict_idle(only);
            table.permits.try_acquire(address)
        };
        if !is_seated && !table.overflow.try_acquire(address) {
            return None;
        }
        let guest = OpenConnection {
            address,
            is_overflow: !is_seated,
            connection_state: ConnectionState::new(self.epoch),
            evicted: CancellationToken::new(),
        };
        let id = table.next_id;
        table.next_id += 1;
        let place = ConnectionPermit {
            limiter: Arc::clone(self),
            id,
            is_overflow: guest.is_overflow,
            connection_state: Arc::clone(&guest.connection_state),
            evicted: guest.evicted.clone(),
        };
        table.connections.insert(id, guest);
        Some(place)
    }

    /// Closes some idle connections: what else they hold, such as file descriptors, is wanting.
    pub(super) fn evict_idle(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).evict_idle(None);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.state.lock().unwrap_or_else(PoisonError::into_inner).remove(self.id);
    }
}

impl LimiterState {
    /// Closes some idle connections, of one address only if one is named.
    fn evict_idle(&mut self, only: Option<IpAddr>) {
        if self
            .last_failed_eviction
            .is_some_and(|(whose, at)| whose == only && at.elapsed() < EVICTION_RETRY_DELAY)
        {
            return;
        }
        let concerned = |guest: &OpenConnection| only.is_none_or(|address| guest.address == address);
        let seated = self.connections.iter().filter(|(_, guest)| !guest.is_overflow && concerned(guest));
        let mut idle: Vec<_> = seated
            .filter_map(|(id, guest)| {
                let others = self.permits.by_address.get(&guest.address).copied().unwrap_or_default();
                Some((std::cmp::Reverse(others), guest.connection_state.idle_since()?, *id))
            })
            .collect();
        idle.sort_unstable();
        self.last_failed_eviction = idle.is_empty().then(|| (only, Instant::now()));
        let count = self.permits.capacity.div_ceil(EVICTION_DIVISOR);
        for (_, _, id) in idle.into_iter().take(count) {
            if let Some(guest) = self.remove(id) {
                guest.evicted.cancel();
            }
        }
    }

    fn remove(&mut self, id: u64) -> Option<OpenConnection> {
        let guest = self.connections.remove(&id)?;
        let tier = if guest.is_overflow { &mut self.overflow } else { &mut self.permits };
        tier.release(guest.address);
        Some(guest)
    }
}

impl PermitTier {
    fn new(most: usize) -> Self {
        Self { capacity: most, in_use: 0, by_address: HashMap::new() }
    }

    fn has_free(&self) -> bool {
        self.in_use < self.capacity
    }

    fn try_acquire(&mut self, address: IpAddr) -> bool {
        let free = self.capacity.saturating_sub(self.in_use);
        let has = self.by_address.get(&address).copied().unwrap_or_default();
        let may = has < free.saturating_mul(MAX_CONNECTIONS_PER_FREE);
        if may {
            self.in_use += 1;
            self.by_address.insert(address, has + 1);
        }
        may
    }

    fn release(&mut self, address: IpAddr) {
        self.in_use = self.in_use.saturating_sub(1);
        if let Some(has) = self.by_address.get_mut(&address) {
            *has = has.saturating_sub(1);
            if *has == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

/// Whom an address stands for: of IPv6 everybody has a whole network.
fn client_key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
#[path = "connection_limiter_tests.rs"]
mod tests;
