//! Port ranges that no other test uses.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which the system takes the ports of outgoing connections.
const FIRST_PORT: u16 = 20_000;
const SLOT_COUNT: u16 = 200;
const PORTS_PER_SLOT: u16 = 60;

/// A range of ports. Its first port is held by this process while the range is in use, so that neither
/// another test nor another run of the tests takes it.
#[derive(Debug)]
pub(crate) struct Ports {
    claim: TcpListener,
}

impl Ports {
    /// Claims an unused range.
    pub(crate) fn claim() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let start = u16::try_from(std::process::id() % u32::from(SLOT_COUNT)).unwrap();
        for _ in 0..SLOT_COUNT {
            let slot = (start + NEXT.fetch_add(1, Ordering::Relaxed)) % SLOT_COUNT;
            if let Ok(claim) = TcpListener::bind((Ipv4Addr::LOCALHOST, FIRST_PORT + slot * PORTS_PER_SLOT)) {
                return Self { claim };
            }
        }
        panic!("all port ranges are in use");
    }

    /// The first port that may be used.
    pub(crate) fn first(&self) -> u16 {
        self.claim.local_addr().unwrap().port() + 1
    }

    /// The index of the range.
    pub(crate) fn slot(&self) -> u16 {
        (self.first() - FIRST_PORT) / PORTS_PER_SLOT
    }

    /// The last port that may be used.
    pub(crate) fn last(&self) -> u16 {
        self.first() + PORTS_PER_SLOT - 2
    }
}
