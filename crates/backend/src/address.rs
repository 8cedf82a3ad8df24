//! Where engines are reached: on a port of the host that is leased to each, or at an address of its own.

use std::net::{Ipv4Addr, SocketAddr};

/// How the engines of a backend are addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// Each engine listens on a port of the host's loopback interface. The registry leases the ports.
    HostPort,
    /// The backend gives each engine an address of its own, and no port is leased.
    OwnAddress,
}

impl Addressing {
    /// Returns where an engine is that has leased `port`; `None` if it has no place.
    pub fn placement(self, port: Option<u16>) -> Option<Placement> {
        match self {
            Self::HostPort => port.map(Placement::HostPort),
            Self::OwnAddress => Some(Placement::OwnAddress),
        }
    }
}

/// Where an engine listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// On this port of the host's loopback interface, which is leased to it.
    HostPort(u16),
    /// At an address of its own, which its backend knows.
    OwnAddress,
}

impl Placement {
    /// Returns its port of the host, if it has one.
    pub const fn host_port(self) -> Option<u16> {
        match self {
            Self::HostPort(port) => Some(port),
            Self::OwnAddress => None,
        }
    }

    /// Returns its address on the host's loopback interface, if it has a port of the host.
    pub(crate) fn loopback_address(self) -> Option<SocketAddr> {
        self.host_port().map(|port| (Ipv4Addr::LOCALHOST, port).into())
    }

    /// Returns its port of the host on `host`, as an URL contains them.
    pub(crate) fn authority_on(self, host: &str) -> Option<String> {
        self.host_port().map(|port| format!("{host}:{port}"))
    }
}
