//! What a run should have met.

use super::aim::{PHASES, hits};
use super::{LEFT_OUT, ROUNDS};
use crate::tally::Tally;

/// From how many rounds on each phase of each change must have been hit.
const FULL_SIZE: u64 = 1_000;
/// How often, then.
const OFTEN: u64 = 10;

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
    if rounds >= FULL_SIZE {
        for phase in PHASES {
            want(&hits(phase), OFTEN);
        }
        for what in ["old keys refused", "tasks found again", "engines sent SIGKILL"] {
            want(what, OFTEN);
        }
    }
    unmet.extend(tally.counts().into_keys().filter(|what| what.starts_with(LEFT_OUT)));
    unmet
}
