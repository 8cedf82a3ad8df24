//! Which backups are kept. Pure.

use crate::BackupId;

/// How long backups are kept: one that either rule keeps is kept. The latest one always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How many of the latest backups are kept, however old they are.
    pub keep_last: usize,
    /// For how many days every backup is kept.
    pub keep_days: u32,
}

impl Retention {
    /// Returns the backups that are kept no longer at `now_ms`.
    pub fn expired(self, now_ms: i64, mut backups: Vec<BackupId>) -> Vec<BackupId> {
        backups.sort_unstable_by(|a, b| b.cmp(a));
        let oldest_ms = now_ms.saturating_sub(i64::from(self.keep_days).saturating_mul(86_400_000));
        let kept = self.keep_last.max(1);
        backups.into_iter().skip(kept).filter(|backup| backup.at_ms() < oldest_ms).collect()
    }
}
