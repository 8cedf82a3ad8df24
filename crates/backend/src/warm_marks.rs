//! The marks of warm engines: engines that were booted ahead and belong to nobody yet.
//!
//! A mark is an empty file in a hidden folder of the data root. It is set before a warm engine is launched, and removed
//! before the engine is handed to its user. So an engine with a mark has no user's data, whatever the registry says: one
//! that was restored from a backup may list an engine as warm that has a user by now.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use api::EngineId;

/// The name of the folder with the marks, in the data root. Its name is no engine's.
const MARKS_FOLDER: &str = ".warm-engines";

/// The marks of one deployment. Its calls block.
#[derive(Clone, Debug)]
pub(super) struct WarmMarks {
    folder: PathBuf,
}

impl WarmMarks {
    pub(super) fn new(data_root: &Path) -> Self {
        Self { folder: data_root.join(MARKS_FOLDER) }
    }

    /// Marks an engine. It may have a mark already.
    pub(super) fn set(&self, engine_id: EngineId) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(self.path(engine_id))?;
        Ok(())
    }

    /// Whether an engine has a mark.
    pub(super) fn is_set(&self, engine_id: EngineId) -> io::Result<bool> {
        fs::exists(self.path(engine_id))
    }

    /// Removes the mark of an engine. Returns whether there was one.
    pub(super) fn remove(&self, engine_id: EngineId) -> io::Result<bool> {
        match fs::remove_file(self.path(engine_id)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The engines with marks.
    pub(super) fn list(&self) -> io::Result<Vec<EngineId>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut marked = Vec::new();
        for entry in entries {
            marked.extend(entry?.file_name().to_str().and_then(|name| name.parse::<EngineId>().ok()));
        }
        Ok(marked)
    }

    fn path(&self, engine_id: EngineId) -> PathBuf {
        self.folder.join(engine_id.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_set_once_and_removed_once() {
        let root = tempfile::tempdir().unwrap();
        let marks = WarmMarks::new(root.path());
        let (one, other) = (EngineId::new(), EngineId::new());
        assert_eq!(marks.list().unwrap(), Vec::new());
        assert!(!marks.is_set(one).unwrap());
        marks.set(one).unwrap();
        marks.set(one).unwrap();
        assert!(marks.is_set(one).unwrap() && !marks.is_set(other).unwrap());
        assert_eq!(marks.list().unwrap(), [one]);
        assert!(marks.remove(one).unwrap());
        assert!(!marks.remove(one).unwrap());
        assert!(!marks.is_set(one).unwrap());
    }
}
