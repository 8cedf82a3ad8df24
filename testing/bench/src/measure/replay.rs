//! Measures the replay of a long task.
//!
//! Each event of a task has a millisecond of its own, so creating them takes a while: at most 1,000 per second.
//! The task is created once, through the API.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use api::event::SentEvent;
use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::Full;
use hyper::{Method, StatusCode};
use sse_stream::SseStream;

use crate::baselines::{self, BaselineKind, REPLAY};
use crate::client::{Client, HttpRequest};
use crate::context::{BenchContext, log_progress};
use crate::engine::{Engine, EngineSetup};
use crate::paced_provider::{Pace, PacedProvider};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::report::{Quantity, Subject, Unit};
use crate::streamed;

const TASK: &str = "long";
/// The deltas of one turn. At this pace the engine merges few of them.
const PACE: Pace = Pace { deltas: 2_500, pause: Some(Duration::from_millis(1)) };

/// A replay and its duration.
struct ReplayResult {
    bytes: Bytes,
    elapsed: Duration,
}

impl ReplayResult {
    /// Returns the rate of `count` items in the replay's time.
    fn per_second(&self, count: usize) -> anyhow::Result<f64> {
        Ok(f64::from(u32::try_from(count)?) / self.elapsed.as_secs_f64())
    }

    fn megabytes_per_second(&self) -> anyhow::Result<f64> {
        Ok(self.per_second(self.bytes.len())? / 1_000_000.0)
    }
}

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let provider = PacedProvider::start(PACE).await?;
    let setup = EngineSetup::new(&bench.binary, bench.new_folder()?, provider.model_config())?;
    let events = bench.size.choose(10_000, 100_000);
    create_events(&setup, events).await?;
    // After a restart, nothing of the task is in memory.
    let (engine, _) = setup.start()?;
    let first = replay_engine(&engine).await?;
    let events = count_events(&first.bytes, events).await?;
    let (baseline, port) = start_baseline(bench, &first.bytes)?;

    let mut rate = quantity(Unit::PerSecond, events);
    let mut volume = quantity(Unit::MegabytesPerSecond, events);
    for round in 0..bench.rounds {
        bench.report_round("replay", round);
        let (ours, bare) = (replay_engine(&engine).await?, replay_baseline(port).await?);
        ensure!(ours.bytes == first.bytes, "two replays of one task differ");
        ensure!(bare.bytes == first.bytes, "the baseline's replay differs from the engine's");
        rate.add(ours.per_second(events)?, bare.per_second(events)?);
        volume.add(ours.megabytes_per_second()?, bare.megabytes_per_second()?);
    }
    drop(baseline);
    Ok(vec![rate, volume])
}

/// Runs turns on the task until it has enough events, and stops the engine.
async fn create_events(setup: &EngineSetup<'_>, events: usize) -> anyhow::Result<()> {
    let (mut engine, _) = setup.start()?;
    let mut client = engine.connect().await?;
    let mut stored = 0;
    while stored < events {
        log_progress(&format!("replay: {stored} of {events} events"));
        let execute = engine.execute(&client, TASK)?;
        let response = streamed::send_sse(&mut client, execute).await?;
        response.turn_text()?;
        stored += response.events().len();
    }
    engine.process.stop().map(drop)
}

fn start_baseline(bench: &BenchContext, replay: &[u8]) -> anyhow::Result<(Process, u16)> {
    let folder = bench.new_folder()?;
    baselines::store_replay(&folder, replay).context("the baseline's database cannot be written")?;
    let port = free_port()?;
    let command = baselines::command(&bench.baseline_program, BaselineKind::Replay, port, &folder)?;
    let mut process = Process::spawn(command, "the replay baseline", log_file(&folder, "baseline"))?;
    probe::wait_until_healthy(&mut process, port)?;
    Ok((process, port))
}

async fn replay_engine(engine: &Engine) -> anyhow::Result<ReplayResult> {
    let mut client = engine.connect().await?;
    let request = engine.replay(&client, TASK)?;
    run_replay(&mut client, request).await
}

async fn replay_baseline(port: u16) -> anyhow::Result<ReplayResult> {
    let mut client = Client::connect(([127, 0, 0, 1], port).into()).await?;
    let request = client.request(Method::GET, REPLAY).body(Full::default())?;
    run_replay(&mut client, request).await
}

async fn run_replay(client: &mut Client, request: HttpRequest) -> anyhow::Result<ReplayResult> {
    let began = Instant::now();
    let (status, bytes) = client.fetch(request).await?;
    let took = began.elapsed();
    ensure!(status == StatusCode::OK, "the replay was answered with {status}");
    Ok(ReplayResult { bytes, elapsed: took })
}

/// Counts the events of a replay and checks their order.
async fn count_events(replay: &Bytes, at_least: usize) -> anyhow::Result<usize> {
    let mut stream = SseStream::new(Full::new(replay.clone()));
    let (mut events, mut last_ts) = (0, 0);
    while let Some(sse) = stream.next().await {
        let sse = sse?;
        let (Some(kind), Some(data)) = (&sse.event, &sse.data) else { bail!("{sse:?} is not an event") };
        let event = SentEvent::from_sse(kind, data).context("an unknown event")?;
        ensure!(event.ts > last_ts, "`{kind}` has the time {}, and the event before it {last_ts}", event.ts);
        last_ts = event.ts;
        events += 1;
    }
    ensure!(events >= at_least, "the replay has {events} events instead of at least {at_least}");
    Ok(events)
}

fn quantity(unit: Unit, events: usize) -> Quantity {
    Quantity {
        name: "replay".into(),
        unit,
        subject: Subject::new(format!("engine, {events} events")),
        baselines: vec![Subject::new("bare axum and rusqlite")],
        budget: None,
    }
}
