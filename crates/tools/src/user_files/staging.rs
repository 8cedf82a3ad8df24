//! The folder beside the brain in which uploads are received: programs reach nothing in it.
//!
//! A resumable upload has two files, named by its id: its data, and its record, which exists only once the
//! upload does. Everything else in the folder is a leftover of an earlier life of the engine.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use api::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Condition, FileError};

/// How long a resumable upload is kept.
pub const UPLOAD_LIFETIME: Duration = Duration::from_hours(24);
/// The most resumable uploads at a time.
pub(super) const MAX_UPLOADS: usize = 32;
/// How long nobody must have continued an upload for it to give way to a new one, if there are too many.
pub(super) const GIVES_WAY_AFTER: Duration = Duration::from_mins(10);

/// The suffix of the data of a resumable upload.
const DATA_SUFFIX: &str = "part";
/// The suffix of its record.
const RECORD_SUFFIX: &str = "json";
/// The suffix of the data of any other upload.
const TEMPORARY_SUFFIX: &str = "tmp";
/// The suffix of a folder that is being deleted.
const TRASH_SUFFIX: &str = "trash";

/// The folder of uploads.
#[derive(Clone, Debug)]
pub(super) struct Staging {
    folder: PathBuf,
}

/// What is kept of a resumable upload beside its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UploadRecord {
    /// The file's path in the form for URLs.
    pub(super) path: String,
    /// The declared length of the whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) length: Option<u64>,
    /// When the upload was created.
    pub(super) created_at: Timestamp,
    /// The condition of its completion.
    #[serde(flatten)]
    pub(super) condition: Condition,
}

impl UploadRecord {
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        let age_ms = now.unix_ms().saturating_sub(self.created_at.unix_ms());
        u128::try_from(age_ms).is_ok_and(|age_ms| age_ms >= UPLOAD_LIFETIME.as_millis())
    }
}

impl Staging {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns the path of the data of an upload.
    pub(super) fn data_path(&self, id: Uuid, is_resumable: bool) -> PathBuf {
        self.path(id, if is_resumable { DATA_SUFFIX } else { TEMPORARY_SUFFIX })
    }

    /// Returns a path to which a folder is moved before it is deleted.
    pub(super) fn trash_path(&self) -> Result<PathBuf, FileError> {
        self.make()?;
        Ok(self.path(Uuid::now_v7(), TRASH_SUFFIX))
    }

    fn path(&self, id: Uuid, suffix: &str) -> PathBuf {
        self.folder.join(format!("{}.{suffix}", id.simple()))
    }

    fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
    }

    /// Creates the file for the data of an upload.
    pub(super) fn create_data(&self, id: Uuid, is_resumable: bool) -> Result<File, FileError> {
        self.make()?;
        // With the mode of any new file: it becomes one of the workspace.
        let path = self.data_path(id, is_resumable);
        Ok(OpenOptions::new().read(true).write(true).create_new(true).mode(0o666).open(path)?)
    }

    /// Opens the data of a resumable upload.
    pub(super) fn open_data(&self, id: Uuid) -> Result<File, FileError> {
        let path = self.data_path(id, true);
        let open = || OpenOptions::new().read(true).write(true).open(&path);
        let opened = open().or_else(|error| match error.kind() {
            // It got the permissions of the file that it was about to replace, and then the engine was killed.
            io::ErrorKind::PermissionDenied => {
                fs::set_permissions(&path, Permissions::from_mode(0o600))?;
                open()
            }
            _ => Err(error),
        });
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(FileError::UploadNotFound),
            opened => Ok(opened?),
        }
    }

    /// Returns when an upload was last continued; `None` if it is gone.
    pub(super) fn last_written(&self, id: Uuid) -> Option<SystemTime> {
        fs::metadata(self.data_path(id, true)).and_then(|data| data.modified()).ok()
    }

    /// Stores the record of an upload; from then on it exists.
    pub(super) fn store_record(&self, id: Uuid, record: &UploadRecord) -> Result<(), FileError> {
        let unfinished = self.path(id, TEMPORARY_SUFFIX);
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(record).map_err(io::Error::from)?)?;
        file.sync_all()?;
        fs::rename(unfinished, self.path(id, RECORD_SUFFIX))?;
        Ok(File::open(&self.folder)?.sync_all()?)
    }

    /// Reads the record of an upload.
    pub(super) fn record(&self, id: Uuid) -> Result<UploadRecord, FileError> {
        let text = match fs::read(self.path(id, RECORD_SUFFIX)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(FileError::UploadNotFound),
            Err(error) => return Err(error.into()),
        };
        serde_json::from_slice(&text).map_err(|_| FileError::UploadNotFound)
    }

    /// Removes a resumable upload. The record goes first: without it there is no upload.
    pub(super) fn remove(&self, id: Uuid) -> Result<(), FileError> {
        for suffix in [RECORD_SUFFIX, TEMPORARY_SUFFIX, DATA_SUFFIX] {
            remove_file(&self.path(id, suffix))?;
        }
        Ok(())
    }

    /// Removes the record of an upload whose data became a file of the workspace.
    pub(super) fn remove_record(&self, id: Uuid) -> Result<(), FileError> {
        Ok(remove_file(&self.path(id, RECORD_SUFFIX))?)
    }

    /// Returns the ids of the resumable uploads.
    pub(super) fn uploads(&self) -> Result<Vec<Uuid>, FileError> {
        let ids = self.names()?.into_iter().filter_map(|name| {
            let id = name.strip_suffix(RECORD_SUFFIX)?.strip_suffix('.')?;
            Uuid::try_parse(id).ok()
        });
        Ok(ids.collect())
    }

    /// Removes the files that belong to no resumable upload, and returns the folders. May only be called
    /// before anything is received.
    pub(super) fn remove_leftovers(&self) -> Result<Vec<PathBuf>, FileError> {
        let uploads = self.uploads()?;
        let is_upload = |name: &str| {
            uploads.iter().any(|id| {
                [RECORD_SUFFIX, DATA_SUFFIX]
                    .iter()
                    .any(|suffix| name.strip_suffix(suffix) == Some(&format!("{}.", id.simple())))
            })
        };
        let mut folders = Vec::new();
        for name in self.names()?.into_iter().filter(|name| !is_upload(name)) {
            let path = self.folder.join(name);
            if fs::symlink_metadata(&path)?.is_dir() {
                folders.push(path);
            } else {
                remove_file(&path)?;
            }
        }
        Ok(folders)
    }

    fn names(&self) -> Result<Vec<String>, FileError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect::<io::Result<_>>().map_err(FileError::from)
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
