//! Kills that are aimed at a durable step of the program under test.

use std::io::{self, Write as _};
use std::time::{Duration, Instant, UNIX_EPOCH};

use api::Timestamp;
use serde_json::Value;

/// How long rounds go on for until kills have come before the step and after it.
const MAX_DURATION: Duration = Duration::from_secs(90);
/// How many rounds there are at least.
const MIN_ROUNDS: usize = 6;
/// How many kills must have come before the step, and how many after it.
const MIN_OF_EACH: usize = 2;
/// The smallest change of the delay from one kill to the next.
const MIN_CHANGE: Duration = Duration::from_micros(100);

/// Rounds, each of which lets a program begin a durable step and kills it after a delay. The delay follows what the kills
/// before have hit, so that they gather around the step, and the rounds go on until kills have come before it and after
/// it. Prints at its end how many.
#[derive(Debug)]
pub(crate) struct KillRounds {
    step: String,
    rounds: usize,
    before: usize,
    after: usize,
    delay: Duration,
    change: Duration,
    /// Whether the last kill came before the step.
    was_early: Option<bool>,
    started: Instant,
}

impl KillRounds {
    /// Rounds around `step`, the first of which kills at once.
    pub(crate) fn around(step: &str) -> Self {
        Self::from_delay(step, Duration::ZERO)
    }

    /// Rounds around `step`, the first of which kills after `delay`.
    pub(crate) fn from_delay(step: &str, delay: Duration) -> Self {
        let change = Duration::from_millis(2);
        let started = Instant::now();
        Self {
            step: step.to_owned(),
            rounds: 0,
            before: 0,
            after: 0,
            delay,
            change,
            was_early: None,
            started,
        }
    }

    /// After which time the next kill comes.
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    /// Whether kills have come before the step and after it. Fails if they have not within [`MAX_DURATION`].
    pub(crate) fn is_over(&self) -> bool {
        let Self { step, rounds, before, after, started, .. } = self;
        let of_each = *before.min(after);
        if started.elapsed() > MAX_DURATION {
            // On a machine that is so busy, one of each must do.
            assert!(
                of_each > 0,
                "{before} kills came before {step} and {after} after it in {MAX_DURATION:?}"
            );
            return true;
        }
        of_each >= MIN_OF_EACH && *rounds >= MIN_ROUNDS
    }

    /// After which time the next kill comes, if there is to be one.
    pub(crate) fn next_delay(&self) -> Option<Duration> {
        (!self.is_over()).then_some(self.delay)
    }

    /// Records what a kill has hit.
    pub(crate) fn record(&mut self, is_step_done: bool) {
        self.record_many(usize::from(!is_step_done), usize::from(is_step_done));
    }

    /// Records what a kill has hit of several steps at once.
    pub(crate) fn record_many(&mut self, before: usize, after: usize) {
        self.rounds += 1;
        self.before += before;
        self.after += after;
        let is_early = before >= after;
        self.change = match self.was_early.replace(is_early) {
            Some(was_early) if was_early == is_early => self.change * 2,
            Some(_) => (self.change / 2).max(MIN_CHANGE),
            None => self.change,
        };
        // There is nothing earlier than at once, so that no large step is to be made up for.
        if !is_early {
            self.change = self.change.min(self.delay).max(MIN_CHANGE);
        }
        self.delay = if is_early { self.delay + self.change } else { self.delay.saturating_sub(self.change) };
    }
}

impl Drop for KillRounds {
    fn drop(&mut self) {
        let Self { step, before, after, delay, .. } = self;
        let line = format!("{before} kills before {step}, {after} after it; the next one after {delay:?}");
        // Written directly, because the test harness captures `eprintln!`. What cannot be printed fails no test.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}

/// Whether something that happened at `time`, as the program has recorded it, came before this moment.
#[track_caller]
pub(crate) fn is_before(time: &Value, moment: Timestamp) -> bool {
    let time: Timestamp = serde_json::from_value(time.clone()).unwrap();
    time.unix_ms() <= moment.unix_ms()
}

/// The time.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_unix_ms(i64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap())
}
