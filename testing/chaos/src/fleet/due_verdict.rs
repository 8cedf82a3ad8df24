//! Whether what became of a due time is what the schedule promises. Pure.

use std::fmt;

use api::Timestamp;
use serde_json::Value;

/// A due time is missed if its run cannot begin within this time; see `docs/schedules.md`.
const ON_TIME_MS: i64 = 5 * 60 * 1_000;
/// How much later than the decision its commit may be.
const COMMIT_MS: i64 = 30_000;

/// The only due time of a user, and what the schedule says of missed ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueTime {
    pub(crate) due_at: Timestamp,
    pub(crate) skips_missed: bool,
}

/// What the user's engine shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// The runs of the schedule.
    pub(crate) runs: Vec<Value>,
    /// The number of turns of its task.
    pub(crate) turns: usize,
    /// The number of messages that were sent in it.
    pub(crate) messages: usize,
}

/// What became of a due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its turn has completed.
    Run,
    /// The same, later than five minutes after it.
    RunLate,
    /// It is listed as missed.
    Missed,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Run => "run",
            Self::RunLate => "run late",
            Self::Missed => "missed",
        })
    }
}

/// Compares what is found with what is promised. Fails with what is wrong.
pub(crate) fn judge(due: &DueTime, found: &Found) -> Result<Verdict, String> {
    let Found { runs, turns, messages } = found;
    let [run] = runs.as_slice() else { return Err(format!("{} runs instead of one: {found:?}", runs.len())) };
    let text = |field: &str| run.get(field).and_then(Value::as_str).unwrap_or_default();
    let time =
        |field: &str| text(field).parse::<Timestamp>().map_err(|_| format!("`{field}` is no time: {run}"));
    let (due_at, at) = (time("due_at")?, time("at")?);
    if due_at != due.due_at {
        return Err(format!("it was due at {}: {run}", due.due_at));
    }
    let late_ms = at.unix_ms() - due_at.unix_ms();
    if late_ms < 0 {
        return Err(format!("it was run before it was due: {run}"));
    }
    match text("outcome") {
        "run" if (*turns, *messages) != (1, 1) => Err(format!("it was not run once: {found:?}")),
        "run" if text("turn_state") != "completed" => Err(format!("its turn has not completed: {run}")),
        "run" if late_ms <= ON_TIME_MS + COMMIT_MS => Ok(Verdict::Run),
        "run" if due.skips_missed => Err(format!("it was to be skipped: {run}")),
        "run" => Ok(Verdict::RunLate),
        "missed" if !due.skips_missed => Err(format!("it was to be made up for: {run}")),
        "missed" if (*turns, *messages) != (0, 0) => Err(format!("it was run and missed: {found:?}")),
        "missed" if late_ms < ON_TIME_MS => Err(format!("it was missed too early: {run}")),
        "missed" => Ok(Verdict::Missed),
        other => Err(format!("`{other}` cannot become of it: {run}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(outcome: &str, late_ms: i64, state: &str) -> Value {
        let at = Timestamp::from_unix_ms(60_000 + late_ms);
        json!({
            "due_at": Timestamp::from_unix_ms(60_000), "at": at, "outcome": outcome, "turn_state": state,
        })
    }

    #[test]
    fn each_due_time_is_run_once_or_missed_where_the_schedule_says_so() {
        let due = |skips_missed| DueTime { due_at: Timestamp::from_unix_ms(60_000), skips_missed };
        let found = |runs: &[&Value], turns, messages| {
            let runs = runs.iter().map(|run| (*run).clone()).collect();
            Found { runs, turns, messages }
        };
        let once = run("run", 10, "completed");
        let (late, missed) = (run("run", 400_000, "completed"), run("missed", 400_000, ""));
        for (skips, found, verdict) in [
            (false, found(&[&once], 1, 1), Some(Verdict::Run)),
            (true, found(&[&once], 1, 1), Some(Verdict::Run)),
            (false, found(&[&late], 1, 1), Some(Verdict::RunLate)),
            (true, found(&[&late], 1, 1), None),
            (true, found(&[&missed], 0, 0), Some(Verdict::Missed)),
            (false, found(&[&missed], 0, 0), None),
            (true, found(&[&missed], 1, 1), None),
            (true, found(&[&run("missed", 1_000, "")], 0, 0), None),
            (false, found(&[], 0, 0), None),
            (false, found(&[&once, &once], 1, 1), None),
            (false, found(&[&once], 2, 1), None),
            (false, found(&[&once], 1, 2), None),
            (false, found(&[&run("run", 10, "running")], 1, 1), None),
            (false, found(&[&run("run", -10, "completed")], 1, 1), None),
            (false, found(&[&run("queue_full", 10, "")], 0, 0), None),
        ] {
            assert_eq!(judge(&due(skips), &found).ok(), verdict, "{skips} {found:?}");
        }
        let other = DueTime { due_at: Timestamp::from_unix_ms(0), skips_missed: false };
        assert!(judge(&other, &found(&[&run("run", 10, "completed")], 1, 1)).is_err());
    }
}
