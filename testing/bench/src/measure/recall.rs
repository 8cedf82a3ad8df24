//! Measures what recall costs the user who waits: the first delta of a turn that recalls memories, compared with one
//! of the same task that recalls nothing.

use anyhow::ensure;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::client::Client;
use crate::context::{BenchContext, log_progress};
use crate::engine::{Engine, EngineSetup};
use crate::paced_provider::{Pace, PacedProvider};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;
use crate::streamed;

/// The tasks of the filled brain and the turns of each; a turn has a message of the user and one of the model.
const TASKS: u32 = 100;
const TURNS_PER_TASK: u32 = 50;
const CONCURRENT_TASKS: usize = 8;
/// The turns of each kind per round, and those at its beginning that do not count.
const TURNS_PER_ROUND: u32 = 100;
const WARM_UP: usize = 10;
const PACE: Pace = Pace { deltas: 20, pause: None };
/// A message without a word to search for.
const WORDLESS: &str = "And what about that?";

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let provider = PacedProvider::start(PACE).await?;
    let setup = EngineSetup::new(&bench.binary, bench.new_folder()?, provider.model_config())?;
    let (engine, _) = setup.start()?;
    log_progress(&format!("recall: writing {} messages", TASKS * TURNS_PER_TASK * 2));
    fill(&engine).await?;

    let mut quantities = [(50, Some(Budget::AboveBaseline(0.2))), (99, None)].map(|(percent, budget)| {
        let quantity = Quantity {
            name: format!("first delta p{percent}"),
            unit: Unit::Milliseconds,
            subject: Subject::new("a turn that recalls memories"),
            baselines: vec![Subject::comparison("one that recalls nothing")],
            budget,
        };
        (percent, quantity)
    });
    let mut client = engine.connect().await?;
    for round in 0..bench.rounds {
        bench.report_round("recall", round);
        let (mut recalling, mut plain) = (Vec::new(), Vec::new());
        for turn in 0..TURNS_PER_ROUND {
            // Each topic of its own, because a conversation is not told again what it shows.
            let topic = u32::try_from(round)? * TURNS_PER_ROUND + turn;
            let task = format!("asked-{round}");
            recalling.push(first_delta_ms(&engine, &mut client, (&task, &question(topic)), true).await?);
            plain.push(first_delta_ms(&engine, &mut client, (&task, WORDLESS), false).await?);
        }
        for (percent, quantity) in &mut quantities {
            let warm = |times: &[f64]| percentile(times.get(WARM_UP..).unwrap_or_default(), *percent);
            quantity.add(warm(&recalling), warm(&plain));
        }
    }
    Ok(quantities.into_iter().map(|(_, quantity)| quantity).collect())
}

/// Tells the engine one fact per turn.
async fn fill(engine: &Engine) -> anyhow::Result<()> {
    stream::iter(0..TASKS)
        .map(async |task| {
            let mut client = engine.connect().await?;
            for turn in 0..TURNS_PER_TASK {
                let fact = fact(task * TURNS_PER_TASK + turn);
                let execute = engine.execute_with(&client, &format!("told-{task}"), &fact, None)?;
                streamed::send_sse(&mut client, execute).await?.turn_text()?;
            }
            anyhow::Ok(())
        })
        .buffer_unordered(CONCURRENT_TASKS)
        .try_collect()
        .await
}

/// Runs a turn and returns the time to its first delta in milliseconds.
///
/// # Errors
/// The turn recalled something although it was not expected to, or nothing although it was.
async fn first_delta_ms(
    engine: &Engine,
    client: &mut Client,
    (task, message): (&str, &str),
    recalls: bool,
) -> anyhow::Result<f64> {
    let execute = engine.execute_with(client, task, message, None)?;
    let response = streamed::send_sse(client, execute).await?;
    let has_recalled = response.events().iter().any(|(_, sse)| {
        sse.event.as_deref() == Some("working_memory_update")
            && sse.data.as_deref().is_some_and(|data| data.contains("\"recalled\""))
    });
    ensure!(has_recalled == recalls, "`{message}`: recalled: {has_recalled}, expected: {recalls}");
    Ok(response.turn_text()?.first.as_secs_f64() * 1_000.0)
}

/// A fact about a topic: two rare words, and some that many facts share.
fn fact(topic: u32) -> String {
    let (person, place) = (name(topic), name(topic + 1_000_000));
    let verb = ["visited", "repaired", "painted", "sold", "borrowed"].get(share(topic, 5));
    let thing = ["bicycle", "kitchen", "violin", "garden", "telescope", "boat"].get(share(topic / 5, 6));
    let (verb, thing) = (verb.unwrap_or(&"saw"), thing.unwrap_or(&"thing"));
    format!(
        "By the way, {person} {verb} the {thing} at {place} last week, and everybody was rather surprised."
    )
}

/// A question about a fact that was told.
fn question(topic: u32) -> String {
    let topic = topic.wrapping_mul(7_919) % (TASKS * TURNS_PER_TASK);
    format!("What was it again with {} and {}?", name(topic), name(topic + 1_000_000))
}

/// A made-up name, different for each number.
fn name(number: u32) -> String {
    const SYLLABLES: [&str; 16] =
        ["ba", "do", "fi", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "vo", "ze"];
    let mut rest = number.wrapping_mul(2_654_435_761);
    let mut name = String::from("Q");
    for _ in 0..8 {
        name.push_str(SYLLABLES.get(share(rest, 16)).unwrap_or(&"x"));
        rest /= 16;
    }
    name
}

/// An index below `count`, from a number.
fn share(number: u32, count: u32) -> usize {
    usize::try_from(number % count).unwrap_or_default()
}
