//! The measurement of one number of engines.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kube::Client;

use super::deployment::Deployment;
use super::plain::{MAX_PLAIN, PlainEngines};
use super::requests::Requests;
use crate::context::log_progress;
use crate::stats::median;
use crate::usage::CpuUsage;

/// Requests that ended before this may still be written down.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// The time within which all engines must be checked after a restart: two intervals of the checks, and the start.
const RESTART_TIMEOUT: Duration = Duration::from_mins(3);

/// What was measured with some number of engines.
pub(super) struct Measured {
    pub(super) engines: u32,
    /// How many of them were added, and with what.
    pub(super) added: u32,
    pub(super) failures: u32,
    pub(super) provisions_per_second: f64,
    pub(super) provision_ms: Option<f64>,
    /// Of the orchestrator, without its supervision of those that run.
    pub(super) provision_cpu_us: f64,
    pub(super) provision_requests: Requests,
    pub(super) plain_per_second: f64,
    pub(super) plain_ms: Option<f64>,
    /// Of the orchestrator, for each engine and second in which nothing happens.
    pub(super) supervision_us: f64,
    pub(super) memory_kib: f64,
    pub(super) idle_requests: Requests,
    pub(super) window: Duration,
    /// Samples of the times until a restarted orchestrator is ready, has all engines, and has checked each.
    pub(super) restarts_ms: [Vec<f64>; 3],
    pub(super) stops_ms: Vec<f64>,
    pub(super) starts_ms: Vec<f64>,
}

/// Adds engines until there are `engines`, and measures them.
pub(super) async fn measure(
    deployment: &mut Deployment,
    client: &Client,
    engines: u32,
    rounds: usize,
    window: Duration,
) -> anyhow::Result<Measured> {
    let added = engines - deployment.provisioned;
    ensure!(added > 0, "there are {engines} engines already");
    log_progress(&format!("kubernetes: provisioning {added} engines"));
    deployment.requests.new_requests()?;
    let before = CpuUsage::measure(&deployment.process)?;
    let provisioned = deployment.provision(engines).await?;
    let cpu_us = CpuUsage::measure(&deployment.process)?.micros_since(&before);
    tokio::time::sleep(SETTLE_TIME).await;
    let provision_requests = deployment.requests.new_requests()?;
    let plain = PlainEngines::new(client.clone()).await?;
    let prefix = format!("plain-{engines}");
    let plain_count = added.min(MAX_PLAIN);
    let plain = plain.measure(&deployment.engines, &prefix, plain_count).await?;
    deployment.others += plain_count;

    let idle = idle(deployment, window).await?;
    let supervision_us = idle.cpu_us_per_s / f64::from(engines);
    // The engines that ran already were supervised meanwhile; their number grew evenly.
    let running = f64::from(engines) - f64::from(added) / 2.0;
    let supervised_us = supervision_us * running * provisioned.elapsed.as_secs_f64();
    let mut measured = Measured {
        engines,
        added,
        failures: provisioned.failures,
        provisions_per_second: f64::from(added) / provisioned.elapsed.as_secs_f64(),
        provision_ms: median(&provisioned.times_ms),
        provision_cpu_us: (cpu_us - supervised_us).max(0.0) / f64::from(added),
        provision_requests,
        plain_per_second: plain.per_second,
        plain_ms: median(&plain.times_ms),
        supervision_us,
        memory_kib: idle.memory_mib * 1_024.0 / f64::from(engines),
        idle_requests: idle.requests,
        window,
        restarts_ms: Default::default(),
        stops_ms: Vec::new(),
        starts_ms: Vec::new(),
    };
    for round in 0..rounds {
        log_progress(&format!("kubernetes: restart {} of {rounds}", round + 1));
        let times = deployment.restart(RESTART_TIMEOUT).await?;
        measured.restarts_ms.iter_mut().zip(times).for_each(|(samples, took)| samples.push(took));
    }
    for round in 0..rounds {
        let number = u32::try_from(round)? % engines;
        let [stop, start] = deployment.stop_and_start(number).await?;
        measured.stops_ms.push(stop);
        measured.starts_ms.push(start);
    }
    let running = deployment.running().await?;
    ensure!(running == u64::from(engines), "{running} of {engines} engines run at the end");
    Ok(measured)
}

struct Idle {
    cpu_us_per_s: f64,
    /// What the orchestrator has allocated since it had no engines.
    memory_mib: f64,
    requests: Requests,
}

/// Measures the orchestrator while it only supervises.
async fn idle(deployment: &mut Deployment, window: Duration) -> anyhow::Result<Idle> {
    log_progress(&format!("kubernetes: measuring supervision for {} s", window.as_secs()));
    tokio::time::sleep(SETTLE_TIME).await;
    deployment.requests.new_requests()?;
    let before = CpuUsage::measure(&deployment.process)?;
    let began = Instant::now();
    tokio::time::sleep(window).await;
    let used_us = CpuUsage::measure(&deployment.process)?.micros_since(&before);
    let cpu_us_per_s = used_us / began.elapsed().as_secs_f64();
    let requests = deployment.requests.new_requests()?;
    let memory = deployment.process.memory().context("the orchestrator's memory")?;
    Ok(Idle { cpu_us_per_s, memory_mib: memory.anonymous_mib - deployment.empty.anonymous_mib, requests })
}
