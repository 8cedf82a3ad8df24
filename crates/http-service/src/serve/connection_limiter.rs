//! The limit on connections, and its fair distribution among client addresses.
//!
//! An address may have at most [`MAX_CONNECTIONS_PER_FREE`] times as many connections as there are free permits.
//! So a single address can use nearly all permits, and yet there is always one for another address. When all
//! permits are in use, idle connections are evicted: those of the address with the most connections first, the
//! longest idle first. An address that is at its own limit while permits are free evicts only its own idle
//! connections. A connection without a regular permit may get an overflow permit, which suffices for one error
//! response or a health check.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::connection_state::ConnectionState;

/// The number of connections that an address may have for each free permit.
const MAX_CONNECTIONS_PER_FREE: usize = 8;

/// The number of overflow permits.
const MAX_OVERFLOW: usize = 256;

/// The fraction (1/64) of the permits that one eviction frees, so that not every new connection searches all
/// others.
const EVICTION_DIVISOR: usize = 64;

/// How long the next search for idle connections is delayed after one that found none.
const EVICTION_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The connection permits of an accept loop.
pub(super) struct ConnectionLimiter {
    epoch: Instant,
    state: Mutex<LimiterState>,
}

/// A connection's permit, released when it is dropped.
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    id: u64,
    pub(super) is_overflow: bool,
    pub(super) connection_state: Arc<ConnectionState>,
    /// Cancelled when the connection is evicted.
    pub(super) evicted: CancellationToken,
}

struct LimiterState {
    next_id: u64,
    permits: PermitTier,
    overflow: PermitTier,
    connections: HashMap<u64, OpenConnection>,
    /// The last search that found no idle connection: the address it was restricted to, and its time.
    last_failed_eviction: Option<(Option<IpAddr>, Instant)>,
}

struct OpenConnection {
    address: IpAddr,
    is_overflow: bool,
    connection_state: Arc<ConnectionState>,
    evicted: CancellationToken,
}

/// The permits of one kind, and the number in use by each address.
struct PermitTier {
    capacity: usize,
    in_use: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl ConnectionLimiter {
    pub(super) fn new(max_connections: usize) -> Arc<Self> {
        let state = LimiterState {
            next_id: 0,
            permits: PermitTier::new(max_connections),
            overflow: PermitTier::new(MAX_OVERFLOW),
            connections: HashMap::new(),
            last_failed_eviction: None,
        };
        Arc::new(Self { epoch: Instant::now(), state: Mutex::new(state) })
    }

    /// Acquires a permit for a connection from `address`; returns `None` if there is not even an overflow permit.
    pub(super) fn try_acquire(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        let address = client_key(address);
        let mut state = self.state.lock();
        let has_permit = state.permits.try_acquire(address) || {
            let only = state.permits.has_free().then_some(address);
            state.evict_idle(only);
            state.permits.try_acquire(address)
        };
        if !has_permit && !state.overflow.try_acquire(address) {
            return None;
        }
        let connection = OpenConnection {
            address,
            is_overflow: !has_permit,
            connection_state: ConnectionState::new(self.epoch),
            evicted: CancellationToken::new(),
        };
        let id = state.next_id;
        state.next_id += 1;
        let permit = ConnectionPermit {
            limiter: Arc::clone(self),
            id,
            is_overflow: connection.is_overflow,
            connection_state: Arc::clone(&connection.connection_state),
            evicted: connection.evicted.clone(),
        };
        state.connections.insert(id, connection);
        Some(permit)
    }

    /// Evicts some idle connections, to free other resources that they hold, such as file descriptors.
    pub(super) fn evict_idle(&self) {
        self.state.lock().evict_idle(None);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.state.lock().remove(self.id);
    }
}

impl LimiterState {
    /// Evicts some idle connections: of the address `only`, if it is given.
    fn evict_idle(&mut self, only: Option<IpAddr>) {
        if self
            .last_failed_eviction
            .is_some_and(|(address, at)| address == only && at.elapsed() < EVICTION_RETRY_DELAY)
        {
            return;
        }
        let matches = |connection: &OpenConnection| only.is_none_or(|address| connection.address == address);
        let candidates =
            self.connections.iter().filter(|(_, connection)| !connection.is_overflow && matches(connection));
        let mut idle: Vec<_> = candidates
            .filter_map(|(id, connection)| {
                let held = self.permits.by_address.get(&connection.address).copied().unwrap_or_default();
                Some((std::cmp::Reverse(held), connection.connection_state.idle_since()?, *id))
            })
            .collect();
        idle.sort_unstable();
        self.last_failed_eviction = idle.is_empty().then(|| (only, Instant::now()));
        let count = self.permits.capacity.div_ceil(EVICTION_DIVISOR);
        for (_, _, id) in idle.into_iter().take(count) {
            if let Some(connection) = self.remove(id) {
                connection.evicted.cancel();
            }
        }
    }

    fn remove(&mut self, id: u64) -> Option<OpenConnection> {
        let connection = self.connections.remove(&id)?;
        let tier = if connection.is_overflow { &mut self.overflow } else { &mut self.permits };
        tier.release(connection.address);
        Some(connection)
    }
}

impl PermitTier {
    fn new(capacity: usize) -> Self {
        Self { capacity, in_use: 0, by_address: HashMap::new() }
    }

    fn has_free(&self) -> bool {
        self.in_use < self.capacity
    }

    fn try_acquire(&mut self, address: IpAddr) -> bool {
        let free = self.capacity.saturating_sub(self.in_use);
        let held = self.by_address.get(&address).copied().unwrap_or_default();
        let is_allowed = held < free.saturating_mul(MAX_CONNECTIONS_PER_FREE);
        if is_allowed {
            self.in_use += 1;
            self.by_address.insert(address, held + 1);
        }
        is_allowed
    }

    fn release(&mut self, address: IpAddr) {
        self.in_use = self.in_use.saturating_sub(1);
        if let Some(held) = self.by_address.get_mut(&address) {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

/// Returns the address under which a client is counted: for IPv6 its /64 network, all of which one client may use.
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
#[path = "../../tests/unit/serve/connection_limiter.rs"]
mod tests;
