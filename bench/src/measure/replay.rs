//! The replay of a long task.
//!
//! A task's clock gives a millisecond to each event, so a task with very many of them takes its time to be made:
//! 1,000 a second at most. It is made through the API, once.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use contract::event::SentEvent;
use futures::StreamExt as _;
use http_body_util::Full;
use hyper::{Method, StatusCode};
use sse_stream::SseStream;

use crate::bench::{Bench, note};
use crate::client::{Client, Outgoing};
use crate::engine::{Engine, Home};
use crate::floors::{self, Kind, REPLAY};
use crate::paced::{Pace, Paced};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::report::{Quantity, Subject, Unit};
use crate::told;

const TASK: &str = "long";
/// Deltas of one turn. At this pace the engine merges few of them.
const PACE: Pace = Pace { deltas: 2_500, pause: Some(Duration::from_millis(1)) };

/// A replay, and what it took.
struct Replayed {
    bytes: Bytes,
    took: Duration,
}

impl Replayed {
    /// The rate of something of which there are `count` in it.
    fn per_second(&self, count: usize) -> anyhow::Result<f64> {
        Ok(f64::from(u32::try_from(count)?) / self.took.as_secs_f64())
    }

    fn megabytes_per_second(&self) -> anyhow::Result<f64> {
        Ok(self.per_second(self.bytes.len())? / 1_000_000.0)
    }
}

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let provider = Paced::start(PACE).await?;
    let home = Home::new(&bench.binary, bench.folder()?, provider.model())?;
    let events = bench.size.of(10_000, 100_000);
    fill(&home, events).await?;
    // A new start: nothing of the task is in memory.
    let (engine, _) = home.start()?;
    let first = ours(&engine).await?;
    let events = count(&first.bytes, events).await?;
    let (floor, port) = floor(bench, &first.bytes)?;

    let mut rate = quantity(Unit::PerSecond, events);
    let mut volume = quantity(Unit::MegabytesPerSecond, events);
    for round in 0..bench.rounds {
        bench.progress("replay", round);
        let (ours, bare) = (ours(&engine).await?, bare(port).await?);
        ensure!(ours.bytes == first.bytes, "two replays of one task differ");
        ensure!(bare.bytes == first.bytes, "the floor's replay is not the engine's");
        rate.add(ours.per_second(events)?, bare.per_second(events)?);
        volume.add(ours.megabytes_per_second()?, bare.megabytes_per_second()?);
    }
    drop(floor);
    Ok(vec![rate, volume])
}

/// Runs turns on the task until it has enough events, and ends the engine.
async fn fill(home: &Home<'_>, events: usize) -> anyhow::Result<()> {
    let (mut engine, _) = home.start()?;
    let mut client = engine.connect().await?;
    let mut stored = 0;
    while stored < events {
        note(&format!("replay: {stored} of {events} events"));
        let execute = engine.execute(&client, TASK)?;
        let told = told::stream(&mut client, execute).await?;
        told.turn()?;
        stored += told.events().len();
    }
    engine.process.end().map(drop)
}

fn floor(bench: &Bench, replay: &[u8]) -> anyhow::Result<(Process, u16)> {
    let folder = bench.folder()?;
    floors::store_replay(&folder, replay).context("the floor's database cannot be written")?;
    let port = free_port()?;
    let command = floors::command(&bench.floors, Kind::Replay, port, &folder)?;
    let mut process = Process::spawn(command, "the replay floor", log_file(&folder, "floor"))?;
    probe::until_well(&mut process, port)?;
    Ok((process, port))
}

async fn ours(engine: &Engine) -> anyhow::Result<Replayed> {
    let mut client = engine.connect().await?;
    let request = engine.replay(&client, TASK)?;
    replayed(&mut client, request).await
}

async fn bare(port: u16) -> anyhow::Result<Replayed> {
    let mut client = Client::connect(([127, 0, 0, 1], port).into()).await?;
    let request = client.request(Method::GET, REPLAY).body(Full::default())?;
    replayed(&mut client, request).await
}

async fn replayed(client: &mut Client, request: Outgoing) -> anyhow::Result<Replayed> {
    let began = Instant::now();
    let (status, bytes) = client.whole(request).await?;
    let took = began.elapsed();
    ensure!(status == StatusCode::OK, "a replay was answered {status}");
    Ok(Replayed { bytes, took })
}

/// How many events a replay has, which is checked from its first to its last.
async fn count(replay: &Bytes, at_least: usize) -> anyhow::Result<usize> {
    let mut stream = SseStream::new(Full::new(replay.clone()));
    let (mut events, mut last_ts) = (0, 0);
    while let Some(sse) = stream.next().await {
        let sse = sse?;
        let (Some(kind), Some(data)) = (&sse.event, &sse.data) else { bail!("{sse:?} is no event") };
        let event = SentEvent::from_sse(kind, data).context("an unknown event")?;
        ensure!(event.ts > last_ts, "`{kind}` has the time {}, and the event before it {last_ts}", event.ts);
        last_ts = event.ts;
        events += 1;
    }
    ensure!(events >= at_least, "the replay has {events} events of at least {at_least}");
    Ok(events)
}

fn quantity(unit: Unit, events: usize) -> Quantity {
    Quantity {
        what: "replay".into(),
        unit,
        ours: Subject::new(format!("engine, {events} events")),
        floors: vec![Subject::new("bare axum and rusqlite")],
        budget: None,
    }
}
