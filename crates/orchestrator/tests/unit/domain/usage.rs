//! Whatever happens to reports on their way, each use counts once.

use pretty_assertions::assert_eq;
use proptest::prelude::*;

use super::*;

fn counts(turns: u64) -> UsageCounts {
    UsageCounts { turns, calls: 2 * turns, cost_nano_usd: 1_000 * turns, ..UsageCounts::default() }
}

proptest! {
    #[test]
    fn reports_that_are_lost_or_repeated_count_once(uses in prop::collection::vec((0_u64..5, 0_usize..3), 1..20)) {
        let (mut used, mut known) = (0, DayUsage::default());
        for (more, arrivals) in uses {
            used += more;
            for _ in 0..arrivals {
                known.apply(counts(used));
            }
        }
        known.apply(counts(used));
        prop_assert_eq!(known.total, counts(used));
    }
}

#[test]
fn what_an_engine_used_before_it_was_set_back_stays_used() {
    let mut known = DayUsage::default();
    assert_eq!(known.apply(counts(5)), counts(5));
    // From a backup that was made after two turns.
    assert_eq!(known.apply(counts(2)), UsageCounts::default());
    assert_eq!(known.apply(counts(3)), counts(1));
    assert_eq!(known.total, counts(6));
}
