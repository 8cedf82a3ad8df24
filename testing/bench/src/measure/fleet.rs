//! Very many running engines: what it costs to watch over them, and how soon an orchestrator that was killed has
//! them again, while they go on answering.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::orchestrator::EngineStatus;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::context::{BenchContext, log_progress};
use crate::health_monitor::HealthMonitor;
use crate::orchestrator::{Orchestrator, OrchestratorSetup};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::usage::CpuUsage;

/// Ports beyond those of the engines, for those that something else has.
const SPARE_PORTS: u32 = 100;
/// Provisions under way at once.
const PROVISION_CONCURRENCY: usize = 8;
/// How long supervision is watched: two polls of each engine.
const SUPERVISION_WINDOW: Duration = Duration::from_mins(1);
/// How long the whole fleet may take to go to sleep.
const SLEEP_ALL_TIMEOUT: Duration = Duration::from_mins(3);
/// What an engine may take of the machine's memory, and what must be left.
const ENGINE_MIB: u64 = 16;
const SPARE_MIB: u64 = 1_024;
/// Between two looks at whether all are adopted.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let engines: u32 = bench.size.choose(100, 1_000);
    let files = raise_file_limit()?;
    log_progress(&format!("fleet: {engines} engines; each process may have {files} files open"));
    check_memory(engines)?;
    let site = OrchestratorSetup::new(bench, engines + SPARE_PORTS)?;
    let empty = OrchestratorSetup::with_few_ports(bench)?;
    let (orchestrator, beside) = (site.start().await?, empty.start().await?);
    let urls = provision_all(&orchestrator, engines).await?;
    let watch = HealthMonitor::start(urls);

    let mut quantities = Quantities::new(engines);
    log_progress(&format!("fleet: left alone for {} s", SUPERVISION_WINDOW.as_secs()));
    let before = [CpuUsage::measure(&orchestrator.process)?, CpuUsage::measure(&beside.process)?];
    let began = Instant::now();
    tokio::time::sleep(SUPERVISION_WINDOW).await;
    let after = [CpuUsage::measure(&orchestrator.process)?, CpuUsage::measure(&beside.process)?];
    let elapsed_us = began.elapsed().as_secs_f64() * 1_000_000.0;
    let [ours, floor] = [0, 1].map(|at| {
        let used = after.get(at).zip(before.get(at)).map(|(after, before)| after.micros_since(before));
        used.map(|used| used / elapsed_us * 100.0)
    });
    quantities.supervision.add(ours, floor);
    let [ours, floor] = [orchestrator.process.memory()?, beside.process.memory()?];
    quantities.memory.add(ours.pss_mib, floor.pss_mib);
    quantities.anonymous.add(ours.anonymous_mib, floor.anonymous_mib);

    let (mut orchestrator, mut beside) = (orchestrator, beside);
    for round in 0..bench.rounds {
        bench.report_round("fleet, restart", round);
        let (ours, floor);
        (orchestrator, ours) = restart(&site, orchestrator, engines.into()).await?;
        (beside, floor) = restart(&empty, beside, 0).await?;
        quantities.restart.add(ours, floor);
    }
    let seen = watch.stop().await?;
    log_progress(&format!("fleet: {} direct requests, of which {} failed", seen.requests, seen.failures));
    if let Some(failure) = &seen.first_failure {
        log_progress(&format!("fleet: the first that failed: {failure}"));
    }
    quantities.failures.add(f64::from(seen.failures), None);
    quantities.latency.add(seen.p99_ms, None);
    beside.shut_down()?;
    orchestrator.shut_down_within(SLEEP_ALL_TIMEOUT)?;
    Ok(quantities.into_vec())
}

/// Raises the limit of this process and of those that it starts to what the system allows.
fn raise_file_limit() -> anyhow::Result<String> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("the limit on open files cannot be raised")?;
    Ok(getrlimit(Resource::Nofile).current.map_or_else(|| "any number of".into(), |files| files.to_string()))
}

fn check_memory(engines: u32) -> anyhow::Result<()> {
    let text = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo cannot be read")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    let available = kib.context("/proc/meminfo has no known form")? / 1_024;
    let require_field = u64::from(engines) * ENGINE_MIB + SPARE_MIB;
    ensure!(
        available >= require_field,
        "{engines} engines need {require_field} MiB of memory, {available} are available"
    );
    Ok(())
}

/// Provisions them all, and gives their addresses.
async fn provision_all(orchestrator: &Orchestrator, engines: u32) -> anyhow::Result<Vec<String>> {
    let began = Instant::now();
    let urls: Vec<String> = stream::iter(0..engines)
        .map(async |number| {
            let mut client = orchestrator.connect().await?;
            let engine = orchestrator.provision(&mut client, &format!("user-{number}")).await?;
            ensure!(engine.status == EngineStatus::Running, "provision answered {:?}", engine.status);
            anyhow::Ok(engine.url)
        })
        .buffer_unordered(PROVISION_CONCURRENCY)
        .try_collect()
        .await?;
    log_progress(&format!("fleet: {engines} engines provisioned in {:.1} s", began.elapsed().as_secs_f64()));
    Ok(urls)
}

/// Kills the orchestrator, and gives the next one with the time from its start until it has all engines.
async fn restart(
    site: &OrchestratorSetup,
    orchestrator: Orchestrator,
    engines: u64,
) -> anyhow::Result<(Orchestrator, f64)> {
    orchestrator.kill()?;
    let began = Instant::now();
    // Well only once it has compared its registry with what runs.
    let next = site.start().await?;
    let mut client = next.connect().await?;
    loop {
        let running = next.running_count(&mut client).await?;
        if running == engines {
            return Ok((next, began.elapsed().as_secs_f64() * 1_000.0));
        }
        ensure!(began.elapsed() < SLEEP_ALL_TIMEOUT, "{running} of {engines} engines run after the restart");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

struct Quantities {
    supervision: Quantity,
    memory: Quantity,
    anonymous: Quantity,
    restart: Quantity,
    failures: Quantity,
    latency: Quantity,
}

impl Quantities {
    fn new(engines: u32) -> Self {
        let ours = |what: &str, unit, budget| Quantity {
            name: what.into(),
            unit,
            subject: Subject::new(format!("orchestrator of {engines} engines")),
            baselines: vec![Subject::comparison("orchestrator of none")],
            budget,
        };
        let direct = |what: &str, unit, budget| Quantity {
            name: what.into(),
            unit,
            subject: Subject::new(format!("{engines} engines, asked directly")),
            baselines: Vec::new(),
            budget,
        };
        Self {
            supervision: ours("supervision, of one core", Unit::Percent, None),
            memory: ours("PSS", Unit::Mebibytes, None),
            anonymous: ours("of it anonymous", Unit::Mebibytes, None),
            restart: ours("restart until all are adopted", Unit::Milliseconds, Some(Budget::AtMost(5_000.0))),
            failures: direct("failed meanwhile", Unit::Failures, Some(Budget::AtMost(0.0))),
            latency: direct("/health p99 meanwhile", Unit::Milliseconds, None),
        }
    }

    fn into_vec(self) -> Vec<Quantity> {
        let Self { supervision, memory, anonymous, restart, failures, latency } = self;
        vec![supervision, memory, anonymous, restart, failures, latency]
    }
}
