//! The folder that holds all engines' folders, and the proof that it is this deployment's.
//!
//! A disk that is not mounted yet, a mistyped path and another host's folder all look like an empty folder. Launched
//! into one of those, an engine would begin with an empty brain, and nobody would notice until the disk is back. So the
//! root carries a marker with the deployment's id. It is written once, by a deployment that has no data to lose; from
//! then on a root without it is one whose data is not there, and nothing is launched, removed or concluded from what
//! runs until it is.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use api::EngineId;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use super::root_lock::RootLock;

/// The marker: an extended attribute of the root, so that the root holds nothing but engines' folders. Later versions look
/// for it: it never changes.
const MARKER_ATTRIBUTE: &str = "user.roundhouse.deployment";

/// The marker as a file in the root, where the file system has no such attributes, or a person sets it by hand. It goes
/// before the attribute.
const MARKER_FILE: &str = ".roundhouse-deployment";

/// The longest marker that is read: an id and a line break, with room for a person's editor.
const MAX_MARKER_BYTES: usize = 256;

/// What the registry knows of the engines whose data the root should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownData {
    /// Whether there are engines: then there is data to lose.
    pub(crate) has_engines: bool,
    /// Some of the engines that there are. A root without a marker that holds the folder of one of them was made by a
    /// version that wrote none.
    pub(crate) engines: Vec<EngineId>,
}

/// The root of one deployment's data.
#[derive(Debug)]
pub(crate) struct DataRoot {
    path: PathBuf,
    deployment_id: String,
    /// As the registry had it when it was opened.
    known: KnownData,
    /// Whether the marker was there since: what has been marked is never marked again.
    was_marked: bool,
    /// Keeps out who means the same data by another registry.
    lock: Option<RootLock>,
    /// Why the data is not there, as the log has it already.
    last_logged: Option<String>,
}

/// Why a deployment's data is not there, as products may know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DataUnavailable {
    /// The root or its marker is missing.
    #[error("the folder of ORCH_DATA_ROOT_PATH does not hold it. Is its disk mounted?")]
    NotMounted,
    /// The root is another deployment's.
    #[error("the folder of ORCH_DATA_ROOT_PATH belongs to another deployment")]
    OtherDeployment,
    /// An orchestrator with another registry works on it.
    #[error("the folder of ORCH_DATA_ROOT_PATH is in use by an orchestrator with another registry")]
    InUse,
    /// The root cannot be read or made.
    #[error("the folder of ORCH_DATA_ROOT_PATH cannot be used")]
    Unusable,
    /// The root's disk hangs.
    #[error("the disk of ORCH_DATA_ROOT_PATH does not answer")]
    DiskTimeout,
    /// The root is as it should be; the folder of one engine is missing in it.
    #[error(
        "this engine's own folder is missing or empty. Put it back; or delete the engine, if its data is to be given up"
    )]
    EngineFolderMissing,
}

/// The same, with all that is known.
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

/// What a root's marker says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RootMarker {
    /// It is this deployment's.
    Ours,
    /// It is that of the deployment with this id.
    OtherDeployment(String),
    /// There is no marker, and the root is a folder.
    Unmarked,
    /// There is no root.
    Missing,
}

impl DataRoot {
    pub(crate) fn new(path: PathBuf, deployment_id: String, known: KnownData) -> Self {
        Self { path, deployment_id, known, was_marked: false, lock: None, last_logged: None }
    }

    /// The same for the orchestrator of `registry`, which shares the root with that of no other one.
    pub(crate) fn with_lock(self, registry: String) -> Self {
        Self { lock: Some(RootLock::new(registry)), ..self }
    }

    /// Whether the deployment's data is there. Marks a root that has no marker if that is safe. Each new reason why it is
    /// not goes into the log, whole: only the operator is told of paths. Blocks.
    pub(crate) fn check(&mut self) -> Result<(), DataUnavailable> {
        let looked = self.inspect();
        let reason = looked.as_ref().err().map(|missing| self.operator_message(missing));
        if reason != self.last_logged {
            if let Some(reason) = &reason {
                tracing::error!(reason, "The engines' data is not there; no engine is launched.");
            } else {
                tracing::info!("The engines' data is there again.");
            }
            self.last_logged = reason;
        }
        looked.map_err(|missing| missing.kind())
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

    /// Why the data is not there, with all that helps to put it right.
    fn operator_message(&self, missing: &DataRootFault) -> String {
        let path = format!("{} (ORCH_DATA_ROOT_PATH)", self.path.display());
        match missing {
            DataRootFault::NoRoot => {
                format!("{path} is not there, although engines have their data in it: is its disk mounted?")
            }
            DataRootFault::NoMarker => format!(
                "{path} does not hold the engines' data: is its disk mounted? If the data was moved there, or is to begin \
                 anew, write {} into the file {MARKER_FILE} in it",
                self.deployment_id
            ),
            DataRootFault::OtherDeployment(id) => {
                format!("{path} belongs to another deployment, {id}; this one is {}", self.deployment_id)
            }
            DataRootFault::InUse(other) => format!(
                "{path} is in use by an orchestrator with another registry ({other}): if this one's is a copy, give it a \
                 root of its own"
            ),
            DataRootFault::Unreadable(error) => format!("{path} cannot be read: {error}"),
            DataRootFault::CreateFailed(error) => format!("{path} cannot be made: {error}"),
        }
    }

    /// Whether a root without a marker may be taken for this deployment's: there is no data that should be in it, or
    /// some of that is in it.
    fn can_be_marked(&self) -> bool {
        let holds = |engine_id: &EngineId| self.path.join(engine_id.to_string()).is_dir();
        !self.was_marked && (!self.known.has_engines || self.known.engines.iter().any(holds))
    }

    /// Makes the root if it is missing, for this user alone, and marks it. A kill in between leaves a root without a
    /// marker, which the next check marks.
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

/// What the marker of `root` says to the deployment with this id. Blocks.
pub(crate) fn read_marker(root: &Path, deployment_id: &str) -> io::Result<RootMarker> {
    let text = match fs::File::open(root.join(MARKER_FILE)) {
        Ok(file) => Some(io::read_to_string(io::Read::take(file, MAX_MARKER_BYTES as u64))?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match fs::metadata(root) {
                Ok(found) if found.is_dir() => {}
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

/// Takes the marker away, however it is kept.
#[cfg(test)]
pub(crate) fn remove_marker(root: &Path) {
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
        // What has been marked is never taken for a fresh one again.
        remove_marker(&path);
        assert!(fresh.check().is_err());
        // By hand, as the message says.
        fs::write(path.join(MARKER_FILE), "d1\r\n\n").unwrap();
        fresh.check().unwrap();
        // With data, too, it is ours from now on.
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
        let said = with_data.last_logged.unwrap();
        assert!(said.contains("write d1 into the file"), "{said}");
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
        let said = ours.last_logged.unwrap();
        assert!(said.contains("another deployment, d2; this one is d1"), "{said}");
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
        let said = file.last_logged.unwrap();
        assert!(said.contains("engines (ORCH_DATA_ROOT_PATH) cannot be"), "{said}");
    }
}
