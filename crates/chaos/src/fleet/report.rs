//! What a run should have met.

use super::aim::{PHASES, hits};
use super::{LEFT_OUT, ROUNDS};
use crate::tally::Tally;

/// From how many rounds on each phase of each change must have been hit.
const BIG: u64 = 200;
/// How often at the least in a run of full size, which is this many rounds a hit.
const OFTEN: u64 = 10;
const ROUNDS_A_HIT: u64 = 100;

/// What a run of this size should have met and did not.
pub fn unmet(tally: &Tally, rounds: u64) -> Vec<String> {
    let mut unmet = Vec::new();
    let mut want = |what: &str, at_least: u64| {
        let found = tally.of(what);
        if found < at_least {
            unmet.push(format!("{what}: {found}, and at least {at_least} are wanted"));
        }
    };
    want(ROUNDS, rounds);
    want("calls: provision", 1);
    if rounds >= BIG {
        let often = (rounds / ROUNDS_A_HIT).min(OFTEN);
        for phase in PHASES {
            want(&hits(phase), often);
        }
        for what in ["old keys refused", "tasks found again", "engines sent SIGKILL"] {
            want(what, often);
        }
    }
    unmet.extend(tally.counts().into_keys().filter(|what| what.starts_with(LEFT_OUT)));
    unmet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_that_was_hit_too_seldom_is_unmet() {
        for (rounds, often) in [(200, 2), (1_000, 10), (5_000, 10)] {
            let tally = Tally::default();
            tally.add(ROUNDS, rounds);
            tally.add("calls: provision", 1);
            for what in ["old keys refused", "tasks found again", "engines sent SIGKILL"] {
                tally.add(what, often);
            }
            let (last, others) = PHASES.split_last().unwrap();
            for phase in others {
                tally.add(hits(*phase), often);
            }
            tally.add(hits(*last), often - 1);
            assert_eq!(unmet(&tally, rounds).len(), 1, "{rounds}");
            tally.count(hits(*last));
            assert_eq!(unmet(&tally, rounds), Vec::<String>::new(), "{rounds}");
        }
        assert_eq!(unmet(&Tally::default(), 15).len(), 2);
    }
}
