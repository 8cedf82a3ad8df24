//! The report of a run as a table, and the coverage that a run must reach.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::counters::{Counters, KILLS};
use crate::supervisor::{KILLED_AFTER_STEP_PREFIX, KILLED_WITHOUT_RESULT};
use crate::wire::Wire;
use crate::workload::Workload;

/// The number of kills from which each kind of step is required.
pub const FULL_RUN_KILLS: u64 = 2_000;
/// The required number of occurrences in such a run.
const MIN_OCCURRENCES: u64 = 10;

/// The table of a run.
#[derive(Debug)]
pub struct Report<'a> {
    /// The counts and violations.
    pub counters: &'a Counters,
    /// The duration of the run.
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
        self.counters.violations().iter().try_for_each(|violation| writeln!(f, "VIOLATION {violation}"))
    }
}

/// Returns the coverage that a run of this size requires and did not reach, one line per cause.
pub fn unmet_coverage(counters: &Counters, workload: &Workload, wires: &[Wire], kills: u64) -> Vec<String> {
    let mut unmet_coverage = Vec::new();
    let mut require = |what: String, at_least: u64| {
        let found = counters.get(&what);
        if found < at_least {
            unmet_coverage.push(format!("{what}: {found}, but at least {at_least} are required"));
        }
    };
    require(KILLS.into(), kills);
    require("turns completed".into(), 1);
    require("turns resumed".into(), 1);
    for wire in wires {
        require(wire.kills_in_open_turns(), 1);
    }
    if kills < FULL_RUN_KILLS {
        return unmet_coverage;
    }
    for step in workload.expected_steps() {
        require(format!("{KILLED_AFTER_STEP_PREFIX}{step}"), MIN_OCCURRENCES);
    }
    require(KILLED_WITHOUT_RESULT.into(), MIN_OCCURRENCES);
    let actions = [
        ("steers", workload.steer),
        ("cancels", workload.cancel),
        ("edits", workload.edit),
        ("retries", workload.retry),
        ("answers of a person", workload.edit_file + workload.ask_user),
        ("provider faults", workload.fault),
        ("connections cut by clients", workload.disconnect),
        ("ends by SIGTERM", workload.sigterm),
        ("retrying seen", workload.diverges),
        ("model steps repeated alike", 1.0 - workload.diverges),
    ];
    for (what, probability) in actions {
        if probability > 0.0 {
            require(what.into(), MIN_OCCURRENCES);
        }
    }
    unmet_coverage
}
