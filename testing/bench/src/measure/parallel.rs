//! Measures many concurrent streaming turns: the lag of the deltas, and how far the events' timestamps run ahead.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use api::event::SentEvent;
use futures::future::try_join_all;
use http_body_util::Full;
use hyper::Method;

use crate::client::Client;
use crate::context::BenchContext;
use crate::engine::{Engine, EngineSetup};
use crate::paced_provider::{Pace, PacedProvider, parse_send_times};
use crate::provider::Wire;
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;
use crate::streamed::{self, StreamedResponse};

const CONCURRENT_TURNS: [u32; 2] = [10, 100];
/// The rate of each turn.
const DELTAS_PER_SECOND: u32 = 200;
/// Deltas sent within this time after the first one are not counted, because turns are still starting.
const WARM_UP: Duration = Duration::from_millis(500);
/// How far the timestamps may run ahead. Events stored together have timestamps one millisecond apart, and a turn
/// ends with three such events.
const MAX_LEAD_MS: f64 = 3.0;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let seconds = bench.size.choose(2, 5);
    let pace =
        Pace { deltas: seconds * DELTAS_PER_SECOND, pause: Some(Duration::from_secs(1) / DELTAS_PER_SECOND) };
    let provider = PacedProvider::start(pace).await?;
    let (engine, _) =
        EngineSetup::new(&bench.binary, bench.new_folder()?, provider.model_config())?.start()?;
    let mut quantities = Vec::new();
    for concurrency in CONCURRENT_TURNS {
        let subject =
            ParallelTurns { provider: &provider, engine: &engine, concurrency, deltas: pace.deltas };
        quantities.extend(subject.measure(bench).await?);
    }
    Ok(quantities)
}

struct ParallelTurns<'a> {
    provider: &'a PacedProvider,
    engine: &'a Engine,
    concurrency: u32,
    deltas: u32,
}

impl ParallelTurns<'_> {
    async fn measure(&self, bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
        let [mut p50, mut p99] = [50, 99].map(|percent| self.lag(percent));
        let mut lead = self.quantity("clock lead", Unit::Milliseconds, Some(Budget::AtMost(MAX_LEAD_MS)));
        let mut cpu = self.quantity("processor per delta", Unit::Microseconds, None);
        for round in 0..bench.rounds {
            bench.report_round(&format!("parallel, {} at once", self.concurrency), round);
            let before = self.engine.process.cpu_time()?;
            let ours = self.run_turns(round).await?;
            let used = self.engine.process.cpu_time()?.saturating_sub(before);
            let direct = self.run_direct().await?;
            for (quantity, percent) in [(&mut p50, 50), (&mut p99, 99)] {
                quantity.add(percentile(&ours.lags_ms, percent), percentile(&direct, percent));
            }
            lead.add(percentile(&ours.leads_ms, 100), None);
            let deltas = f64::from(self.deltas * self.concurrency);
            cpu.add(used.as_secs_f64() * 1_000_000.0 / deltas, None);
        }
        Ok(vec![p50, p99, lead, cpu])
    }

    fn lag(&self, percent: usize) -> Quantity {
        // The budget applies to the highest number of turns.
        let has_budget = percent == 99 && Some(&self.concurrency) == CONCURRENT_TURNS.last();
        let budget = has_budget.then_some(Budget::AtMost(5.0));
        let quantity = self.quantity(&format!("lag p{percent}"), Unit::Milliseconds, budget);
        Quantity { baselines: vec![Subject::new("client to provider")], ..quantity }
    }

    fn quantity(&self, what: &str, unit: Unit, budget: Option<Budget>) -> Quantity {
        let ours = Subject::new(format!("{} turns at once", self.concurrency));
        Quantity { name: what.into(), unit, subject: ours, baselines: Vec::new(), budget }
    }

    /// Runs concurrent turns of the engine, each in a task of its own.
    async fn run_turns(&self, round: usize) -> anyhow::Result<StreamTimings> {
        let turn = async |number| {
            let mut client = self.engine.connect().await?;
            let task = format!("parallel-{}-{round}-{number}", self.concurrency);
            let execute = self.engine.execute(&client, &task)?;
            streamed::send_sse(&mut client, execute).await
        };
        let wall = WallClock::now()?;
        let responses = try_join_all((0..self.concurrency).map(turn)).await?;
        // The events are parsed only now, when no turn is running any more.
        let mut timings = StreamTimings::default();
        let mut deltas = Vec::new();
        for response in &responses {
            response.turn_text()?;
            for (at, sse) in response.events() {
                let (kind, data) = sse
                    .event
                    .as_deref()
                    .zip(sse.data.as_deref())
                    .context("an event has no type or no data")?;
                let event = SentEvent::from_sse(kind, data)?;
                timings.leads_ms.push(wall.lead_ms(event.ts, *at));
                if let api::event::Event::TextDelta(delta) = event.event {
                    deltas.extend(parse_send_times(&delta.text)?.into_iter().map(|sent| (sent, *at)));
                }
            }
        }
        timings.lags_ms = self.lags_ms(&deltas)?;
        Ok(timings)
    }

    /// Sends concurrent requests directly to the provider.
    async fn run_direct(&self) -> anyhow::Result<Vec<f64>> {
        let answer = async |_| {
            let mut client = Client::connect(self.provider.address()).await?;
            let request = client.request(Method::POST, Wire::Anthropic.path()).body(Full::default())?;
            streamed::send_sse(&mut client, request).await
        };
        let responses: Vec<StreamedResponse> = try_join_all((0..self.concurrency).map(answer)).await?;
        let mut deltas = Vec::new();
        for response in &responses {
            let text = |(at, text): (Instant, String)| {
                Ok::<_, anyhow::Error>(parse_send_times(&text)?.into_iter().map(move |sent| (sent, at)))
            };
            for delta in response.deltas(Wire::Anthropic)?.into_iter().map(text) {
                deltas.extend(delta?);
            }
        }
        self.lags_ms(&deltas)
    }

    /// Returns the time from the sending of each delta to its receipt, in milliseconds.
    fn lags_ms(&self, deltas: &[(Duration, Instant)]) -> anyhow::Result<Vec<f64>> {
        let expected = usize::try_from(self.deltas * self.concurrency)?;
        ensure!(deltas.len() == expected, "{} deltas were received instead of {expected}", deltas.len());
        let first = deltas.iter().map(|(sent, _)| *sent).min().context("no delta was received")?;
        let warm_deltas = deltas.iter().filter(|(sent, _)| *sent >= first + WARM_UP);
        let lag = |(sent, at): &(Duration, Instant)| {
            at.saturating_duration_since(self.provider.started_at() + *sent).as_secs_f64() * 1_000.0
        };
        Ok(warm_deltas.map(lag).collect())
    }
}

#[derive(Default)]
struct StreamTimings {
    lags_ms: Vec<f64>,
    leads_ms: Vec<f64>,
}

/// Simultaneous readings of both clocks, to convert an `Instant` to Unix time.
struct WallClock {
    at: Instant,
    unix: Duration,
}

impl WallClock {
    fn now() -> anyhow::Result<Self> {
        Ok(Self { at: Instant::now(), unix: SystemTime::now().duration_since(UNIX_EPOCH)? })
    }

    /// Returns by how many milliseconds `ts` is ahead of `at`; negative if it is behind.
    fn lead_ms(&self, ts: i64, at: Instant) -> f64 {
        let unix = self.unix + at.saturating_duration_since(self.at);
        let stamped = Duration::from_millis(ts.unsigned_abs());
        (stamped.as_secs_f64() - unix.as_secs_f64()) * 1_000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_leads_by_what_it_shows_beyond_the_receipt() {
        let wall = WallClock { at: Instant::now(), unix: Duration::from_secs(5) };
        let later = wall.at + Duration::from_millis(10);
        for (ts, lead) in [(5_010, 0.0), (5_013, 3.0), (5_004, -6.0)] {
            assert!((wall.lead_ms(ts, later) - lead).abs() < 0.001, "{ts}");
        }
    }
}
