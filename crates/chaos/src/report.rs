//! What a run found, as a table.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::killer::{STANDING, WITHOUT_RESULT};
use crate::mix::Mix;
use crate::tally::{KILLS, Tally};
use crate::wire::Wire;

/// From how many kills on each kind of step must have been met.
pub const FULL_SIZE: u64 = 2_000;
/// How often, then.
const OFTEN: u64 = 10;

/// The table of a run.
#[derive(Debug)]
pub struct Report<'a> {
    /// What happened.
    pub tally: &'a Tally,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.tally.counts();
        let width = counts.keys().map(String::len).max().unwrap_or_default();
        writeln!(f, "{KILLS:width$} {:>8}", self.tally.of(KILLS))?;
        for (what, number) in counts.iter().filter(|(what, _)| *what != KILLS) {
            writeln!(f, "{what:width$} {number:>8}")?;
        }
        let seconds = self.took.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = self.tally.of(KILLS) as f64 / seconds.max(0.001);
        let mut last = String::new();
        write!(last, "{seconds:.1} s, {rate:.1} kills per second")?;
        writeln!(f, "{last}")?;
        self.tally.violations().iter().try_for_each(|violation| writeln!(f, "VIOLATION {violation}"))
    }
}

/// What a run of this size should have met and did not.
pub fn unmet(tally: &Tally, mix: &Mix, wires: &[Wire], kills: u64) -> Vec<String> {
    let mut unmet = Vec::new();
    let mut want = |what: String, at_least: u64| {
        let found = tally.of(&what);
        if found < at_least {
            unmet.push(format!("{what}: {found}, and at least {at_least} are wanted"));
        }
    };
    want(KILLS.into(), kills);
    want("turns completed".into(), 1);
    want("turns resumed".into(), 1);
    for wire in wires {
        want(wire.kills_in_open_turns(), 1);
    }
    if kills < FULL_SIZE {
        return unmet;
    }
    for step in mix.steps() {
        want(format!("{STANDING}{step}"), OFTEN);
    }
    want(WITHOUT_RESULT.into(), OFTEN);
    let done = [
        ("steers", mix.steer),
        ("cancels", mix.cancel),
        ("edits", mix.edit),
        ("retries", mix.retry),
        ("answers of a person", mix.edit_file + mix.ask_user),
        ("provider faults", mix.fault),
        ("connections cut by clients", mix.cut),
        ("ends by SIGTERM", mix.sigterm),
        ("retrying seen", mix.departs),
        ("model steps repeated alike", 1.0 - mix.departs),
    ];
    for (what, probability) in done {
        if probability > 0.0 {
            want(what.into(), OFTEN);
        }
    }
    unmet
}
