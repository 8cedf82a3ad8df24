//! The engines' data, compared with the registry, and the services of the host that containers can reach.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use api::EngineId;
use backend::{RootMarker, read_marker};

use super::DoctorError;
use crate::registry::Inventory;

/// The kernel's lists of the host's TCP sockets, see `proc_net(5)`.
const SOCKET_TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The state of a listening socket in these lists.
const TCP_LISTEN_STATE: &str = "0A";

/// A finding that a person should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The data root does not hold this deployment's data.
    ForeignDataRoot {
        /// The folder.
        folder: PathBuf,
        /// The deployment that the folder belongs to; `None` if it belongs to none or does not exist.
        deployment: Option<String>,
    },
    /// Engines of the registry whose folders are missing.
    EnginesWithoutFolder(BTreeSet<String>),
    /// An engine's folder that the registry does not know.
    FolderWithoutEngine(PathBuf),
    /// Ports on which services of this host listen on all addresses, so that containers can reach them.
    OpenToContainers(BTreeSet<u16>),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignDataRoot { folder, deployment: None } => write!(
                f,
                "{} (ORCH_DATA_ROOT_PATH) does not hold the data of the registry's engines: is its disk mounted? \
                 No engine is launched until the data is back",
                folder.display()
            ),
            Self::ForeignDataRoot { folder, deployment: Some(id) } => write!(
                f,
                "{} (ORCH_DATA_ROOT_PATH) belongs to another deployment, {id}: no engine is launched until the \
                 right folder is there",
                folder.display()
            ),
            Self::EnginesWithoutFolder(engines) => write!(
                f,
                "{} engine(s) of the registry have no folder in ORCH_DATA_ROOT_PATH and cannot be launched: \
                 restore their folders, or delete the engines if their data may be lost: {}",
                engines.len(),
                engines.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
            ),
            Self::FolderWithoutEngine(folder) => write!(
                f,
                "{} belongs to no engine of the registry. It may hold a user's data and is never removed \
                 automatically: inspect it, then move it away or delete it",
                folder.display()
            ),
            Self::OpenToContainers(ports) => {
                let ports = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
                write!(
                    f,
                    "services of this host listen on all of its addresses, so engines in containers can reach \
                     them (ports {ports}): let them listen on 127.0.0.1, or block them with the firewall rule of \
                     deploy/README.md. This check does not see existing firewall rules"
                )
            }
        }
    }
}

/// Compares the engines' folders with the registry, which must have been read after `folders`: an engine created
/// meanwhile gets its row first.
pub(super) fn compare(
    data_root: &Path,
    folders: Vec<(String, PathBuf)>,
    known: &Inventory,
) -> Result<Vec<Finding>, DoctorError> {
    let mut findings: Vec<_> = check_data_root(data_root, known)?.into_iter().collect();
    if findings.is_empty() {
        let with_folder: BTreeSet<_> = folders.iter().map(|(engine_id, _)| engine_id.as_str()).collect();
        let missing = known.settled.iter().filter(|engine_id| !with_folder.contains(engine_id.as_str()));
        let missing: BTreeSet<_> = missing.cloned().collect();
        findings.extend((!missing.is_empty()).then_some(Finding::EnginesWithoutFolder(missing)));
    }
    let unknown = folders.into_iter().filter(|(engine_id, _)| !known.engines.contains(engine_id));
    findings.extend(unknown.map(|(_, folder)| Finding::FolderWithoutEngine(folder)));
    Ok(findings)
}

/// Whether services of the host listen on all addresses.
pub(super) fn open_to_containers() -> Option<Finding> {
    Some(open_ports()).filter(|open| !open.is_empty()).map(Finding::OpenToContainers)
}

/// Checks the folder that contains all engines' folders.
fn check_data_root(data_root: &Path, known: &Inventory) -> Result<Option<Finding>, DoctorError> {
    let folder = || data_root.to_owned();
    let Some(id) = &known.deployment_id else { return Ok(None) };
    let marker = read_marker(data_root, id);
    let deployment = match marker.map_err(|source| DoctorError::Folder { folder: folder(), source })? {
        RootMarker::Ours => return Ok(None),
        RootMarker::OtherDeployment(id) => Some(id),
        // The folder is marked before the first launch, or at the next launch by a version that marks it.
        RootMarker::Unmarked | RootMarker::Missing if known.settled.is_empty() => return Ok(None),
        RootMarker::Unmarked if known.settled.iter().any(|id| data_root.join(id).is_dir()) => {
            return Ok(None);
        }
        RootMarker::Unmarked | RootMarker::Missing => None,
    };
    Ok(Some(Finding::ForeignDataRoot { folder: folder(), deployment }))
}

/// Returns the folders that are named like an engine's, sorted.
pub(super) fn engine_folders(data_root: &Path) -> Result<Vec<(String, PathBuf)>, DoctorError> {
    let failed = |source| DoctorError::Folder { folder: data_root.to_owned(), source };
    let entries = match fs::read_dir(data_root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<EngineId>().is_ok() {
            folders.push((name, entry.path()));
        }
    }
    folders.sort();
    Ok(folders)
}

/// Returns the ports on which something listens on all addresses of this host.
fn open_ports() -> BTreeSet<u16> {
    // A kernel without IPv6 has no such list.
    let lists = SOCKET_TABLES.iter().filter_map(|file| fs::read_to_string(Path::new(file)).ok());
    lists.flat_map(|list| ports_open_to_all(&list)).collect()
}

/// Returns the ports of a socket list on which something listens on all addresses.
fn ports_open_to_all(list: &str) -> Vec<u16> {
    let open = list.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (address, port) = fields.next()?.split_once(':')?;
        let listens = fields.nth(1)? == TCP_LISTEN_STATE;
        let to_all = address.bytes().all(|digit| digit == b'0');
        (listens && to_all).then(|| u16::from_str_radix(port, 16).ok())?
    });
    open.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_listen_on_all_addresses_are_told_apart() {
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   2: 00000000:0016 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 1 1
   3: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000
   4: 00000000000000000000000001000000:0051 00000000000000000000000000000000:0000 0A 00000000:00000000
   garbage";
        assert_eq!(ports_open_to_all(list), [8_080, 80]);
    }

    #[test]
    fn the_kernel_lists_a_socket_of_ours() {
        let public = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let local = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = open_ports();
        assert!(open.contains(&public.local_addr().unwrap().port()));
        assert!(!open.contains(&local.local_addr().unwrap().port()));
    }
}
