//! The room that the files of an engine may take: of its quota, and of the disk.
//!
//! Programs write to the workspace directly, so its size is measured, and each measurement is used for a few
//! seconds. Uploads are added as they are received: of uploads at the same time, only as many are accepted as
//! fit together. All functions block: the workspace is measured, and locks are shared with those that measure.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;

use super::FileError;

/// How long a measurement is used.
const MEASUREMENT_LIFETIME: Duration = Duration::from_secs(5);
/// The space that uploads leave free on the disk, for the brain: this much, or a tenth of a smaller disk.
const FREE_BYTES: u64 = 256 << 20;

/// The quota of an engine, and what is used of it and of the disk.
pub(super) struct Quota {
    limit: Option<u64>,
    usage: Mutex<Usage>,
    /// Held while the workspace is measured: whoever waits for it uses the same measurement.
    measuring: Mutex<()>,
}

#[derive(Default)]
struct Usage {
    /// The size of the workspace, and when it was measured.
    measured: Option<(Instant, u64)>,
    /// The bytes that completed uploads have added to the workspace so far, which a measurement made meanwhile
    /// may have missed.
    added: u64,
    uploads: HashMap<Uuid, PendingUpload>,
}

/// What an unfinished upload takes.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingUpload {
    /// The bytes that it has, or may receive.
    pub(super) bytes: u64,
    /// The bytes of the file that it will replace.
    pub(super) replaced: u64,
    /// The bytes that are on the disk already.
    pub(super) written: Arc<AtomicU64>,
}

impl PendingUpload {
    /// What it adds to the workspace.
    fn added(&self) -> u64 {
        self.bytes.saturating_sub(self.replaced)
    }

    /// What it will still take of the disk.
    fn unwritten(&self) -> u64 {
        self.bytes.saturating_sub(self.written.load(Ordering::Acquire))
    }
}

/// The space on a disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskSpace {
    free: u64,
    total: u64,
}

impl DiskSpace {
    pub(super) fn of(file: impl AsFd) -> Result<Self, FileError> {
        let disk = rustix::fs::fstatvfs(file)?;
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        Ok(Self { free: bytes(disk.f_bavail), total: bytes(disk.f_blocks) })
    }

    /// Checks that `bytes` more fit.
    pub(super) fn check(self, bytes: u64) -> Result<(), FileError> {
        let Self { free, total } = self;
        let kept = FREE_BYTES.min(total / 10);
        if bytes == 0 || free.saturating_sub(kept) >= bytes {
            return Ok(());
        }
        Err(FileError::StorageFull(format!(
            "the disk has {free} bytes left, of which {kept} are kept free, so {bytes} more do not fit"
        )))
    }
}

impl Quota {
    /// Creates a quota of `limit` bytes, or none.
    pub(super) fn new(limit: Option<u64>) -> Self {
        Self { limit, usage: Mutex::default(), measuring: Mutex::default() }
    }

    /// Makes room for an upload, in place of what was reserved for it before: on the disk with what other uploads
    /// will still take of it, and within the quota. `measure` returns the size of the workspace.
    pub(super) fn reserve(
        &self,
        id: Uuid,
        upload: PendingUpload,
        disk: DiskSpace,
        measure: impl FnOnce() -> Result<u64, FileError>,
    ) -> Result<(), FileError> {
        let measured = self.measured(measure)?;
        let mut usage = self.usage.lock();
        disk.check(usage.unwritten(id).saturating_add(upload.unwritten()))?;
        self.check(&usage, measured, id, upload.added())?;
        usage.uploads.insert(id, upload);
        Ok(())
    }

    /// Checks an upload again before it becomes the new content of a file in place of `replaced` bytes: these may
    /// be fewer than when room was made for it. It stays reserved until [`Quota::placed`].
    pub(super) fn recheck(
        &self,
        id: Uuid,
        bytes: u64,
        replaced: u64,
        measure: impl FnOnce() -> Result<u64, FileError>,
    ) -> Result<(), FileError> {
        let measured = self.measured(measure)?;
        self.check(&self.usage.lock(), measured, id, bytes.saturating_sub(replaced))
    }

    /// Counts an upload as a part of the workspace, in place of `replaced` bytes.
    pub(super) fn placed(&self, id: Uuid, bytes: u64, replaced: u64) {
        let mut usage = self.usage.lock();
        usage.uploads.remove(&id);
        usage.added = usage.added.saturating_add(bytes.saturating_sub(replaced));
        if let Some((_, measured)) = &mut usage.measured {
            *measured = measured.saturating_add(bytes).saturating_sub(replaced);
        }
    }

    /// Records what an upload that nobody continues at the moment has received so far.
    pub(super) fn record(&self, id: Uuid, bytes: u64) {
        let upload = PendingUpload { bytes, replaced: 0, written: Arc::new(AtomicU64::new(bytes)) };
        self.usage.lock().uploads.insert(id, upload);
    }

    /// Gives up what was reserved for an upload.
    pub(super) fn release(&self, id: Uuid) {
        self.usage.lock().uploads.remove(&id);
    }

    /// Has the workspace measured anew, because something in it was removed.
    pub(super) fn forget_measurement(&self) {
        self.usage.lock().measured = None;
    }

    /// Returns the size of the workspace, as it was measured lately; `None` without a quota.
    fn measured(&self, measure: impl FnOnce() -> Result<u64, FileError>) -> Result<Option<u64>, FileError> {
        if self.limit.is_none() {
            return Ok(None);
        }
        if let Some(measured) = self.usage.lock().recent() {
            return Ok(Some(measured));
        }
        let _measuring = self.measuring.lock();
        let added_before = {
            let usage = self.usage.lock();
            if let Some(measured) = usage.recent() {
                return Ok(Some(measured));
            }
            usage.added
        };
        // Without the lock on the usage, because it may take a while.
        let measured = measure()?;
        let mut usage = self.usage.lock();
        let measured = measured.saturating_add(usage.added.saturating_sub(added_before));
        usage.measured = Some((Instant::now(), measured));
        Ok(Some(measured))
    }

    fn check(&self, usage: &Usage, measured: Option<u64>, id: Uuid, needed: u64) -> Result<(), FileError> {
        let (Some(limit), Some(measured)) = (self.limit, measured) else { return Ok(()) };
        // What was added since it was measured counts, too.
        let measured = usage.recent().unwrap_or(measured);
        let others = usage.others(id).map(PendingUpload::added).fold(0, u64::saturating_add);
        let used = measured.saturating_add(others);
        if needed == 0 || used.saturating_add(needed) <= limit {
            return Ok(());
        }
        Err(FileError::StorageFull(format!(
            "the files of this engine take {used} of {limit} bytes, so {needed} more do not fit; delete files, or \
             raise ENGINE_WORKSPACE_QUOTA_MB"
        )))
    }
}

impl Usage {
    fn recent(&self) -> Option<u64> {
        self.measured.filter(|(at, _)| at.elapsed() < MEASUREMENT_LIFETIME).map(|(_, size)| size)
    }

    /// All uploads but this one.
    fn others(&self, except: Uuid) -> impl Iterator<Item = &PendingUpload> {
        self.uploads.iter().filter(move |(id, _)| **id != except).map(|(_, upload)| upload)
    }

    /// What all uploads but this one will still take of the disk.
    fn unwritten(&self, except: Uuid) -> u64 {
        self.others(except).map(PendingUpload::unwritten).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMY: DiskSpace = DiskSpace { free: 1 << 40, total: 1 << 41 };

    fn upload(bytes: u64, replaced: u64) -> PendingUpload {
        PendingUpload { bytes, replaced, written: Arc::default() }
    }

    #[test]
    fn uploads_count_together_and_replaced_files_are_credited() {
        let quota = Quota::new(Some(100));
        let [one, other] = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let measure = || Ok(40);
        quota.reserve(one, upload(50, 0), ROOMY, measure).unwrap();
        let refused = quota.reserve(other, upload(11, 0), ROOMY, measure).unwrap_err().to_string();
        assert!(refused.contains("take 90 of 100 bytes, so 11 more"), "{refused}");
        quota.reserve(other, upload(40, 35), ROOMY, measure).unwrap();
        quota.recheck(one, 50, 0, measure).unwrap();
        quota.placed(one, 50, 0);
        // The file that the second one would have replaced is gone.
        assert!(quota.recheck(other, 40, 0, measure).is_err());
        quota.release(other);
        quota.reserve(other, upload(10, 0), ROOMY, measure).unwrap();
    }

    #[test]
    fn what_was_not_placed_stays_reserved() {
        let quota = Quota::new(Some(100));
        let id = Uuid::from_u128(1);
        quota.reserve(id, upload(60, 0), ROOMY, || Ok(0)).unwrap();
        quota.recheck(id, 60, 0, || Ok(0)).unwrap();
        assert!(quota.reserve(Uuid::from_u128(2), upload(50, 0), ROOMY, || Ok(0)).is_err());
    }

    #[test]
    fn what_is_added_while_the_workspace_is_measured_counts() {
        let quota = Quota::new(Some(100));
        let id = Uuid::from_u128(1);
        let measure = || {
            quota.placed(Uuid::from_u128(2), 30, 0);
            Ok(50)
        };
        let refused = quota.reserve(id, upload(21, 0), ROOMY, measure).unwrap_err().to_string();
        assert!(refused.contains("take 80 of 100 bytes"), "{refused}");
        quota.forget_measurement();
        quota.reserve(id, upload(21, 0), ROOMY, || Ok(50)).unwrap();
    }

    #[test]
    fn uploads_share_the_disk_whatever_the_quota() {
        const MIB: u64 = 1 << 20;
        for limit in [None, Some(u64::MAX)] {
            let quota = Quota::new(limit);
            let disk = DiskSpace { free: FREE_BYTES + 100 * MIB, total: 1 << 40 };
            let first = upload(60 * MIB, 0);
            let measure = || Ok(0);
            quota.reserve(Uuid::from_u128(1), first.clone(), disk, measure).unwrap();
            let second = quota.reserve(Uuid::from_u128(2), upload(41 * MIB, 0), disk, measure);
            assert!(second.unwrap_err().to_string().contains("the disk has"));
            // The first one has written what it announced: it is missing from the free space.
            first.written.store(60 * MIB, Ordering::Release);
            let disk = DiskSpace { free: FREE_BYTES + 40 * MIB, ..disk };
            quota.reserve(Uuid::from_u128(2), upload(40 * MIB, 0), disk, measure).unwrap();
            assert!(quota.reserve(Uuid::from_u128(3), upload(1, 0), disk, measure).is_err());
        }
    }

    #[test]
    fn a_small_disk_keeps_a_tenth_free() {
        let disk = DiskSpace { free: 20, total: 100 };
        disk.check(10).unwrap();
        assert!(disk.check(11).is_err());
        // What adds nothing always fits.
        DiskSpace { free: 0, total: 100 }.check(0).unwrap();
    }

    #[test]
    fn without_a_quota_nothing_is_measured() {
        let quota = Quota::new(None);
        let never = || panic!("it is measured");
        quota.reserve(Uuid::from_u128(1), upload(1 << 30, 0), ROOMY, never).unwrap();
        quota.recheck(Uuid::from_u128(1), 1 << 30, 0, never).unwrap();
    }
}
