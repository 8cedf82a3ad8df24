//! The host on which a deployment's engines run.
//!
//! Engines run on their orchestrator's host. A standby on another host that took over a registry would see none
//! of the engines that run on the first, consider them all dead, and launch them again beside the running ones.
//! So the registry records its host, and only an operator who has made sure that the other host is off may move
//! the deployment.

use std::fmt;
use std::fs;

use sha2::{Digest as _, Sha256};

/// The file of the host's identity, see `machine-id(5)`.
const MACHINE_ID_PATH: &str = "/etc/machine-id";

/// A host: a unique id, and a name for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Derived from the machine id, which must not be exposed itself.
    id: String,
    pub(crate) name: String,
}

impl Host {
    /// Returns this host; `None` if it has no identity, as most containers have none.
    pub(crate) fn current() -> Option<Self> {
        let machine_id = fs::read_to_string(MACHINE_ID_PATH).ok()?;
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self::from_machine_id(&machine_id, name)
    }

    fn from_machine_id(machine_id: &str, name: String) -> Option<Self> {
        let machine_id = machine_id.trim();
        let is_valid = machine_id.len() == 32 && machine_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let mut id = hex::encode(Sha256::digest(format!("roundhouse host {machine_id}")));
        id.truncate(32);
        is_valid.then_some(Self { id, name })
    }

    /// Parses the output of `Display`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, name) = text.split_once(' ')?;
        Some(Self { id: id.to_owned(), name: name.to_owned() })
    }

    /// Whether both are the same host, regardless of the name.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.id, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_by_its_machine_id_alone_and_does_not_show_it() {
        let machine_id = "3d1219c7c4c5404aaa1f6d2a48adfda4\n";
        let host = Host::from_machine_id(machine_id, "a".to_owned()).unwrap();
        let parsed = Host::parse(&host.to_string()).unwrap();
        assert_eq!(parsed, host);
        assert!(parsed.is_same(&Host::from_machine_id(machine_id, "renamed".to_owned()).unwrap()));
        assert!(
            !parsed.is_same(&Host::from_machine_id(&machine_id.replace('3', "4"), "a".to_owned()).unwrap())
        );
        assert!(!host.to_string().contains(machine_id.trim()));
        for invalid in ["", "\n", "uninitialized\n"] {
            assert_eq!(Host::from_machine_id(invalid, "a".to_owned()), None);
        }
    }
}
