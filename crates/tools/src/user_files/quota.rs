//! The room that the files of an engine may take.
//!
//! Programs write to the workspace directly, so its size is measured, and each measurement is used for a few
//! seconds. Uploads are added as they are received: of uploads at the same time, only as many are accepted as
//! fit together.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;

use super::FileError;

/// How long a measurement is used.
const MEASUREMENT_LIFETIME: Duration = Duration::from_secs(5);

/// The quota of an engine, and what is used of it.
pub(super) struct Quota {
    limit: Option<u64>,
    usage: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    /// The size of the workspace, and when it was measured.
    measured: Option<(Instant, u64)>,
    uploads: HashMap<Uuid, PendingUpload>,
}

/// What an unfinished upload takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingUpload {
    /// The bytes that it has, or may receive.
    pub(super) bytes: u64,
    /// The bytes of the file that it will replace.
    pub(super) replaced: u64,
}

impl Quota {
    /// Creates a quota of `limit` bytes, or none.
    pub(super) fn new(limit: Option<u64>) -> Self {
        Self { limit, usage: Mutex::default() }
    }

    /// Makes room for an upload, in place of what was reserved for it before. `measure` returns the size of
    /// the workspace.
    pub(super) fn reserve(
        &self,
        id: Uuid,
        upload: PendingUpload,
        measure: impl FnOnce() -> Result<u64, FileError>,
    ) -> Result<(), FileError> {
        let Some(limit) = self.limit else { return Ok(()) };
        let mut usage = self.usage.lock();
        let used = usage.measured(measure)?.saturating_add(usage.of_uploads(id));
        let needed = upload.bytes.saturating_sub(upload.replaced);
        check(limit, used, needed)?;
        usage.uploads.insert(id, upload);
        Ok(())
    }

    /// Measures the workspace, if that was not done lately.
    pub(super) fn refresh(&self, measure: impl FnOnce() -> Result<u64, FileError>) -> Result<(), FileError> {
        if self.limit.is_some() {
            self.usage.lock().measured(measure)?;
        }
        Ok(())
    }

    /// Records what an upload has received so far, without a check.
    pub(super) fn record(&self, id: Uuid, bytes: u64) {
        if self.limit.is_some() {
            self.usage.lock().uploads.insert(id, PendingUpload { bytes, replaced: 0 });
        }
    }

    /// Gives up what was reserved for an upload.
    pub(super) fn release(&self, id: Uuid) {
        self.usage.lock().uploads.remove(&id);
    }

    /// Runs `replace`, which makes the upload the new content of a file in place of `replaced` bytes.
    pub(super) fn commit(
        &self,
        id: Uuid,
        PendingUpload { bytes, replaced }: PendingUpload,
        measure: impl FnOnce() -> Result<u64, FileError>,
        replace: impl FnOnce() -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let mut usage = self.usage.lock();
        if let Some(limit) = self.limit {
            // What it replaces may have become smaller since its reservation.
            let used = usage.measured(measure)?.saturating_add(usage.of_uploads(id));
            check(limit, used, bytes.saturating_sub(replaced))?;
        }
        replace()?;
        usage.uploads.remove(&id);
        if let Some((_, measured)) = &mut usage.measured {
            *measured = measured.saturating_add(bytes).saturating_sub(replaced);
        }
        Ok(())
    }

    /// Runs `remove`, after which the workspace is measured anew.
    pub(super) fn after<T>(&self, remove: impl FnOnce() -> T) -> T {
        let mut usage = self.usage.lock();
        let outcome = remove();
        usage.measured = None;
        outcome
    }
}

impl Usage {
    fn measured(&mut self, measure: impl FnOnce() -> Result<u64, FileError>) -> Result<u64, FileError> {
        match self.measured {
            Some((at, size)) if at.elapsed() < MEASUREMENT_LIFETIME => Ok(size),
            _ => {
                let size = measure()?;
                self.measured = Some((Instant::now(), size));
                Ok(size)
            }
        }
    }

    /// What all uploads but this one add to the workspace.
    fn of_uploads(&self, except: Uuid) -> u64 {
        let others = self.uploads.iter().filter(|(id, _)| **id != except);
        others.map(|(_, upload)| upload.bytes.saturating_sub(upload.replaced)).fold(0, u64::saturating_add)
    }
}

fn check(limit: u64, used: u64, needed: u64) -> Result<(), FileError> {
    if needed == 0 || used.saturating_add(needed) <= limit {
        return Ok(());
    }
    Err(FileError::StorageFull(format!(
        "the files of this engine take {used} of {limit} bytes, so {needed} more do not fit; delete files, or raise \
         ENGINE_WORKSPACE_QUOTA_MB"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upload(bytes: u64, replaced: u64) -> PendingUpload {
        PendingUpload { bytes, replaced }
    }

    #[test]
    fn uploads_count_together_and_replaced_files_are_credited() {
        let quota = Quota::new(Some(100));
        let [one, other] = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let measure = || Ok(40);
        quota.reserve(one, upload(50, 0), measure).unwrap();
        let refused = quota.reserve(other, upload(11, 0), measure).unwrap_err().to_string();
        assert!(refused.contains("take 90 of 100 bytes, so 11 more"), "{refused}");
        quota.reserve(other, upload(40, 35), measure).unwrap();
        quota.commit(one, upload(50, 0), measure, || Ok(())).unwrap();
        // The file that the second one would have replaced is gone.
        assert!(quota.commit(other, upload(40, 0), measure, || Ok(())).is_err());
        quota.release(other);
        quota.reserve(other, upload(10, 0), measure).unwrap();
    }

    #[test]
    fn what_failed_to_be_replaced_stays_reserved() {
        let quota = Quota::new(Some(100));
        let id = Uuid::from_u128(1);
        quota.reserve(id, upload(60, 0), || Ok(0)).unwrap();
        let failed = quota.commit(id, upload(60, 0), || Ok(0), || Err(FileError::NotFound));
        assert!(matches!(failed, Err(FileError::NotFound)));
        assert!(quota.reserve(Uuid::from_u128(2), upload(50, 0), || Ok(0)).is_err());
        assert_eq!(quota.after(|| 7), 7);
    }

    #[test]
    fn without_a_quota_nothing_is_measured() {
        let quota = Quota::new(None);
        let never = || panic!("it is measured");
        quota.reserve(Uuid::from_u128(1), upload(u64::MAX, 0), never).unwrap();
        quota.commit(Uuid::from_u128(1), upload(u64::MAX, 0), never, || Ok(())).unwrap();
    }
}
