//! Begins uploads, and keeps those that can be resumed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use api::Timestamp;
use parking_lot::Mutex;
use resources::removal::remove_all;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::staging::{GIVES_WAY_AFTER, MAX_UPLOADS, UploadRecord};
use super::upload::{StagedFile, run_detached};
use super::{Condition, FileError, FilePath, Upload, UserFiles, permit};

/// The requests that continue a resumable upload at the moment.
#[derive(Default)]
pub(super) struct ActiveUploads(Mutex<Continuations>);

#[derive(Default)]
struct Continuations {
    /// The number of the next request, which distinguishes those for the same upload.
    next: u64,
    requests: HashMap<Uuid, (u64, CancellationToken)>,
}

/// The entry of such a request, until it is dropped.
pub(super) struct ActiveUpload {
    files: UserFiles,
    id: Uuid,
    number: u64,
    /// Cancelled when another request takes over.
    pub(super) superseded: CancellationToken,
}

impl Drop for ActiveUpload {
    fn drop(&mut self) {
        let mut active = self.files.inner.active_uploads.0.lock();
        if active.requests.get(&self.id).is_some_and(|(number, _)| *number == self.number) {
            active.requests.remove(&self.id);
        }
    }
}

/// A file that is to be uploaded.
#[derive(Clone, Debug)]
pub struct NewUpload {
    /// Its path.
    pub path: FilePath,
    /// Its length, if that is known.
    pub length: Option<u64>,
    /// The condition on the file that it replaces.
    pub condition: Condition,
}

/// The state of a resumable upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadStatus {
    /// The number of bytes received.
    pub offset: u64,
    /// The declared length.
    pub length: Option<u64>,
}

impl UserFiles {
    /// Makes the caller the only one that continues the upload: the one before is told to stop.
    fn supersede(&self, id: Uuid) -> ActiveUpload {
        let superseded = CancellationToken::new();
        let mut active = self.inner.active_uploads.0.lock();
        let number = active.next;
        active.next += 1;
        if let Some((_, earlier)) = active.requests.insert(id, (number, superseded.clone())) {
            earlier.cancel();
        }
        ActiveUpload { files: self.clone(), id, number, superseded }
    }

    /// Whether a request continues the upload at the moment.
    fn is_active(&self, id: Uuid) -> bool {
        self.inner.active_uploads.0.lock().requests.contains_key(&id)
    }

    /// Begins an upload that is completed in the same request.
    pub async fn begin(&self, new: NewUpload, now: Timestamp) -> Result<Upload, FileError> {
        self.create(new, now, false).await
    }

    /// Begins an upload that later requests can continue.
    pub async fn begin_resumable(&self, new: NewUpload, now: Timestamp) -> Result<Upload, FileError> {
        self.create(new, now, true).await
    }

    async fn create(&self, new: NewUpload, now: Timestamp, is_resumable: bool) -> Result<Upload, FileError> {
        let NewUpload { path, length, condition } = new;
        if path.is_root() {
            return Err(FileError::Conflict("it is a folder"));
        }
        let record = UploadRecord { path: path.encoded(), length, created_at: now, condition };
        let permit = permit(&self.inner.upload_permits)?;
        if is_resumable {
            self.make_place().await?;
        }
        let id = Uuid::now_v7();
        let active = self.supersede(id);
        let lock = self.inner.upload_locks.lock(id).await;
        let created = self.run(move |files| {
            // Refused before anything is received. It is checked again at the end.
            let existing = files.existing(&path)?;
            record.condition.check(existing.as_ref())?;
            let staging = &files.inner.staging;
            if is_resumable && staging.uploads()?.len() >= MAX_UPLOADS {
                return Err(FileError::StorageFull(format!(
                    "there are {MAX_UPLOADS} unfinished uploads, which is the most: complete or cancel one"
                )));
            }
            let file = staging.create_data(id, is_resumable)?;
            let prepared = files
                .check_file_system(&file)
                .and_then(|()| if is_resumable { staging.store_record(id, &record) } else { Ok(()) });
            prepared.inspect_err(|_| {
                // What cannot be removed now is removed at the next start.
                let _ = staging.remove(id);
            })?;
            let staged = StagedFile {
                files: files.clone(),
                id,
                file,
                is_resumable,
                is_placed: AtomicBool::new(false),
                written: Arc::default(),
                held: Some((lock, active, permit)),
            };
            Ok(Upload::new(staged, path, record))
        });
        let mut upload = created.await?;
        match upload.reserve(length.unwrap_or(0)).await {
            Ok(()) => Ok(upload),
            Err(error) => {
                drop(upload);
                if is_resumable {
                    self.run(move |files| files.discard(id)).await?;
                }
                Err(error)
            }
        }
    }

    /// Continues a resumable upload after the first `offset` bytes. A request that is doing so already is
    /// stopped.
    pub async fn resume(&self, id: Uuid, offset: u64, now: Timestamp) -> Result<Upload, FileError> {
        let permit = permit(&self.inner.upload_permits)?;
        let active = self.supersede(id);
        let lock = self.inner.upload_locks.lock(id).await;
        let resumed = self.run(move |files| {
            let record = files.live_record(id, now)?;
            let path = FilePath::parse(&record.path)?;
            let file = files.inner.staging.open_data(id)?;
            let received = file.metadata()?.len();
            if received != offset {
                return Err(FileError::OffsetMismatch { offset: received });
            }
            let staged = StagedFile {
                files: files.clone(),
                id,
                file,
                is_resumable: true,
                is_placed: AtomicBool::new(false),
                written: Arc::new(AtomicU64::new(received)),
                held: Some((lock, active, permit)),
            };
            let left = record.length.map_or(0, |length| length.saturating_sub(received));
            Ok((Upload::new(staged, path, record), left))
        });
        let (mut upload, left) = resumed.await?;
        upload.reserve(left).await?;
        Ok(upload)
    }

    /// Returns the state of a resumable upload, whose bytes are durable then. A request that continues it is
    /// stopped.
    pub async fn upload_status(&self, id: Uuid, now: Timestamp) -> Result<UploadStatus, FileError> {
        let active = self.supersede(id);
        let lock = self.inner.upload_locks.lock(id).await;
        self.run(move |files| {
            let _continuing = (lock, active);
            let record = files.live_record(id, now)?;
            let file = files.inner.staging.open_data(id)?;
            file.sync_data()?;
            Ok(UploadStatus { offset: file.metadata()?.len(), length: record.length })
        })
        .await
    }

    /// Cancels a resumable upload, and deletes what was received of it.
    pub async fn cancel_upload(&self, id: Uuid, now: Timestamp) -> Result<(), FileError> {
        let active = self.supersede(id);
        let lock = self.inner.upload_locks.lock(id).await;
        self.run(move |files| {
            let _continuing = (lock, active);
            files.live_record(id, now)?;
            files.discard(id)
        })
        .await
    }

    /// Deletes the uploads that are too old.
    pub async fn remove_expired_uploads(&self, now: Timestamp) -> Result<(), FileError> {
        let uploads = self.run(|files| files.inner.staging.uploads()).await?;
        for id in uploads {
            // It is deleted once nobody continues it.
            if self.is_active(id) {
                continue;
            }
            let lock = self.inner.upload_locks.lock(id).await;
            self.run(move |files| {
                let _continuing = lock;
                files.live_record(id, now).map(drop).or_else(|error| match error {
                    FileError::UploadNotFound => files.discard(id),
                    error => Err(error),
                })
            })
            .await?;
        }
        Ok(())
    }

    /// If there are as many resumable uploads as there may be, deletes the one that nobody has continued for the
    /// longest time, and for [`GIVES_WAY_AFTER`] at least: clients forget what they began.
    async fn make_place(&self) -> Result<(), FileError> {
        let idle = |files: &Self, id| {
            let written = files.inner.staging.last_written(id)?;
            written.elapsed().ok().filter(|idle| *idle >= GIVES_WAY_AFTER && !files.is_active(id))
        };
        let longest_idle = self.run(move |files| {
            let uploads = files.inner.staging.uploads()?;
            if uploads.len() < MAX_UPLOADS {
                return Ok(None);
            }
            let idle = uploads.into_iter().filter_map(|id| Some((idle(files, id)?, id)));
            Ok(idle.max().map(|(_, id)| id))
        });
        let Some(id) = longest_idle.await? else { return Ok(()) };
        let lock = self.inner.upload_locks.lock(id).await;
        self.run(move |files| {
            let _continuing = lock;
            // It may have been continued meanwhile.
            if idle(files, id).is_some() { files.discard(id) } else { Ok(()) }
        })
        .await
    }

    /// Reads the record of an upload that is not too old.
    fn live_record(&self, id: Uuid, now: Timestamp) -> Result<UploadRecord, FileError> {
        let record = self.inner.staging.record(id)?;
        if record.is_expired(now) { Err(FileError::UploadNotFound) } else { Ok(record) }
    }

    fn discard(&self, id: Uuid) -> Result<(), FileError> {
        self.inner.staging.remove(id)?;
        self.inner.quota.release(id);
        Ok(())
    }

    /// Takes up the resumable uploads of an earlier life of the engine, and removes all else that it left.
    pub(super) fn recover(&self, now: Timestamp) -> Result<(), FileError> {
        let staging = &self.inner.staging;
        for id in staging.uploads()? {
            match self.live_record(id, now).and_then(|_| staging.open_data(id)) {
                Ok(data) => self.inner.quota.record(id, data.metadata()?.len()),
                Err(FileError::UploadNotFound) => staging.remove(id)?,
                // Received bytes were acknowledged: they are kept until they are too old.
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    upload_id = %id.simple(),
                    "An unfinished upload cannot be read."
                ),
            }
        }
        for folder in staging.remove_leftovers()? {
            run_detached(move || {
                if let Err(error) = remove_all(&folder) {
                    tracing::warn!(%error, "A deleted folder cannot be removed from the disk.");
                }
            });
        }
        Ok(())
    }
}
