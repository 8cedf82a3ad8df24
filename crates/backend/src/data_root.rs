//! The data root, which contains all engines' folders, and the check that it belongs to this deployment.
//!
//! A disk that is not mounted yet, a mistyped path and another host's folder all look like an empty folder.
//! An engine launched there would start with an empty brain, and nobody would notice until the disk is back.
//! The root therefore carries a marker with the deployment's id. The marker is written once, when the
//! deployment has no data to lose. From then on, a root without it means that the data is unavailable: until
//! it is back, nothing is launched or removed, and no engine is considered dead.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use api::EngineId;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use super::root_lock::RootLock;
use super::warm_marks::WarmMarks;

/// The name of the marker, an extended attribute of the root, so that the root contains nothing but engines'
/// folders. Later versions look for this name, so it never changes.
const MARKER_ATTRIBUTE: &str = "user.roundhouse.deployment";

/// The name of the marker as a file in the root, for file systems without extended attributes and for
/// operators who write it by hand. It takes precedence over the attribute.
const MARKER_FILE: &str = ".roundhouse-deployment";

/// The longest marker that is read: an id and a line break, with room for whitespace that an editor adds.
const MAX_MARKER_BYTES: usize = 256;

/// The registry's knowledge of the engines whose data the root should contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownData {
    /// Whether there are any engines, and thus data to lose.
    pub has_engines: bool,
    /// A sample of the engines. A root without a marker that contains the folder of one of them was created
    /// by a version that wrote no marker.
    pub engines: Vec<EngineId>,
}

/// The root of one deployment's data.
#[derive(Debug)]
pub struct DataRoot {
    path: PathBuf,
    deployment_id: String,
    /// The registry's knowledge when it was opened.
    known: KnownData,
    /// Whether the marker has been seen since then. A root is never marked a second time.
    was_marked: bool,
    /// Excludes orchestrators that use the same data with another registry.
    lock: Option<RootLock>,
    /// The last logged reason why the data is unavailable, so that each reason is logged once.
    last_logged: Option<String>,
    /// Whether the data is not in a folder of this host.
    is_elsewhere: bool,
}

/// Why a deployment's data is unavailable, in terms that products may see: without paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataUnavailable {
    /// The root or its marker is missing.
    #[error("the folder of ORCH_DATA_ROOT_PATH does not contain it. Is its disk mounted?")]
    NotMounted,
    /// The root is another deployment's.
    #[error("the folder of ORCH_DATA_ROOT_PATH belongs to another deployment")]
    OtherDeployment,
    /// An orchestrator with another registry uses the root.
    #[error("the folder of ORCH_DATA_ROOT_PATH is in use by an orchestrator with another registry")]
    InUse,
    /// The root cannot be read or created.
    #[error("the folder of ORCH_DATA_ROOT_PATH cannot be used")]
    Unusable,
    /// The root's disk did not respond in time.
    #[error("the disk of ORCH_DATA_ROOT_PATH does not answer")]
    DiskTimeout,
    /// The root is this deployment's, but the engine's folder in it is missing or has no brain.
    #[error(
        "this engine's own folder is missing or empty: restore it, or delete the engine to give up its data"
    )]
    EngineFolderMissing,
    /// The engine has no volume.
    #[error(
        "this engine's volume is missing: restore its PersistentVolumeClaim, or delete the engine to give up its data"
    )]
    VolumeMissing,
    /// What the engine's volume stood for is gone.
    #[error("this engine's volume is lost: restore it, or delete the engine to give up its data")]
    VolumeLost,
}

/// Why a deployment's data is unavailable, with the details for the operator's log.
#[derive(Debug)]
enum DataRootFault {
    NoRoot,
    NoMarker,
    OtherDeployment(String),
    InUse(String),
    Unreadable(io::Error),
    CreateFailed(io::Error),
}

impl DataRootFault {
    const fn kind(&self) -> DataUnavailable {
        match self {
            Self::NoRoot | Self::NoMarker => DataUnavailable::NotMounted,
            Self::OtherDeployment(_) => DataUnavailable::OtherDeployment,
            Self::InUse(_) => DataUnavailable::InUse,
            Self::Unreadable(_) | Self::CreateFailed(_) => DataUnavailable::Unusable,
        }
    }
}

/// The result of reading a root's marker.
#[derive(Debug, PartialEq, Eq)]
pub enum RootMarker {
    /// The root belongs to this deployment.
    Ours,
    /// The root belongs to the deployment with this id.
    OtherDeployment(String),
    /// The root is a folder without a marker.
    Unmarked,
    /// The root does not exist.
    Missing,
}

impl DataRoot {
    /// Creates the root in `path`, without a lock. Touches no file until the first check.
    pub fn new(path: PathBuf, deployment_id: String, known: KnownData) -> Self {
        Self {
            path,
            deployment_id,
            known,
            was_marked: false,
            lock: None,
            last_logged: None,
            is_elsewhere: false,
        }
    }

    /// Adds the root lock: only orchestrators of `registry` may use the root.
    #[must_use]
    pub fn with_lock(self, registry: String) -> Self {
        Self { lock: Some(RootLock::new(registry)), ..self }
    }

    /// Creates the root of a deployment whose data is not in a folder of this host: its backend checks it.
    pub fn elsewhere() -> Self {
        let data = Self::new(PathBuf::new(), String::new(), KnownData::default());
        Self { is_elsewhere: true, ..data }
    }

    /// The marks of the deployment's warm engines.
    pub(super) fn warm_marks(&self) -> WarmMarks {
        WarmMarks::new(&self.path)
    }

    /// Fails if the deployment's data is unavailable. Marks a root without a marker if that is safe. Each new
    /// reason is logged with its details, such as paths, which only the operator may see. Blocks.
    pub fn check(&mut self) -> Result<(), DataUnavailable> {
        if self.is_elsewhere {
            return Ok(());
        }
        let result = self.inspect();
        let reason = result.as_ref().err().map(|fault| self.operator_message(fault));
        if reason != self.last_logged {
            if let Some(reason) = &reason {
                tracing::error!(reason, "The engines' data is unavailable; no engine is launched.");
            } else {
                tracing::info!("The engines' data is available again.");
            }
            self.last_logged = reason;
        }
        result.map_err(|fault| fault.kind())
    }

    fn inspect(&mut self) -> Result<(), DataRootFault> {
        match read_marker(&self.path, &self.deployment_id).map_err(DataRootFault::Unreadable)? {
            RootMarker::Ours => {
                self.was_marked = true;
                self.acquire_lock()
            }
            RootMarker::OtherDeployment(id) => Err(DataRootFault::OtherDeployment(id)),
            RootMarker::Missing | RootMarker::Unmarked if self.can_be_marked() => {
                self.write_marker().map_err(DataRootFault::CreateFailed)?;
                self.acquire_lock()
            }
            RootMarker::Missing => Err(DataRootFault::NoRoot),
            RootMarker::Unmarked => Err(DataRootFault::NoMarker),
        }
    }

    fn acquire_lock(&mut self) -> Result<(), DataRootFault> {
        let Some(lock) = &mut self.lock else { return Ok(()) };
        match lock.acquire(&self.path).map_err(DataRootFault::Unreadable)? {
            None => Ok(()),
            Some(other) => Err(DataRootFault::InUse(other)),
        }
    }

    /// Describes for the operator why the data is unavailable, and how to repair that.
    fn operator_message(&self, fault: &DataRootFault) -> String {
        let path = format!("{} (ORCH_DATA_ROOT_PATH)", self.path.display());
        match fault {
            DataRootFault::NoRoot => {
                format!("{path} does not exist, although engines have their data in it: is its disk mounted?")
            }
            DataRootFault::NoMarker => format!(
                "{path} does not contain the engines' data: is its disk mounted? If the data was moved there, or \
                 you want to start without it, write {} into the file {MARKER_FILE} in it",
                self.deployment_id
            ),
            DataRootFault::OtherDeployment(id) => {
                format!("{path} belongs to another deployment, {id}; this one is {}", self.deployment_id)
            }
            DataRootFault::InUse(other) => format!(
                "{path} is in use by an orchestrator with another registry ({other}): if this registry is a copy, \
                 give it a root of its own"
            ),
            DataRootFault::Unreadable(error) => format!("{path} cannot be read: {error}"),
            DataRootFault::CreateFailed(error) => format!("{path} cannot be created: {error}"),
        }
    }

    /// Whether a root without a marker may be marked as this deployment's: either there are no engines whose
    /// data should be in it, or it contains the folder of a known engine.
    fn can_be_marked(&self) -> bool {
        let has_folder = |engine_id: &EngineId| self.path.join(engine_id.to_string()).is_dir();
        !self.was_marked && (!self.known.has_engines || self.known.engines.iter().any(has_folder))
    }

    /// Creates the root if it is missing, private to this user, and marks it. A kill in between leaves a root
    /// without a marker, which the next check marks.
    fn write_marker(&mut self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        match setxattr(&self.path, MARKER_ATTRIBUTE, self.deployment_id.as_bytes(), XattrFlags::empty()) {
            Err(Errno::NOTSUP | Errno::PERM | Errno::NOSPC) => self.write_marker_file()?,
            marked => marked?,
        }
        fs::File::open(&self.path)?.sync_all()?;
        self.was_marked = true;
        Ok(())
    }

    fn write_marker_file(&self) -> io::Result<()> {
        let temporary = self.path.join(format!("{MARKER_FILE}.{}", std::process::id()));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        writeln!(file, "{}", self.deployment_id)?;
        file.sync_all()?;
        fs::rename(&temporary, self.path.join(MARKER_FILE))
    }
}

/// Reads the marker of `root` and compares it with `deployment_id`. Blocks.
pub fn read_marker(root: &Path, deployment_id: &str) -> io::Result<RootMarker> {
    let text = match fs::File::open(root.join(MARKER_FILE)) {
        Ok(file) => Some(io::read_to_string(io::Read::take(file, MAX_MARKER_BYTES as u64))?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match fs::metadata(root) {
                Ok(metadata) if metadata.is_dir() => {}
                Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RootMarker::Missing),
                Err(error) => return Err(error),
            }
            read_marker_attribute(root)?
        }
        Err(error) => return Err(error),
    };
    Ok(match text.as_deref().map(str::trim) {
        None => RootMarker::Unmarked,
        Some(id) if id == deployment_id => RootMarker::Ours,
        Some(id) => RootMarker::OtherDeployment(id.to_owned()),
    })
}

fn read_marker_attribute(root: &Path) -> io::Result<Option<String>> {
    let mut value = [0; MAX_MARKER_BYTES];
    match getxattr(root, MARKER_ATTRIBUTE, &mut value[..]) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(value.get(..length).unwrap_or_default()).into_owned())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes the marker, whether it is a file or an attribute.
#[cfg(any(test, feature = "testing"))]
pub fn remove_marker(root: &Path) {
    let _ = fs::remove_file(root.join(MARKER_FILE));
    let _ = rustix::fs::removexattr(root, MARKER_ATTRIBUTE);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(path: &Path, known: KnownData) -> DataRoot {
        DataRoot::new(path.join("engines"), "d1".to_owned(), known)
    }

    #[test]
    fn a_deployment_without_data_makes_and_marks_its_root_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut fresh = root(folder.path(), KnownData::default());
        fresh.check().unwrap();
        fresh.check().unwrap();
        let path = folder.path().join("engines");
        assert_eq!(read_marker(&path, "d1").unwrap(), RootMarker::Ours);
        // A root that has been marked never counts as new again.
        remove_marker(&path);
        assert!(fresh.check().is_err());
        // The operator writes the file, as the message says.
        fs::write(path.join(MARKER_FILE), "d1\r\n\n").unwrap();
        fresh.check().unwrap();
        // It belongs to the deployment even if the registry has engines.
        root(folder.path(), KnownData { has_engines: true, engines: vec![EngineId::new()] }).check().unwrap();
    }

    #[test]
    fn without_its_data_a_deployment_makes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut with_data =
            root(folder.path(), KnownData { has_engines: true, engines: vec![EngineId::new()] });
        assert_eq!(with_data.check(), Err(DataUnavailable::NotMounted));
        assert!(!folder.path().join("engines").exists());
        fs::create_dir(folder.path().join("engines")).unwrap();
        assert_eq!(with_data.check(), Err(DataUnavailable::NotMounted));
        let logged = with_data.last_logged.unwrap();
        assert!(logged.contains("write d1 into the file"), "{logged}");
        assert_eq!(fs::read_dir(folder.path().join("engines")).unwrap().count(), 0);
    }

    #[test]
    fn a_root_of_a_version_without_markers_is_known_by_an_engine_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let engines = vec![EngineId::new(), EngineId::new()];
        fs::create_dir_all(folder.path().join("engines").join(engines[1].to_string())).unwrap();
        root(folder.path(), KnownData { has_engines: true, engines }).check().unwrap();
        assert_eq!(read_marker(&folder.path().join("engines"), "d1").unwrap(), RootMarker::Ours);
    }

    #[test]
    fn another_deployments_root_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engines");
        DataRoot::new(path.clone(), "d2".to_owned(), KnownData::default()).check().unwrap();
        let mut ours = root(folder.path(), KnownData::default());
        assert_eq!(ours.check(), Err(DataUnavailable::OtherDeployment));
        let logged = ours.last_logged.unwrap();
        assert!(logged.contains("another deployment, d2; this one is d1"), "{logged}");
        assert_eq!(read_marker(&path, "d2").unwrap(), RootMarker::Ours);
    }

    #[test]
    fn where_there_are_no_attributes_the_marker_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let fresh = root(folder.path(), KnownData::default());
        fs::create_dir(&fresh.path).unwrap();
        fresh.write_marker_file().unwrap();
        assert_eq!(read_marker(&fresh.path, "d1").unwrap(), RootMarker::Ours);
        assert_eq!(read_marker(&fresh.path, "d2").unwrap(), RootMarker::OtherDeployment("d1".to_owned()));
    }

    #[test]
    fn a_root_that_is_a_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("engines"), "").unwrap();
        let mut file = root(folder.path(), KnownData::default());
        assert_eq!(file.check(), Err(DataUnavailable::Unusable));
        let logged = file.last_logged.unwrap();
        assert!(logged.contains("engines (ORCH_DATA_ROOT_PATH) cannot be"), "{logged}");
    }
}
