//! Which backups expire.

use api::Timestamp;
use proptest::prelude::*;

use crate::{BackupId, Retention};

const DAY_MS: i64 = 86_400_000;

fn backups(days: &[i64]) -> Vec<BackupId> {
    days.iter().map(|day| BackupId::new(Timestamp::from_unix_ms(day * DAY_MS), true).unwrap()).collect()
}

fn expired_days(retention: Retention, now_day: i64, days: &[i64]) -> Vec<i64> {
    let expired = retention.expired(now_day * DAY_MS, backups(days));
    let mut days: Vec<_> = expired.into_iter().map(|backup| backup.at_ms() / DAY_MS).collect();
    days.sort_unstable();
    days
}

#[test]
fn a_backup_that_either_rule_keeps_is_kept() {
    let retention = Retention { keep_last: 2, keep_days: 7 };
    assert_eq!(expired_days(retention, 30, &[1, 2, 3, 29]), [1, 2]);
    assert_eq!(expired_days(retention, 30, &[24, 25, 26, 29]), Vec::<i64>::new());
    assert_eq!(expired_days(retention, 30, &[1, 2]), Vec::<i64>::new());
    // The latest is kept whatever the rules say.
    assert_eq!(expired_days(Retention { keep_last: 0, keep_days: 0 }, 30, &[1, 2]), [1]);
}

proptest! {
    #[test]
    fn the_latest_stays_and_what_expires_is_older_than_what_is_kept(
        days in prop::collection::vec(0_i64..400, 1..40), keep_last in 0_usize..10, keep_days in 0_u32..100,
    ) {
        let backups = backups(&days);
        let expired = Retention { keep_last, keep_days }.expired(400 * DAY_MS, backups.clone());
        let kept: Vec<_> = backups.iter().filter(|backup| !expired.contains(backup)).collect();
        prop_assert!(kept.len() >= keep_last.clamp(1, backups.len()));
        prop_assert!(kept.contains(&backups.iter().max().unwrap()));
        prop_assert!(expired.iter().all(|gone| kept.iter().all(|kept| *kept > gone)));
        let is_old = |backup: &BackupId| backup.at_ms() < (400 - i64::from(keep_days)) * DAY_MS;
        prop_assert!(expired.iter().all(is_old));
    }
}
