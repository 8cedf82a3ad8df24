//! The user's own access to the files of the workspace: download, upload, listing and deletion.
//!
//! Paths are resolved by the same rules as those of the file tools ([`crate::beneath`]), and changes exclude
//! those of the tools. Nothing is read or written as a whole: memory does not depend on the size of a file.

mod archive;
mod condition;
mod error;
mod info;
mod listing;
mod path;
mod quota;
mod reading;
mod removal;
mod staging;
mod upload;
mod uploads;
mod walk;

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::Timestamp;
use bytes::Bytes;
use futures::Stream;
use resources::keyed_locks::KeyedLocks;
use resources::threads::{Lane, TRANSFER_THREADS};
use rustix::fs::{FileType, fstat};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use self::archive::Archive;
pub use self::condition::{Comparison, Condition, contains};
pub use self::error::FileError;
pub use self::info::{EntryKind, FileInfo};
pub use self::listing::{FolderEntry, FolderPage};
pub use self::path::{FilePath, display_name, encode};
use self::quota::Quota;
pub use self::reading::OpenFile;
use self::reading::Version;
use self::staging::Staging;
pub use self::staging::UPLOAD_LIFETIME;
pub use self::upload::{Upload, WrittenFile};
use self::uploads::ActiveUploads;
pub use self::uploads::{NewUpload, UploadStatus};
use super::beneath::{READ_FLAGS, open_beneath, open_root};
use super::files::WorkspaceLock;

/// The most files that are downloaded at a time, and the most that are uploaded. Each takes less than a megabyte
/// of memory.
const MAX_TRANSFERS: usize = 32;
/// The most folders that are deleted at a time.
const MAX_REMOVALS: usize = 8;

/// The limits on a user's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// The most bytes that the files of an engine may have together for an upload to be accepted; `None` for
    /// no limit.
    pub quota_bytes: Option<u64>,
    /// The most bytes that an uploaded file may have.
    pub max_file_bytes: u64,
}

/// The files of a user. Clones share their state.
#[derive(Clone)]
pub struct UserFiles {
    inner: Arc<Inner>,
}

struct Inner {
    workspace: PathBuf,
    staging: Staging,
    write_lock: WorkspaceLock,
    quota: Quota,
    max_file_bytes: u64,
    /// The threads for files, apart from those of the tools: a long download delays no turn.
    lane: Lane,
    download_permits: Arc<Semaphore>,
    upload_permits: Arc<Semaphore>,
    removal_permits: Arc<Semaphore>,
    /// Held by the request that continues a resumable upload.
    upload_locks: KeyedLocks<Uuid>,
    active_uploads: ActiveUploads,
}

/// What is at a path.
pub enum Found {
    /// A file.
    File(OpenFile),
    /// A folder.
    Folder(OpenFolder),
}

/// A folder that was opened for reading.
pub struct OpenFolder {
    folder: OwnedFd,
    lane: Lane,
}

fn permit(permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, FileError> {
    Arc::clone(permits).try_acquire_owned().map_err(|_| FileError::Busy)
}

impl UserFiles {
    /// Opens the files of the workspace of the brain in `brain_path`, and removes what an earlier life of the
    /// engine left unfinished, except for uploads that can be resumed.
    pub fn open(
        workspace: &Path,
        brain_path: &Path,
        write_lock: WorkspaceLock,
        limits: FileLimits,
        now: Timestamp,
    ) -> Self {
        let mut staging = brain_path.file_name().map(OsString::from).unwrap_or_default();
        staging.push(".uploads");
        let inner = Inner {
            workspace: workspace.to_owned(),
            staging: Staging::new(brain_path.with_file_name(staging)),
            write_lock,
            quota: Quota::new(limits.quota_bytes),
            max_file_bytes: limits.max_file_bytes,
            lane: Lane::new(TRANSFER_THREADS),
            download_permits: Arc::new(Semaphore::new(MAX_TRANSFERS)),
            upload_permits: Arc::new(Semaphore::new(MAX_TRANSFERS)),
            removal_permits: Arc::new(Semaphore::new(MAX_REMOVALS)),
            upload_locks: KeyedLocks::default(),
            active_uploads: ActiveUploads::default(),
        };
        let files = Self { inner: Arc::new(inner) };
        if let Err(error) = files.recover(now) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "What is left of earlier uploads cannot be removed."
            );
        }
        files
    }

    fn root(&self) -> Result<OwnedFd, FileError> {
        Ok(open_root(&self.inner.workspace)?)
    }

    /// Permits one download of this or any other content, until the permit is dropped.
    ///
    /// # Errors
    /// [`FileError::Busy`] if there are as many as there may be.
    pub fn permit_download(&self) -> Result<OwnedSemaphorePermit, FileError> {
        permit(&self.inner.download_permits)
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        let files = self.clone();
        self.inner.lane.run(move || work(&files)).await.unwrap_or(Err(FileError::Stopping))
    }

    /// Opens what is at `path`.
    pub async fn find(&self, path: FilePath) -> Result<Found, FileError> {
        self.run(move |files| {
            let opened = open_beneath(&files.root()?, path.as_os_str(), READ_FLAGS).map_err(|error| {
                // To a reader, a path through a file is one that leads nowhere.
                if error == rustix::io::Errno::NOTDIR { FileError::NotFound } else { error.into() }
            })?;
            let lane = files.inner.lane.clone();
            match FileType::from_raw_mode(fstat(&opened)?.st_mode) {
                FileType::RegularFile => {
                    let file = File::from(opened);
                    let (version, info) = Version::of(&file)?;
                    Ok(Found::File(OpenFile { file, version, info, lane }))
                }
                FileType::Directory => Ok(Found::Folder(OpenFolder { folder: opened, lane })),
                _ => Err(FileError::NotAccessible("it is neither a file nor a folder")),
            }
        })
        .await
    }
}

impl OpenFolder {
    /// Lists at most `limit` entries whose names follow `after`.
    pub async fn list(self, after: Option<OsString>, limit: usize) -> Result<FolderPage, FileError> {
        let Self { folder, lane } = self;
        let page = lane.run(move || listing::list(&folder, after.as_deref(), limit));
        page.await.unwrap_or(Err(FileError::Stopping))
    }

    /// Makes a ZIP archive of the folder. Links are left out, and so is everything that is neither a file nor
    /// a folder.
    pub async fn archive(
        self,
    ) -> Result<impl Stream<Item = Result<Bytes, FileError>> + Send + 'static, FileError> {
        let Self { folder, lane } = self;
        let archive = lane.run(move || Archive::open(folder)).await.unwrap_or(Err(FileError::Stopping))?;
        Ok(archive.into_stream(lane))
    }
}

#[cfg(test)]
#[path = "../tests/unit/user_files.rs"]
mod tests;
