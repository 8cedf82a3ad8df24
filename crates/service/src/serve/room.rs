//! Who may be connected, where not everybody can be.
//!
//! One rule shares the places out: an address may have at most [`SHARE`] times as many connections as there are
//! places free. So one address alone may have nearly all of them, and yet there is always a place for another one.
//! Where all places are taken, connections that wait for a request make room, the longest idle ones of the address that
//! has most first. An address that is at its limit while places are free closes idle connections of its own only. Who
//! gets no place may stand: that is long enough to be told so, and to ask for the health.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::exchange::Exchange;

/// How many connections an address may have for each place that is free.
const SHARE: usize = 8;

/// How many may stand beside the places, at most.
const STANDING: usize = 256;

/// What part of the places is made free at once, so that not each newcomer looks through all of them.
const MADE_FREE: usize = 64;

/// How long no idle connection is looked for once none was found.
const FRUITLESS: Duration = Duration::from_millis(100);

/// The places of an accept loop.
pub(super) struct Room {
    epoch: Instant,
    table: Mutex<Table>,
}

/// A connection's place, given back when it is dropped.
pub(super) struct Place {
    room: Arc<Room>,
    id: u64,
    pub(super) is_standing: bool,
    pub(super) exchange: Arc<Exchange>,
    /// Cancelled when the place is given to another.
    pub(super) wanted: CancellationToken,
}

struct Table {
    next_id: u64,
    places: Tier,
    standing: Tier,
    guests: HashMap<u64, Guest>,
    /// The last search that found no idle connection: whose were looked for, and when.
    fruitless: Option<(Option<IpAddr>, Instant)>,
}

struct Guest {
    address: IpAddr,
    is_standing: bool,
    exchange: Arc<Exchange>,
    wanted: CancellationToken,
}

/// Places of one kind, and how many each address has of them.
struct Tier {
    most: usize,
    taken: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl Room {
    pub(super) fn new(places: usize) -> Arc<Self> {
        let table = Table {
            next_id: 0,
            places: Tier::new(places),
            standing: Tier::new(STANDING),
            guests: HashMap::new(),
            fruitless: None,
        };
        Arc::new(Self { epoch: Instant::now(), table: Mutex::new(table) })
    }

    /// A place for a connection from `address`; none where there is not even room to stand.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = party(address);
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let is_seated = table.places.take(address) || {
            let only = table.places.has_free().then_some(address);
            table.make_room(only);
            table.places.take(address)
        };
        if !is_seated && !table.standing.take(address) {
            return None;
        }
        let guest = Guest {
            address,
            is_standing: !is_seated,
            exchange: Exchange::new(self.epoch),
            wanted: CancellationToken::new(),
        };
        let id = table.next_id;
        table.next_id += 1;
        let place = Place {
            room: Arc::clone(self),
            id,
            is_standing: guest.is_standing,
            exchange: Arc::clone(&guest.exchange),
            wanted: guest.wanted.clone(),
        };
        table.guests.insert(id, guest);
        Some(place)
    }

    /// Closes some idle connections: what else they hold, such as file descriptors, is wanting.
    pub(super) fn make_room(&self) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).make_room(None);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.table.lock().unwrap_or_else(PoisonError::into_inner).remove(self.id);
    }
}

impl Table {
    /// Closes some idle connections, of one address only if one is named.
    fn make_room(&mut self, only: Option<IpAddr>) {
        if self.fruitless.is_some_and(|(whose, at)| whose == only && at.elapsed() < FRUITLESS) {
            return;
        }
        let concerned = |guest: &Guest| only.is_none_or(|address| guest.address == address);
        let seated = self.guests.iter().filter(|(_, guest)| !guest.is_standing && concerned(guest));
        let mut idle: Vec<_> = seated
            .filter_map(|(id, guest)| {
                let others = self.places.by_address.get(&guest.address).copied().unwrap_or_default();
                Some((std::cmp::Reverse(others), guest.exchange.waiting_since()?, *id))
            })
            .collect();
        idle.sort_unstable();
        self.fruitless = idle.is_empty().then(|| (only, Instant::now()));
        let count = self.places.most.div_ceil(MADE_FREE);
        for (_, _, id) in idle.into_iter().take(count) {
            if let Some(guest) = self.remove(id) {
                guest.wanted.cancel();
            }
        }
    }

    fn remove(&mut self, id: u64) -> Option<Guest> {
        let guest = self.guests.remove(&id)?;
        let tier = if guest.is_standing { &mut self.standing } else { &mut self.places };
        tier.give_back(guest.address);
        Some(guest)
    }
}

impl Tier {
    fn new(most: usize) -> Self {
        Self { most, taken: 0, by_address: HashMap::new() }
    }

    fn has_free(&self) -> bool {
        self.taken < self.most
    }

    fn take(&mut self, address: IpAddr) -> bool {
        let free = self.most.saturating_sub(self.taken);
        let has = self.by_address.get(&address).copied().unwrap_or_default();
        let may = has < free.saturating_mul(SHARE);
        if may {
            self.taken += 1;
            self.by_address.insert(address, has + 1);
        }
        may
    }

    fn give_back(&mut self, address: IpAddr) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(has) = self.by_address.get_mut(&address) {
            *has = has.saturating_sub(1);
            if *has == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

/// Whom an address stands for: of IPv6 everybody has a whole network.
fn party(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
