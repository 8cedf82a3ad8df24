//! Measures the effect of one product on another: admits of a quiet product, one every few milliseconds on a kept
//! connection, while a noisy one causes maximum load. The comparisons are the same admits on a quiet host, and a
//! plain server that shares only the host's cores with the noisy product.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::orchestrator::Admission;
use bytes::Bytes;

use crate::baselines::{ADMIT_KEY, admit_user};
use crate::client::Client;
use crate::context::BenchContext;
use crate::orchestrator::{OrchestratorSetup, admit_request};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;

use super::admit::start_baseline;
use super::noisy_product::{Noise, NoisyProduct};

/// The user whose admits are measured, with a running engine.
const QUIET_USER: &str = "quiet";
/// The time between two admits, alternately of Roundhouse and of the plain server: a fraction of their capacity.
const ADMIT_INTERVAL: Duration = Duration::from_micros(2_500);
/// The reported percentiles, over all admits of a round.
const PERCENTILES: [usize; 2] = [50, 99];

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let setup = OrchestratorSetup::new(bench, NoisyProduct::ENGINE_PORTS)?;
    let orchestrator = setup.start().await?;
    let mut client = orchestrator.connect().await?;
    orchestrator.provision(&mut client, QUIET_USER).await?;
    let noisy = NoisyProduct::register(&setup, &orchestrator).await?;
    let (_plain, plain) = start_baseline(bench, &bench.new_folder()?)?;
    let ours = AdmitClient {
        address: orchestrator.address,
        user: QUIET_USER.to_owned(),
        key: orchestrator.platform_key(),
    };
    let plain = AdmitClient { address: plain, user: admit_user(0), key: ADMIT_KEY };
    let duration = bench.size.choose(Duration::from_secs(2), Duration::from_secs(8));

    let mut quantities = Vec::new();
    for noise in Noise::EACH {
        let mut measured = PERCENTILES.map(|percent| quantity(noise, percent));
        for round in 0..bench.rounds {
            bench.report_round(&format!("admits beside {}", noise.name()), round);
            let [quiet, _] = measure_alternating([&ours, &plain], duration).await?;
            let running_noise = noisy.start(noise).await?;
            let under_noise = measure_alternating([&ours, &plain], duration).await;
            // Before a failure is returned, the noise must be stopped.
            running_noise.stop().await?;
            let [under_noise, plain] = under_noise?;
            for (quantity, percent) in measured.iter_mut().zip(PERCENTILES) {
                quantity.add(percentile(&under_noise, percent), percentile(&quiet, percent));
                quantity
                    .baselines
                    .iter_mut()
                    .skip(1)
                    .for_each(|baseline| baseline.samples.extend(percentile(&plain, percent)));
            }
        }
        quantities.extend(measured);
    }
    orchestrator.shut_down_within(NoisyProduct::SHUTDOWN_TIMEOUT)?;
    Ok(quantities)
}

/// A user, and the server that admits it.
struct AdmitClient<'a> {
    address: SocketAddr,
    user: String,
    key: &'a str,
}

impl AdmitClient<'_> {
    /// Sends one admit and returns its latency in milliseconds.
    async fn measure_one(&self, client: &mut Client) -> anyhow::Result<f64> {
        let request = admit_request(client, &self.user, self.key)?;
        let sent = Instant::now();
        let (status, body) = client.fetch(request).await?;
        let took = sent.elapsed().as_secs_f64() * 1_000.0;
        ensure!(
            status == hyper::StatusCode::OK,
            "the admit was answered with {status}: {}",
            String::from_utf8_lossy(&body)
        );
        check_admitted(&body)?;
        Ok(took)
    }
}

/// Measures the latencies of both servers alternately, in milliseconds.
async fn measure_alternating(
    admits: [&AdmitClient<'_>; 2],
    duration: Duration,
) -> anyhow::Result<[Vec<f64>; 2]> {
    let [one, other] = admits;
    let mut clients = (Client::connect(one.address).await?, Client::connect(other.address).await?);
    let mut latencies = [Vec::new(), Vec::new()];
    let began = Instant::now();
    let mut pace = tokio::time::interval(ADMIT_INTERVAL);
    while began.elapsed() < duration {
        pace.tick().await;
        latencies[0].push(one.measure_one(&mut clients.0).await?);
        pace.tick().await;
        latencies[1].push(other.measure_one(&mut clients.1).await?);
    }
    Ok(latencies)
}

fn check_admitted(body: &Bytes) -> anyhow::Result<()> {
    let admission: Admission = serde_json::from_slice(body).context("the response is not an admission")?;
    ensure!(admission.engine.is_some(), "the quiet user was not admitted");
    Ok(())
}

fn quantity(noise: Noise, percent: usize) -> Quantity {
    Quantity {
        name: format!("admit p{percent}"),
        unit: Unit::Milliseconds,
        subject: Subject::new(format!("beside {}", noise.name())),
        baselines: vec![
            Subject::comparison("a quiet host"),
            Subject::comparison("axum, one point read, beside the same"),
        ],
        budget: (percent == 99).then_some(Budget::AtMostTimesBaseline(2.0)),
    }
}

/// Reads the admin key that `up` keeps in its folder.
pub(super) fn admin_key(setup: &OrchestratorSetup) -> anyhow::Result<String> {
    let path = setup.up_folder().join("admin.key");
    let key = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(key.trim().to_owned())
}

/// A loopback address other than the one that the quiet product's calls come from.
pub(super) const NOISY_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2)), 0);
