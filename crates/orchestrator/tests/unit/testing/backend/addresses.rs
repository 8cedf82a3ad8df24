//! Where the simulated engines are: on ports of the host, or at addresses that change with every launch.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};

use super::*;

thread_local! {
    static ADDRESSING: Cell<Addressing> = const { Cell::new(Addressing::HostPort) };
}

/// Returns how the backends that this thread creates address their engines.
pub(crate) fn addressing() -> Addressing {
    ADDRESSING.get()
}

/// Makes the backends that this thread creates give their engines addresses of their own, until the guard is dropped.
pub(crate) fn use_own_addresses() -> OwnAddressesGuard {
    ADDRESSING.set(Addressing::OwnAddress);
    OwnAddressesGuard
}

/// RAII guard: the thread may run another test next.
pub(crate) struct OwnAddressesGuard;

impl Drop for OwnAddressesGuard {
    fn drop(&mut self) {
        ADDRESSING.set(Addressing::HostPort);
    }
}

/// Runs tests of this module a second time, on a backend that gives its engines addresses of their own.
macro_rules! also_with_own_addresses {
    ($($test:ident),* $(,)?) => {
        mod with_own_addresses {
            $(
                #[test]
                fn $test() {
                    let _own_addresses = crate::testing::use_own_addresses();
                    super::$test();
                }
            )*
        }
    };
}
pub(crate) use also_with_own_addresses;

impl FaultBackend {
    /// Takes all addresses away; engines that are launched get none, either.
    pub(crate) fn withhold_addresses(&self) {
        let mut state = self.state();
        state.withholds_addresses = true;
        state.own_addresses.clear();
    }

    /// Gives every running engine an address again.
    pub(crate) fn give_addresses(&self) {
        let mut state = self.state();
        state.withholds_addresses = false;
        let running: Vec<_> = state.running.keys().copied().collect();
        for engine_id in running {
            self.assign_address(&mut state, engine_id);
        }
    }

    /// Fails the test if the fleet uses a placement that this backend does not have.
    pub(super) fn assert_known(&self, placement: Placement) {
        let known = matches!(
            (self.addressing, placement),
            (Addressing::HostPort, Placement::HostPort(_)) | (Addressing::OwnAddress, Placement::OwnAddress)
        );
        assert!(known, "{placement:?} under {:?}", self.addressing);
    }

    /// Gives the engine an address that none had before.
    pub(super) fn assign_address(&self, state: &mut State, engine_id: EngineId) {
        if self.addressing == Addressing::OwnAddress && !state.withholds_addresses {
            // Of the host's loopback network, so that a test can answer in the place of the first engine.
            let host = u32::from(Ipv4Addr::LOCALHOST) + state.addresses_given;
            state.addresses_given += 1;
            let address = SocketAddr::new(IpAddr::V4(host.into()), self.own_port);
            state.own_addresses.entry(engine_id).or_insert(address);
        }
    }
}

impl State {
    /// Returns where an engine is that has been launched for `placement`.
    pub(super) fn address(&self, engine_id: EngineId, placement: Placement) -> Option<SocketAddr> {
        match placement {
            Placement::HostPort(port) => Some((Ipv4Addr::LOCALHOST, port).into()),
            Placement::OwnAddress => self.own_addresses.get(&engine_id).copied(),
        }
    }

    /// Returns the running engine at `address`.
    pub(super) fn engine_at(&self, address: SocketAddr) -> Option<(EngineId, &LaunchSpec)> {
        let mut running = self.running.iter().map(|(engine_id, (_, launch))| (*engine_id, launch));
        running.find(|(engine_id, launch)| self.address(*engine_id, launch.placement) == Some(address))
    }
}
