//! What a turn writes, early and late in one thread. All its messages are of one size, so that only the
//! thread's length differs.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

use crate::bench::Bench;
use crate::engine::{Engine, Home};
use crate::fill::turn;
use crate::paced::{Pace, Paced};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::usage::{self, Cpu, Log};

const TASK: &str = "one-thread";
/// Slow enough that a delta is seldom merged with the next: so each turn commits as often as every other.
const PACE: Pace = Pace { deltas: 4, pause: Some(Duration::from_millis(2)) };
/// The log's bytes are looked at around this turn, and at the thread's last ones.
const EARLY: usize = 10;
/// So many turns are one sample of the log's bytes: their mean.
const WINDOW: usize = 10;
const BUDGET: Budget = Budget::MostTimesFloor(1.2);

/// What one turn has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    /// Written to the write-ahead log.
    log_kib: f64,
    /// By which the database has grown.
    grown_kib: f64,
    /// Written to the disk, by the kernel's count: the log, and what is moved from it into the database now and
    /// then.
    disk_kib: f64,
    cpu_us: f64,
}

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let turns = bench.size.of(200, 1_000);
    let provider = Paced::start(PACE).await?;
    let late = format!("turn {turns}");
    let halves = ("second half", "first half");
    let mut log = quantity("log per turn", Unit::Kibibytes, &late, "turn 10", Some(BUDGET));
    let mut disk = quantity("disk per turn", Unit::Kibibytes, halves.0, halves.1, Some(BUDGET));
    let mut grown = quantity("growth per turn", Unit::Kibibytes, halves.0, halves.1, Some(BUDGET));
    let mut cpu = quantity("processor per turn", Unit::Microseconds, &late, "turn 10", None);
    for round in 0..bench.rounds {
        bench.progress(&format!("bytes-per-turn, {turns} turns"), round);
        let home = Home::new(&bench.binary, bench.folder()?, provider.model())?;
        let (engine, _) = home.start()?;
        let costs = thread(&engine, &home.brain(), turns).await?;
        let windows = (last(&costs, WINDOW), around(&costs, EARLY));
        let halves = (last(&costs, turns / 2), costs.get(..turns / 2));
        note(&mut log, windows, |cost| cost.log_kib);
        note(&mut cpu, windows, |cost| cost.cpu_us);
        note(&mut disk, halves, |cost| cost.disk_kib);
        note(&mut grown, halves, |cost| cost.grown_kib);
    }
    Ok(vec![log, disk, grown, cpu])
}

/// Runs a thread of `turns` turns.
async fn thread(engine: &Engine, brain: &Path, turns: usize) -> anyhow::Result<Vec<Cost>> {
    let mut client = engine.connect().await?;
    let state = || {
        let log = Log::of(brain).context("the brain's log")?;
        anyhow::Ok((log, usage::written(&engine.process)?, Cpu::of(&engine.process)?))
    };
    let mut before = state()?;
    let mut costs = Vec::new();
    for _ in 0..turns {
        let last_ts = turn(engine, &mut client, TASK).await?;
        // A task's clock that runs ahead would make later turns wait between their events.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        tokio::time::sleep(Duration::from_millis(last_ts.unsigned_abs()).saturating_sub(now)).await;
        let after = state()?;
        costs.push(Cost {
            log_kib: kib(after.0.written_since(before.0))?,
            grown_kib: kib(after.0.grown_since(before.0))?,
            disk_kib: kib(after.1.saturating_sub(before.1))?,
            cpu_us: after.2.micros_since(&before.2),
        });
        before = after;
    }
    Ok(costs)
}

fn kib(bytes: u64) -> anyhow::Result<f64> {
    Ok(f64::from(u32::try_from(bytes).context("more was written than one turn can")?) / 1_024.0)
}

/// The costs of the turns around the one with this number.
fn around(costs: &[Cost], turn: usize) -> Option<&[Cost]> {
    let first = turn.checked_sub(WINDOW / 2)?;
    costs.get(first..first + WINDOW)
}

/// The costs of the last `turns` turns.
fn last(costs: &[Cost], turns: usize) -> Option<&[Cost]> {
    costs.get(costs.len().checked_sub(turns)?..)
}

fn mean(costs: &[Cost], part: fn(&Cost) -> f64) -> Option<f64> {
    let count = u32::try_from(costs.len()).ok().filter(|count| *count > 0)?;
    Some(costs.iter().map(part).sum::<f64>() / f64::from(count))
}

/// Adds a sample for the late turns and one for the early.
fn note(quantity: &mut Quantity, (late, early): (Option<&[Cost]>, Option<&[Cost]>), part: fn(&Cost) -> f64) {
    let sample = |costs: Option<&[Cost]>| costs.and_then(|costs| mean(costs, part));
    quantity.add(sample(late), sample(early));
}

fn quantity(what: &str, unit: Unit, late: &str, early: &str, budget: Option<Budget>) -> Quantity {
    Quantity {
        what: what.into(),
        unit,
        ours: Subject::new(format!("engine, {late}")),
        floors: vec![Subject::beside(early)],
        budget,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "the means are exact")]
    fn windows_stand_around_the_turn_and_at_the_end() {
        let costs: Vec<Cost> =
            (1..=20_u32).map(|turn| Cost { log_kib: f64::from(turn), ..Cost::default() }).collect();
        let log = |cost: &Cost| cost.log_kib;
        assert_eq!(mean(around(&costs, EARLY).unwrap(), log).unwrap(), 10.5);
        assert_eq!(mean(last(&costs, WINDOW).unwrap(), log).unwrap(), 15.5);
        assert_eq!(around(&costs, 18), None);
        assert_eq!(last(&costs, 21), None);
        assert_eq!(mean(&[], log), None);
    }
}
