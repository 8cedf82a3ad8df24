//! Measures very many running engines: the cost of supervision, and the time until a restarted orchestrator, after
//! a SIGKILL, has adopted them again, while they keep serving requests.

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

/// Additional ports, in case other programs use some.
const SPARE_PORTS: u32 = 100;
/// The number of concurrent provisions.
const PROVISION_CONCURRENCY: usize = 8;
/// How long supervision is measured: two health checks of each engine.
const SUPERVISION_WINDOW: Duration = Duration::from_mins(1);
/// The time within which the whole fleet must be asleep.
const SLEEP_ALL_TIMEOUT: Duration = Duration::from_mins(3);
/// The memory required for each engine, and in addition for everything else, in MiB.
const ENGINE_MIB: u64 = 16;
const SPARE_MIB: u64 = 1_024;
/// The time between two checks whether all engines are adopted.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let engines: u32 = bench.size.choose(100, 1_000);
    let files = raise_file_limit()?;
    log_progress(&format!("fleet: {engines} engines; each process may open {files} files"));
    check_memory(engines)?;
    let setup = OrchestratorSetup::new(bench, engines + SPARE_PORTS)?;
    let empty_setup = OrchestratorSetup::with_few_ports(bench)?;
    let (orchestrator, empty_orchestrator) = (setup.start().await?, empty_setup.start().await?);
    let urls = provision_all(&orchestrator, engines).await?;
    let monitor = HealthMonitor::start(urls);

    let mut quantities = Quantities::new(engines);
    log_progress(&format!("fleet: measuring supervision for {} s", SUPERVISION_WINDOW.as_secs()));
    let before = [CpuUsage::measure(&orchestrator.process)?, CpuUsage::measure(&empty_orchestrator.process)?];
    let began = Instant::now();
    tokio::time::sleep(SUPERVISION_WINDOW).await;
    let after = [CpuUsage::measure(&orchestrator.process)?, CpuUsage::measure(&empty_orchestrator.process)?];
    let elapsed_us = began.elapsed().as_secs_f64() * 1_000_000.0;
    let [ours, baseline] = [0, 1].map(|at| {
        let used = after.get(at).zip(before.get(at)).map(|(after, before)| after.micros_since(before));
        used.map(|used| used / elapsed_us * 100.0)
    });
    quantities.supervision.add(ours, baseline);
    let [ours, baseline] = [orchestrator.process.memory()?, empty_orchestrator.process.memory()?];
    quantities.memory.add(ours.pss_mib, baseline.pss_mib);
    quantities.anonymous.add(ours.anonymous_mib, baseline.anonymous_mib);

    let (mut orchestrator, mut empty_orchestrator) = (orchestrator, empty_orchestrator);
    for round in 0..bench.rounds {
        bench.report_round("fleet, restart", round);
        let (ours, baseline);
        (orchestrator, ours) = restart(&setup, orchestrator, engines.into()).await?;
        (empty_orchestrator, baseline) = restart(&empty_setup, empty_orchestrator, 0).await?;
        quantities.restart.add(ours, baseline);
    }
    let report = monitor.stop().await?;
    log_progress(&format!("fleet: {} direct requests, {} failed", report.requests, report.failures));
    if let Some(failure) = &report.first_failure {
        log_progress(&format!("fleet: the first failure: {failure}"));
    }
    quantities.failures.add(f64::from(report.failures), None);
    quantities.latency.add(report.p99_ms, None);
    empty_orchestrator.shut_down()?;
    orchestrator.shut_down_within(SLEEP_ALL_TIMEOUT)?;
    Ok(quantities.into_vec())
}

/// Raises the limit on open files, of this process and its children, to the maximum, and returns it as text.
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
    let available = kib.context("/proc/meminfo has an unknown format")? / 1_024;
    let required = u64::from(engines) * ENGINE_MIB + SPARE_MIB;
    ensure!(
        available >= required,
        "{engines} engines need {required} MiB of memory, {available} are available"
    );
    Ok(())
}

/// Provisions all engines and returns their addresses.
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

/// Kills the orchestrator and starts the next one. Returns it with the time in milliseconds from its start until
/// it has adopted all engines.
async fn restart(
    setup: &OrchestratorSetup,
    orchestrator: Orchestrator,
    engines: u64,
) -> anyhow::Result<(Orchestrator, f64)> {
    orchestrator.kill()?;
    let began = Instant::now();
    // It is healthy only after it has compared its registry with the running instances.
    let next = setup.start().await?;
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
