//! Receives a file, and puts it in its place once it is complete.
//!
//! The data go to a file beside the workspace. When they are complete and on the disk, that file is renamed
//! to its place: whoever looks, even after a crash, sees the old file or the new one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, fchmod, fstat, renameat, renameat_with, statat,
};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::info::size;
use super::quota::{DiskSpace, PendingUpload};
use super::staging::UploadRecord;
use super::uploads::ActiveUpload;
use super::walk::{Unreadable, walk};
use super::{Condition, FileError, FileInfo, FilePath, UserFiles};
use crate::beneath::{FOLDER_FLAGS, PRESERVED_MODE, make_folder, open_beneath};

/// The number of bytes that are written at once.
const WRITE_BYTES: usize = 256 * 1024;
/// The step in which room is reserved for an upload of unknown length, in bytes.
const RESERVATION_STEP: u64 = 8 << 20;
/// The step in which what was received is made durable, so that little is left to be done at the end, when the
/// client waits.
const SYNC_STEP: u64 = 64 << 20;

/// A file that was put in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenFile {
    /// Its path.
    pub path: FilePath,
    /// What is known of it.
    pub info: FileInfo,
    /// Whether there was no file before.
    pub is_new: bool,
}

/// An upload that is being received.
pub struct Upload {
    staged: Arc<StagedFile>,
    path: FilePath,
    record: UploadRecord,
    /// The number of bytes received.
    received: u64,
    /// Bytes that have not been passed on to be written. They are copied, because a short piece of a body may
    /// keep much memory.
    buffer: Vec<u8>,
    /// The write in progress.
    writing: Option<JoinHandle<Result<(), FileError>>>,
    /// The number of bytes for which there is room.
    reserved: u64,
    /// Whether bytes could not be written, so that none may follow.
    has_failed: bool,
}

/// The file with an upload's data. Whoever writes to it holds it, so it is cleaned up after the last write.
pub(super) struct StagedFile {
    pub(super) files: UserFiles,
    pub(super) id: Uuid,
    pub(super) file: File,
    /// Whether the upload can be resumed.
    pub(super) is_resumable: bool,
    /// Whether the data became a file of the workspace.
    pub(super) is_placed: AtomicBool,
    /// The number of bytes in the file.
    pub(super) written: Arc<AtomicU64>,
    /// What excludes other requests for this upload, and bounds how many there are.
    pub(super) held: Option<(OwnedMutexGuard<()>, ActiveUpload, OwnedSemaphorePermit)>,
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if self.is_placed.load(Ordering::Acquire) {
            return;
        }
        let (files, id, held) = (self.files.clone(), self.id, self.held.take());
        let (is_resumable, written) = (self.is_resumable, self.written.load(Ordering::Acquire));
        run_detached(move || {
            if is_resumable {
                // The next request that continues it comes after that, because the lock is held.
                files.inner.quota.record(id, written);
            } else {
                // What cannot be removed now is removed at the next start.
                let _ = std::fs::remove_file(files.inner.staging.data_path(id, false));
                files.inner.quota.release(id);
            }
            drop(held);
        });
    }
}

/// Runs work that may block and that nobody waits for.
pub(super) fn run_detached(work: impl FnOnce() + Send + 'static) {
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(work)),
        Err(_) => work(),
    }
}

impl Upload {
    pub(super) fn new(staged: StagedFile, path: FilePath, record: UploadRecord) -> Self {
        let received = staged.written.load(Ordering::Acquire);
        let staged = Arc::new(staged);
        Self {
            staged,
            path,
            record,
            received,
            buffer: Vec::new(),
            writing: None,
            reserved: received,
            has_failed: false,
        }
    }

    /// The upload's id.
    pub fn id(&self) -> Uuid {
        self.staged.id
    }

    /// The number of bytes received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The path of the future file.
    pub fn path(&self) -> &FilePath {
        &self.path
    }

    /// Cancelled when another request continues this upload.
    pub fn superseded(&self) -> CancellationToken {
        let active = self.staged.held.as_ref().map(|(_, active, _)| active.superseded.clone());
        active.unwrap_or_default()
    }

    /// Makes room for `bytes` further bytes.
    pub async fn reserve(&mut self, bytes: u64) -> Result<(), FileError> {
        let end = self.received.saturating_add(bytes);
        self.check_length(end)?;
        if end <= self.reserved {
            return Ok(());
        }
        let (staged, path) = (Arc::clone(&self.staged), self.path.clone());
        let reserved = self.run(move || {
            let files = &staged.files;
            let replaced = files.existing(&path)?.map_or(0, |info| info.size);
            let pending = PendingUpload { bytes: end, replaced, written: Arc::clone(&staged.written) };
            let disk = DiskSpace::of(&staged.file)?;
            files.inner.quota.reserve(staged.id, pending, disk, || files.measure())
        });
        reserved.await?;
        self.reserved = end;
        Ok(())
    }

    fn check_length(&self, end: u64) -> Result<(), FileError> {
        let max = self.staged.files.inner.max_file_bytes;
        if end > max {
            return Err(FileError::TooLarge(format!(
                "a file may have {max} bytes at most (ENGINE_WORKSPACE_FILE_MB)"
            )));
        }
        match self.record.length {
            Some(length) if end > length => Err(FileError::InvalidUpload(format!(
                "the upload has more than the {length} bytes that `Upload-Length` announced"
            ))),
            _ => Ok(()),
        }
    }

    /// Receives the next bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), FileError> {
        self.check_writes()?;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let end = self.received.saturating_add(length);
        self.check_length(end)?;
        if end > self.reserved {
            let max = self.record.length.unwrap_or(u64::MAX).min(self.staged.files.inner.max_file_bytes);
            let step = end.saturating_add(RESERVATION_STEP).min(max).max(end);
            // Close to the limit, what is needed may fit although a whole step does not.
            if self.reserve(step - self.received).await.is_err() {
                self.reserve(length).await?;
            }
        }
        self.received = end;
        let mut bytes = &*bytes;
        while !bytes.is_empty() {
            if self.buffer.capacity() == 0 {
                self.buffer.reserve_exact(WRITE_BYTES);
            }
            let room = WRITE_BYTES.saturating_sub(self.buffer.len()).min(bytes.len());
            let (now, later) = bytes.split_at(room);
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() >= WRITE_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Begins to write what is buffered, once the write before has ended.
    async fn flush(&mut self) -> Result<(), FileError> {
        self.finish_write().await?;
        let (staged, buffer) = (Arc::clone(&self.staged), std::mem::take(&mut self.buffer));
        let lane = staged.files.inner.lane.clone();
        // On its own, so that the next bytes are received meanwhile.
        let write =
            async move { lane.run(move || staged.append(&buffer)).await.unwrap_or(Err(FileError::Stopping)) };
        self.writing = Some(tokio::spawn(write));
        Ok(())
    }

    async fn finish_write(&mut self) -> Result<(), FileError> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let written = writing.await.unwrap_or(Err(FileError::Stopping));
        if written.is_err() {
            // What follows the bytes that were not written must not take their place.
            self.buffer.clear();
            self.has_failed = true;
        }
        written
    }

    fn check_writes(&self) -> Result<(), FileError> {
        if self.has_failed {
            return Err(FileError::Io(io::Error::other("an earlier part could not be written")));
        }
        Ok(())
    }

    async fn write_all(&mut self) -> Result<(), FileError> {
        self.check_writes()?;
        if !self.buffer.is_empty() {
            self.flush().await?;
        }
        self.finish_write().await
    }

    /// Makes what was received durable, so that the upload can be resumed after it. Returns the number of
    /// bytes.
    pub async fn suspend(mut self) -> Result<u64, FileError> {
        if !self.has_failed {
            self.write_all().await?;
        }
        let staged = Arc::clone(&self.staged);
        self.run(move || {
            staged.file.sync_data()?;
            Ok(staged.file.metadata()?.len())
        })
        .await
    }

    /// Puts the file in its place.
    pub async fn commit(mut self) -> Result<WrittenFile, FileError> {
        if let Some(length) = self.record.length
            && length != self.received
        {
            let message =
                format!("the upload has {} of {length} bytes and cannot be completed", self.received);
            return Err(FileError::InvalidUpload(message));
        }
        self.write_all().await?;
        let (staged, path) = (Arc::clone(&self.staged), self.path.clone());
        let condition = self.record.condition.clone();
        self.run(move || {
            staged.file.sync_all()?;
            staged.place(path, &condition)
        })
        .await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        let lane = self.staged.files.inner.lane.clone();
        lane.run(work).await.unwrap_or(Err(FileError::Stopping))
    }
}

impl StagedFile {
    fn append(&self, bytes: &[u8]) -> Result<(), FileError> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        // Room was made for them, but programs and the brain write to the same disk.
        DiskSpace::of(&self.file)?.check(length)?;
        let at = self.written.load(Ordering::Acquire);
        self.file.write_all_at(bytes, at)?;
        let end = at.saturating_add(length);
        self.written.store(end, Ordering::Release);
        if at / SYNC_STEP < end / SYNC_STEP {
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Puts the file in its place, if `condition` holds.
    fn place(&self, path: FilePath, condition: &Condition) -> Result<WrittenFile, FileError> {
        let (files, quota) = (&self.files, &self.files.inner.quota);
        let bytes = self.written.load(Ordering::Acquire);
        // Before the lock is taken, because the workspace may have to be measured.
        let replaced = |existing: Option<&FileInfo>| existing.map_or(0, |info| info.size);
        quota.recheck(self.id, bytes, replaced(files.existing(&path)?.as_ref()), || files.measure())?;
        let _changing = files.inner.write_lock.lock();
        let existing = files.existing(&path)?;
        condition.check(existing.as_ref())?;
        // Before folders are made, which would stay behind.
        let replaced = replaced(existing.as_ref());
        quota.recheck(self.id, bytes, replaced, || files.measure())?;
        let root = files.root()?;
        let is_folder_new = open_beneath(&root, path.folder(), FOLDER_FLAGS).err() == Some(Errno::NOENT);
        let folder = make_folder(&root, path.folder())?;
        self.rename(&folder, &path, condition.is_for_new_file())?;
        quota.placed(self.id, bytes, replaced);
        sync_folder(&folder)?;
        if is_folder_new {
            for ancestor in path.ancestors() {
                sync_folder(&open_beneath(&root, ancestor, FOLDER_FLAGS)?)?;
            }
        }
        let info = FileInfo::from_stat(&fstat(&self.file)?);
        if self.is_resumable {
            files.inner.staging.remove_record(self.id)?;
        }
        Ok(WrittenFile { path, info, is_new: existing.is_none() })
    }

    /// Renames the file to its place in `folder`.
    fn rename(&self, folder: &OwnedFd, path: &FilePath, must_be_new: bool) -> Result<(), FileError> {
        if let Ok(stat) = statat(folder, path.name(), AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        {
            fchmod(&self.file, Mode::from_raw_mode(stat.st_mode) & PRESERVED_MODE)?;
        }
        let data = self.files.inner.staging.data_path(self.id, self.is_resumable);
        let renamed = if must_be_new {
            // A program does not take the lock and may have made the file meanwhile.
            match renameat_with(CWD, &data, folder, path.name(), RenameFlags::NOREPLACE) {
                // The file system does not offer it.
                Err(Errno::INVAL | Errno::NOSYS) => renameat(CWD, &data, folder, path.name()),
                renamed => renamed,
            }
        } else {
            renameat(CWD, &data, folder, path.name())
        };
        match renamed {
            Ok(()) => {
                self.is_placed.store(true, Ordering::Release);
                Ok(())
            }
            Err(Errno::EXIST) if must_be_new => Err(FileError::PreconditionFailed),
            Err(Errno::XDEV) => Err(OTHER_FILE_SYSTEM),
            Err(error) => Err(error.into()),
        }
    }
}

/// Why a file cannot be put into its place.
const OTHER_FILE_SYSTEM: FileError = FileError::NotAccessible(
    "this part of the workspace is on another file system than the brain, so files cannot be put into it",
);

/// Makes a rename in the folder durable.
fn sync_folder(folder: &OwnedFd) -> Result<(), FileError> {
    match open_beneath(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(folder) => Ok(File::from(folder).sync_all()?),
        // The folder may be written but not read.
        Err(Errno::ACCESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl UserFiles {
    /// Returns what is known of the file at `path`; `None` if there is none. Anything but a file is refused.
    pub(super) fn existing(&self, path: &FilePath) -> Result<Option<FileInfo>, FileError> {
        let folder = match open_beneath(&self.root()?, path.folder(), FOLDER_FLAGS) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stat = match statat(&folder, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(FileInfo::from_stat(&stat))),
            FileType::Directory => Err(FileError::Conflict("it is a folder")),
            // Replacing it would break the link; following it would change a file that the call does not
            // name.
            FileType::Symlink => Err(FileError::Conflict("it is a symbolic link")),
            _ => Err(FileError::Conflict("it is neither a file nor a folder")),
        }
    }

    /// Checks that a file can be put into the workspace. A part of it may still be on another file system, which
    /// shows at the end.
    pub(super) fn check_file_system(&self, data: &File) -> Result<(), FileError> {
        if fstat(self.root()?)?.st_dev == fstat(data)?.st_dev { Ok(()) } else { Err(OTHER_FILE_SYSTEM) }
    }

    /// Returns the size of all files of the workspace.
    fn measure(&self) -> Result<u64, FileError> {
        let mut bytes = 0_u64;
        walk(&self.root()?, Unreadable::Skip, |_, stat| {
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                bytes = bytes.saturating_add(size(stat));
            }
            Ok(())
        })?;
        Ok(bytes)
    }
}
