//! What a run found, as a table.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::counters::{Counters, KILLS};
use crate::supervisor::{KILLED_AFTER_STEP_PREFIX, KILLED_WITHOUT_RESULT};
use crate::wire::Wire;
use crate::workload::Workload;

/// From how many kills on each kind of step must have been met.
pub const FULL_RUN_KILLS: u64 = 2_000;
/// How often, then.
const MIN_OCCURRENCES: u64 = 10;

/// The table of a run.
#[derive(Debug)]
pub struct Report<'a> {
    /// What happened.
    pub counters: &'a Counters,
    /// How long it took.
    pub elapsed: Duration,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counters.counts();
        let width = counts.keys().map(String::len).max().unwrap_or_default();
        writeln!(f, "{KILLS:width$} {:>8}", self.counters.get(KILLS))?;
        for (what, number) in counts.iter().filter(|(what, _)| *what != KILLS) {
            writeln!(f, "{what:width$} {number:>8}")?;
        }
        let seconds = self.elapsed.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = self.counters.get(KILLS) as f64 / seconds.max(0.001);
        let mut last = String::new();
        write!(last, "{seconds:.1} s, {rate:.1} kills per second")?;
        writeln!(f, "{last}")?;
        self.counters
            .violations()
            .iter()
            .try_for_each(|record_violation| writeln!(f, "VIOLATION {record_violation}"))
    }
}

/// What a run of this size should have met and did not.
pub fn unmet_coverage(tally: &Counters, mix: &Workload, wires: &[Wire], kills: u64) -> Vec<String> {
    let mut unmet_coverage = Vec::new();
    let mut want = |what: String, at_least: u64| {
        let found = tally.get(&what);
        if found < at_least {
            unmet_coverage.push(format!("{what}: {found}, and at least {at_least} are wanted"));
        }
    };
    want(KILLS.into(), kills);
    want("turns completed".into(), 1);
    want("turns resumed".into(), 1);
    for wire in wires {
        want(wire.kills_in_open_turns(), 1);
    }
    if kills < FULL_RUN_KILLS {
        return unmet_coverage;
    }
    for step in mix.expected_steps() {
        want(format!("{KILLED_AFTER_STEP_PREFIX}{step}"), MIN_OCCURRENCES);
    }
    want(KILLED_WITHOUT_RESULT.into(), MIN_OCCURRENCES);
    let done = [
        ("steers", mix.steer),
        ("cancels", mix.cancel),
        ("edits", mix.edit),
        ("retries", mix.retry),
        ("answers of a person", mix.edit_file + mix.ask_user),
        ("provider faults", mix.fault),
        ("connections cut by clients", mix.disconnect),
        ("ends by SIGTERM", mix.sigterm),
        ("retrying seen", mix.diverges),
        ("model steps repeated alike", 1.0 - mix.diverges),
    ];
    for (what, probability) in done {
        if probability > 0.0 {
            want(what.into(), MIN_OCCURRENCES);
        }
    }
    unmet_coverage
}
