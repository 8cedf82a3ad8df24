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

use contract::EngineId;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use super::root_lock::RootLock;

/// The marker: an extended attribute of the root, so that the root holds nothing but engines' folders. Later versions look
/// for it: it never changes.
const ATTRIBUTE: &str = "user.roundhouse.deployment";

/// The marker as a file in the root, where the file system has no such attributes, or a person sets it by hand. It goes
/// before the attribute.
const FILE: &str = ".roundhouse-deployment";

/// The longest marker that is read: an id and a line break, with room for a person's editor.
const MAX_MARKER_BYTES: usize = 256;

/// What the registry knows of the engines whose data the root should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownData {
    /// Whether there are engines: then there is data to lose.
    pub(crate) any: bool,
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
    seen: bool,
    /// Keeps out who means the same data by another registry.
    lock: Option<RootLock>,
    /// Why the data is not there, as the log has it already.
    logged: Option<String>,
}

/// Why a deployment's data is not there, as products may know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoData {
    /// The root or its marker is missing.
    #[error("the folder of ORCH_DATA_ROOT_PATH does not hold it. Is its disk mounted?")]
    NotMounted,
    /// The root is another deployment's.
    #[error("the folder of ORCH_DATA_ROOT_PATH belongs to another deployment")]
    Others,
    /// An orchestrator with another registry works on it.
    #[error("the folder of ORCH_DATA_ROOT_PATH is in use by an orchestrator with another registry")]
    InUse,
    /// The root cannot be read or made.
    #[error("the folder of ORCH_DATA_ROOT_PATH cannot be used")]
    Unusable,
    /// The root's disk hangs.
    #[error("the disk of ORCH_DATA_ROOT_PATH does not answer")]
    Silent,
    /// The root is as it should be; the folder of one engine is missing in it.
    #[error(
        "this engine's own folder is missing or empty. Put it back; or delete the engine, if its data is to be given up"
    )]
    OwnFolder,
}

/// The same, with all that is known.
#[derive(Debug)]
enum Missing {
    Root,
    Marker,
    Others(String),
    InUse(String),
    Unreadable(io::Error),
    NotMade(io::Error),
}

impl Missing {
    const fn kind(&self) -> NoData {
        match self {
            Self::Root | Self::Marker => NoData::NotMounted,
            Self::Others(_) => NoData::Others,
            Self::InUse(_) => NoData::InUse,
            Self::Unreadable(_) | Self::NotMade(_) => NoData::Unusable,
        }
    }
}

/// What a root's marker says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    /// It is this deployment's.
    Ours,
    /// It is that of the deployment with this id.
    Others(String),
    /// There is no marker, and the root is a folder.
    Unmarked,
    /// There is no root.
    Missing,
}

impl DataRoot {
    pub(crate) fn new(path: PathBuf, deployment_id: String, known: KnownData) -> Self {
        Self { path, deployment_id, known, seen: false, lock: None, logged: None }
    }

    /// The same for the orchestrator of `registry`, which shares the root with that of no other one.
    pub(crate) fn locked_for(self, registry: String) -> Self {
        Self { lock: Some(RootLock::new(registry)), ..self }
    }

    /// Whether the deployment's data is there. Marks a root that has no marker if that is safe. Each new reason why it is
    /// not goes into the log, whole: only the operator is told of paths. Blocks.
    pub(crate) fn check(&mut self) -> Result<(), NoData> {
        let looked = self.look();
        let reason = looked.as_ref().err().map(|missing| self.for_operator(missing));
        if reason != self.logged {
            if let Some(reason) = &reason {
                tracing::error!(reason, "The engines' data is not there; no engine is launched.");
            } else {
                tracing::info!("The engines' data is there again.");
            }
            self.logged = reason;
        }
        looked.map_err(|missing| missing.kind())
    }

    fn look(&mut self) -> Result<(), Missing> {
        match marked(&self.path, &self.deployment_id).map_err(Missing::Unreadable)? {
            Marked::Ours => {
                self.seen = true;
                self.lock()
            }
            Marked::Others(id) => Err(Missing::Others(id)),
            Marked::Missing | Marked::Unmarked if self.may_be_marked() => {
                self.mark().map_err(Missing::NotMade)?;
                self.lock()
            }
            Marked::Missing => Err(Missing::Root),
            Marked::Unmarked => Err(Missing::Marker),
        }
    }

    fn lock(&mut self) -> Result<(), Missing> {
        let Some(lock) = &mut self.lock else { return Ok(()) };
        match lock.take(&self.path).map_err(Missing::Unreadable)? {
            None => Ok(()),
            Some(other) => Err(Missing::InUse(other)),
        }
    }

    /// Why the data is not there, with all that helps to put it right.
    fn for_operator(&self, missing: &Missing) -> String {
        let path = format!("{} (ORCH_DATA_ROOT_PATH)", self.path.display());
        match missing {
            Missing::Root => {
                format!("{path} is not there, although engines have their data in it: is its disk mounted?")
            }
            Missing::Marker => format!(
                "{path} does not hold the engines' data: is its disk mounted? If the data was moved there, or is to begin \
                 anew, write {} into the file {FILE} in it",
                self.deployment_id
            ),
            Missing::Others(id) => {
                format!("{path} belongs to another deployment, {id}; this one is {}", self.deployment_id)
            }
            Missing::InUse(other) => format!(
                "{path} is in use by an orchestrator with another registry ({other}): if this one's is a copy, give it a \
                 root of its own"
            ),
            Missing::Unreadable(error) => format!("{path} cannot be read: {error}"),
            Missing::NotMade(error) => format!("{path} cannot be made: {error}"),
        }
    }

    /// Whether a root without a marker may be taken for this deployment's: there is no data that should be in it, or
    /// some of that is in it.
    fn may_be_marked(&self) -> bool {
        let holds = |engine_id: &EngineId| self.path.join(engine_id.to_string()).is_dir();
        !self.seen && (!self.known.any || self.known.engines.iter().any(holds))
    }

    /// Makes the root if it is missing, for this user alone, and marks it. A kill in between leaves a root without a
    /// marker, which the next check marks.
    fn mark(&mut self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        match setxattr(&self.path, ATTRIBUTE, self.deployment_id.as_bytes(), XattrFlags::empty()) {
            Err(Errno::NOTSUP | Errno::PERM | Errno::NOSPC) => self.write_file()?,
            marked => marked?,
        }
        fs::File::open(&self.path)?.sync_all()?;
        self.seen = true;
        Ok(())
    }

    fn write_file(&self) -> io::Result<()> {
        let temporary = self.path.join(format!("{FILE}.{}", std::process::id()));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        writeln!(file, "{}", self.deployment_id)?;
        file.sync_all()?;
        fs::rename(&temporary, self.path.join(FILE))
    }
}

/// What the marker of `root` says to the deployment with this id. Blocks.
pub(crate) fn marked(root: &Path, deployment_id: &str) -> io::Result<Marked> {
    let text = match fs::File::open(root.join(FILE)) {
        Ok(file) => Some(io::read_to_string(io::Read::take(file, MAX_MARKER_BYTES as u64))?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match fs::metadata(root) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Marked::Missing),
                Err(error) => return Err(error),
            }
            attribute(root)?
        }
        Err(error) => return Err(error),
    };
    Ok(match text.as_deref().map(str::trim) {
        None => Marked::Unmarked,
        Some(id) if id == deployment_id => Marked::Ours,
        Some(id) => Marked::Others(id.to_owned()),
    })
}

fn attribute(root: &Path) -> io::Result<Option<String>> {
    let mut value = [0; MAX_MARKER_BYTES];
    match getxattr(root, ATTRIBUTE, &mut value[..]) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(value.get(..length).unwrap_or_default()).into_owned())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Takes the marker away, however it is kept.
#[cfg(test)]
pub(crate) fn unmark(root: &Path) {
    let _ = fs::remove_file(root.join(FILE));
    let _ = rustix::fs::removexattr(root, ATTRIBUTE);
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
        assert_eq!(marked(&path, "d1").unwrap(), Marked::Ours);
        // What has been marked is never taken for a fresh one again.
        unmark(&path);
        assert!(fresh.check().is_err());
        // By hand, as the message says.
        fs::write(path.join(FILE), "d1\r\n\n").unwrap();
        fresh.check().unwrap();
        // With data, too, it is ours from now on.
        root(folder.path(), KnownData { any: true, engines: vec![EngineId::new()] }).check().unwrap();
    }

    #[test]
    fn without_its_data_a_deployment_makes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut with_data = root(folder.path(), KnownData { any: true, engines: vec![EngineId::new()] });
        assert_eq!(with_data.check(), Err(NoData::NotMounted));
        assert!(!folder.path().join("engines").exists());
        fs::create_dir(folder.path().join("engines")).unwrap();
        assert_eq!(with_data.check(), Err(NoData::NotMounted));
        let said = with_data.logged.unwrap();
        assert!(said.contains("write d1 into the file"), "{said}");
        assert_eq!(fs::read_dir(folder.path().join("engines")).unwrap().count(), 0);
    }

    #[test]
    fn a_root_of_a_version_without_markers_is_known_by_an_engine_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let engines = vec![EngineId::new(), EngineId::new()];
        fs::create_dir_all(folder.path().join("engines").join(engines[1].to_string())).unwrap();
        root(folder.path(), KnownData { any: true, engines }).check().unwrap();
        assert_eq!(marked(&folder.path().join("engines"), "d1").unwrap(), Marked::Ours);
    }

    #[test]
    fn another_deployments_root_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engines");
        DataRoot::new(path.clone(), "d2".to_owned(), KnownData::default()).check().unwrap();
        let mut ours = root(folder.path(), KnownData::default());
        assert_eq!(ours.check(), Err(NoData::Others));
        let said = ours.logged.unwrap();
        assert!(said.contains("another deployment, d2; this one is d1"), "{said}");
        assert_eq!(marked(&path, "d2").unwrap(), Marked::Ours);
    }

    #[test]
    fn where_there_are_no_attributes_the_marker_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let fresh = root(folder.path(), KnownData::default());
        fs::create_dir(&fresh.path).unwrap();
        fresh.write_file().unwrap();
        assert_eq!(marked(&fresh.path, "d1").unwrap(), Marked::Ours);
        assert_eq!(marked(&fresh.path, "d2").unwrap(), Marked::Others("d1".to_owned()));
    }

    #[test]
    fn a_root_that_is_a_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("engines"), "").unwrap();
        let mut file = root(folder.path(), KnownData::default());
        assert_eq!(file.check(), Err(NoData::Unusable));
        let said = file.logged.unwrap();
        assert!(said.contains("engines (ORCH_DATA_ROOT_PATH) cannot be"), "{said}");
    }
}
