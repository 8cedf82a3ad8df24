//! What one product costs another: the admits of a quiet product, one every few milliseconds on a kept connection,
//! while a noisy one does its worst. The same admits on a quiet host stand beside it.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use contract::orchestrator::Admission;

use crate::bench::Bench;
use crate::orchestrator::{Orchestrator, Site, admit};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;

use super::noisy::{Noise, Noisy};

/// Whose admits are measured. The user's engine runs.
const QUIET_USER: &str = "quiet";
/// Between two admits: far less than an orchestrator can answer.
const PACE: Duration = Duration::from_millis(5);
/// Every admit of a round counts; the slowest percent of them decides.
const PERCENTILES: [usize; 2] = [50, 99];

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let site = Site::new(bench, Noisy::PORTS)?;
    let orchestrator = site.start().await?;
    let mut client = orchestrator.connect().await?;
    orchestrator.provision(&mut client, QUIET_USER).await?;
    let noisy = Noisy::register(&site, &orchestrator).await?;
    let for_how_long = bench.size.of(Duration::from_secs(2), Duration::from_secs(8));

    let mut quantities = Vec::new();
    for noise in Noise::EACH {
        let mut measured = PERCENTILES.map(|percent| quantity(noise, percent));
        for round in 0..bench.rounds {
            bench.progress(&format!("admits beside {}", noise.name()), round);
            let quiet = admits(&orchestrator, for_how_long).await?;
            let at_work = noisy.begin(noise).await?;
            let beside = admits(&orchestrator, for_how_long).await;
            // Also where the admits failed: what was begun must end.
            at_work.end().await?;
            let beside = beside?;
            for (quantity, percent) in measured.iter_mut().zip(PERCENTILES) {
                quantity.add(percentile(&beside, percent), percentile(&quiet, percent));
            }
        }
        quantities.extend(measured);
    }
    orchestrator.end_within(Noisy::END)?;
    Ok(quantities)
}

/// The latencies of admits of the quiet product, in milliseconds.
async fn admits(orchestrator: &Orchestrator, for_how_long: Duration) -> anyhow::Result<Vec<f64>> {
    let mut client = orchestrator.connect().await?;
    let mut latencies = Vec::new();
    let began = Instant::now();
    let mut pace = tokio::time::interval(PACE);
    while began.elapsed() < for_how_long {
        pace.tick().await;
        let request = admit(&client, QUIET_USER, orchestrator.key())?;
        let sent = Instant::now();
        let (status, body) = client.whole(request).await?;
        latencies.push(sent.elapsed().as_secs_f64() * 1_000.0);
        ensure!(status == hyper::StatusCode::OK, "answered {status}: {}", String::from_utf8_lossy(&body));
        is_admitted(&body)?;
    }
    Ok(latencies)
}

fn is_admitted(body: &Bytes) -> anyhow::Result<()> {
    let admission: Admission = serde_json::from_slice(body).context("an answer that is no admission")?;
    ensure!(admission.engine.is_some(), "the quiet user was not admitted");
    Ok(())
}

fn quantity(noise: Noise, percent: usize) -> Quantity {
    Quantity {
        what: format!("admit p{percent}"),
        unit: Unit::Milliseconds,
        ours: Subject::new(format!("beside {}", noise.name())),
        floors: vec![Subject::beside("a quiet host")],
        budget: (percent == 99).then_some(Budget::MostTimesFloor(2.0)),
    }
}

/// The admin key that an `up` keeps in its folder.
pub(super) fn admin_key(site: &Site) -> anyhow::Result<String> {
    let path = site.home().join("admin.key");
    let key = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(key.trim().to_owned())
}

/// An address of this machine that is not the one that the quiet product's calls come from.
pub(super) const NOISY_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2)), 0);
