//! A range of ports that no other run uses.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::bail;

/// Below the system's ephemeral ports, and outside the range of the end-to-end tests.
const FIRST_PORT: u16 = 10_000;
const SLOT_COUNT: u16 = 200;
const PORTS_PER_SLOT: u16 = 40;

/// A range of ports. Its first port is held while the range is in use, so that no other run takes it.
#[derive(Debug)]
pub(crate) struct Ports {
    _claim: TcpListener,
    first: u16,
    next: u16,
}

impl Ports {
    /// Claims a free range.
    pub(crate) fn claim() -> anyhow::Result<Self> {
        let start = u16::try_from(std::process::id() % u32::from(SLOT_COUNT))?;
        for offset in 0..SLOT_COUNT {
            let port = FIRST_PORT + (start + offset) % SLOT_COUNT * PORTS_PER_SLOT;
            if let Ok(claim) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                return Ok(Self { _claim: claim, first: port + 1, next: 0 });
            }
        }
        bail!("all port ranges are in use")
    }

    /// Returns the first and the last port of the range.
    pub(crate) const fn bounds(&self) -> (u16, u16) {
        (self.first, self.first + PORTS_PER_SLOT - 2)
    }

    /// Returns the next free port of the range.
    pub(crate) fn next(&mut self) -> anyhow::Result<u16> {
        for _ in 1..PORTS_PER_SLOT {
            self.next = (self.next + 1) % (PORTS_PER_SLOT - 1);
            let port = self.first + self.next;
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(port);
            }
        }
        bail!("no port of the range that starts at {} is free", self.first)
    }
}
