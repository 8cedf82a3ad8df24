//! Measures the bytes that a turn writes, early and late in one thread. All messages have the same size, so that
//! only the length of the thread differs.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

use crate::context::BenchContext;
use crate::engine::{Engine, EngineSetup};
use crate::paced_provider::{Pace, PacedProvider};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::turns::run_turn;
use crate::usage::{self, CpuUsage, WalState};

const TASK: &str = "one-thread";
/// Slow enough that deltas are seldom merged, so that all turns have the same number of commits.
const PACE: Pace = Pace { deltas: 4, pause: Some(Duration::from_millis(2)) };
/// The early sample of the log's bytes is taken around this turn; the late one at the thread's last turns.
const EARLY_TURN: usize = 10;
/// The number of turns whose mean is a sample of the log's bytes.
const WINDOW_TURNS: usize = 10;
const BUDGET: Budget = Budget::AtMostTimesBaseline(1.2);

/// The resources that one turn has used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct TurnCost {
    /// KiB written to the write-ahead log.
    log_kib: f64,
    /// Growth of the database in KiB.
    grown_kib: f64,
    /// KiB written to disk, as counted by the kernel: the log and the checkpoints.
    disk_kib: f64,
    cpu_us: f64,
}

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let turns = bench.size.choose(200, 1_000);
    let provider = PacedProvider::start(PACE).await?;
    let late = format!("turn {turns}");
    let halves = ("second half", "first half");
    let mut log = quantity("log per turn", Unit::Kibibytes, &late, "turn 10", Some(BUDGET));
    let mut disk = quantity("disk per turn", Unit::Kibibytes, halves.0, halves.1, Some(BUDGET));
    let mut grown = quantity("growth per turn", Unit::Kibibytes, halves.0, halves.1, Some(BUDGET));
    let mut cpu = quantity("processor per turn", Unit::Microseconds, &late, "turn 10", None);
    for round in 0..bench.rounds {
        bench.report_round(&format!("bytes-per-turn, {turns} turns"), round);
        let setup = EngineSetup::new(&bench.binary, bench.new_folder()?, provider.model_config())?;
        let (engine, _) = setup.start()?;
        let costs = run_thread(&engine, &setup.brain(), turns).await?;
        let windows = (last_turns(&costs, WINDOW_TURNS), window_around(&costs, EARLY_TURN));
        let halves = (last_turns(&costs, turns / 2), costs.get(..turns / 2));
        add_samples(&mut log, windows, |cost| cost.log_kib);
        add_samples(&mut cpu, windows, |cost| cost.cpu_us);
        add_samples(&mut disk, halves, |cost| cost.disk_kib);
        add_samples(&mut grown, halves, |cost| cost.grown_kib);
    }
    Ok(vec![log, disk, grown, cpu])
}

/// Runs a thread of `turns` turns.
async fn run_thread(engine: &Engine, brain: &Path, turns: usize) -> anyhow::Result<Vec<TurnCost>> {
    let mut client = engine.connect().await?;
    let state = || {
        let log = WalState::of_database(brain)
            .context("the state of the brain's write-ahead log cannot be read")?;
        anyhow::Ok((log, usage::bytes_written(&engine.process)?, CpuUsage::measure(&engine.process)?))
    };
    let mut before = state()?;
    let mut costs = Vec::new();
    for _ in 0..turns {
        let last_ts = run_turn(engine, &mut client, TASK).await?;
        // If the task's clock ran ahead, later turns would wait between their events.
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        tokio::time::sleep(Duration::from_millis(last_ts.unsigned_abs()).saturating_sub(now)).await;
        let after = state()?;
        costs.push(TurnCost {
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
    Ok(f64::from(u32::try_from(bytes).context("the turn has written 4 GiB or more")?) / 1_024.0)
}

/// Returns the costs of the turns around this one.
fn window_around(costs: &[TurnCost], turn: usize) -> Option<&[TurnCost]> {
    let first = turn.checked_sub(WINDOW_TURNS / 2)?;
    costs.get(first..first + WINDOW_TURNS)
}

/// Returns the costs of the last `turns` turns.
fn last_turns(costs: &[TurnCost], turns: usize) -> Option<&[TurnCost]> {
    costs.get(costs.len().checked_sub(turns)?..)
}

fn mean(costs: &[TurnCost], part: fn(&TurnCost) -> f64) -> Option<f64> {
    let count = u32::try_from(costs.len()).ok().filter(|count| *count > 0)?;
    Some(costs.iter().map(part).sum::<f64>() / f64::from(count))
}

/// Adds a sample of the late turns and one of the early ones.
fn add_samples(
    quantity: &mut Quantity,
    (late, early): (Option<&[TurnCost]>, Option<&[TurnCost]>),
    part: fn(&TurnCost) -> f64,
) {
    let sample = |costs: Option<&[TurnCost]>| costs.and_then(|costs| mean(costs, part));
    quantity.add(sample(late), sample(early));
}

fn quantity(what: &str, unit: Unit, late: &str, early: &str, budget: Option<Budget>) -> Quantity {
    Quantity {
        name: what.into(),
        unit,
        subject: Subject::new(format!("engine, {late}")),
        baselines: vec![Subject::comparison(early)],
        budget,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "the means are exact")]
    fn windows_stand_around_the_turn_and_at_the_end() {
        let costs: Vec<TurnCost> =
            (1..=20_u32).map(|turn| TurnCost { log_kib: f64::from(turn), ..TurnCost::default() }).collect();
        let log = |cost: &TurnCost| cost.log_kib;
        assert_eq!(mean(window_around(&costs, EARLY_TURN).unwrap(), log).unwrap(), 10.5);
        assert_eq!(mean(last_turns(&costs, WINDOW_TURNS).unwrap(), log).unwrap(), 15.5);
        assert_eq!(window_around(&costs, 18), None);
        assert_eq!(last_turns(&costs, 21), None);
        assert_eq!(mean(&[], log), None);
    }
}
