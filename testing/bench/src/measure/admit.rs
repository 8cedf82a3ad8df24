//! Measures admits of running engines over many connections, among few and very many stopped engines.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use api::orchestrator::{Admission, EngineStatus};
use bytes::Bytes;
use hyper::StatusCode;

use crate::baselines::{self, ADMIT_KEY, ADMIT_USERS, BaselineKind, admit_user};
use crate::client::Client;
use crate::context::BenchContext;
use crate::load::{self, LoadPlan, LoadResult};
use crate::orchestrator::{OrchestratorSetup, admit_request};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::registry;
use crate::report::{Budget, Quantity, Subject, Unit};

const CONNECTIONS: usize = 32;
/// The number of users that are admitted in turn. Each has an engine, which is a process.
pub(super) const USER_COUNT: u16 = ADMIT_USERS;
/// The total number of engines of the product, among which the running ones are spread.
pub(super) const ROW_COUNTS: [u32; 3] = [10, 1_000, 100_000];
const WARM_UP: Duration = Duration::from_millis(300);
/// More requests than any server answers in that time; a safeguard that ends the load.
const MAX_REQUESTS: u64 = 1_000_000;
/// Every so many responses, one is parsed completely; the others are only searched for the expected text.
const FULL_CHECK_INTERVAL: u64 = 64;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let setup = OrchestratorSetup::with_few_ports(bench)?;
    let orchestrator = setup.start().await?;
    let mut client = orchestrator.connect().await?;
    for number in 0..USER_COUNT {
        orchestrator.provision(&mut client, &admit_user(number)).await?;
    }
    let folder = bench.new_folder()?;
    let (baseline, baseline_address) = start_baseline(bench, &folder)?;
    let load = bench.size.choose(Duration::from_secs(1), Duration::from_secs(2));
    let mut measured = Vec::new();
    let mut present = u32::from(USER_COUNT);
    for rows in ROW_COUNTS {
        registry::add_engines(&setup.registry_file(), present..rows)?;
        baselines::fill_admit(
            &baselines::database_file(&folder),
            (present..rows).map(|row| (row, registry::user_name(row))),
        )?;
        present = rows;
        let mut quantities = quantities(rows, "axum, one point read");
        for round in 0..bench.rounds {
            bench.report_round(&format!("admit among {rows}"), round);
            let ours =
                measure_round(&orchestrator.process, orchestrator.address, orchestrator.platform_key(), load)
                    .await?;
            let baselines = measure_round(&baseline, baseline_address, ADMIT_KEY, load).await?;
            for ((quantity, ours), baseline) in quantities.iter_mut().zip(ours).zip(baselines) {
                quantity.add(ours, baseline);
            }
        }
        measured.extend(quantities);
    }
    orchestrator.shut_down()?;
    Ok(measured)
}

/// Starts the baseline server, and returns its process and address.
pub(super) fn start_baseline(bench: &BenchContext, folder: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let port = free_port()?;
    let command = baselines::command(&bench.baseline_program, BaselineKind::Admit, port, folder)?;
    let mut process = Process::spawn(command, "the admit baseline", log_file(folder, "baseline"))?;
    probe::wait_until_healthy(&mut process, port)?;
    Ok((process, ([127, 0, 0, 1], port).into()))
}

/// Returns the samples of a round, in the order of [`quantities`].
pub(super) async fn measure_round(
    process: &Process,
    address: SocketAddr,
    key: &str,
    duration: Duration,
) -> anyhow::Result<[f64; 4]> {
    run_load(WARM_UP, address, key).await?;
    let before = process.cpu_time()?;
    let load = run_load(duration, address, key).await?;
    let cpu = process.cpu_time()?.saturating_sub(before);
    let per_admit = cpu.as_secs_f64() / load.elapsed.as_secs_f64() / load.throughput() * 1_000_000.0;
    Ok([load.throughput(), load.latency_ms(50)?, load.latency_ms(99)?, per_admit])
}

async fn run_load(duration: Duration, address: SocketAddr, key: &str) -> anyhow::Result<LoadResult> {
    load::run(&LoadPlan {
        address,
        connections: CONNECTIONS,
        duration,
        max_requests: MAX_REQUESTS,
        request: &|client: &Client, number| admit_request(client, &user_of(number), key),
        check: &check_admission,
    })
    .await
}

fn user_of(number: u64) -> String {
    admit_user(u16::try_from(number % u64::from(USER_COUNT)).unwrap_or_default())
}

/// Checks that a response is the admission of the right user.
fn check_admission(number: u64, status: StatusCode, body: &Bytes) -> anyhow::Result<()> {
    let user = user_of(number);
    ensure!(status == StatusCode::OK, "the status is {status}: {}", String::from_utf8_lossy(body));
    let text = std::str::from_utf8(body).context("the response is not UTF-8")?;
    let named = format!("\"user_id\":\"{user}\"");
    ensure!(
        text.contains("\"admitted\":true") && text.contains(&named),
        "not the admission of {user}: {text}"
    );
    if number.is_multiple_of(FULL_CHECK_INTERVAL) {
        let admission: Admission = serde_json::from_str(text).context("the response is not an admission")?;
        let engine = admission.engine.context("the admission has no engine")?;
        let running = engine.summary.status == EngineStatus::Running;
        ensure!(
            running && engine.api_key.expose().starts_with("sk-svc-"),
            "the admitted engine is not running"
        );
    }
    Ok(())
}

pub(super) fn quantities(rows: u32, baseline: &str) -> [Quantity; 4] {
    let quantity = |what: &str, unit, budget| Quantity {
        name: what.into(),
        unit,
        subject: Subject::new(format!("orchestrator, {rows} rows")),
        baselines: vec![Subject::new(baseline)],
        budget,
    };
    [
        quantity("admits", Unit::PerSecond, Some(Budget::AtLeastTimesBaseline(0.8))),
        quantity("admit p50", Unit::Milliseconds, None),
        quantity("admit p99", Unit::Milliseconds, Some(Budget::AtMostTimesBaseline(2.0))),
        quantity("server's CPU per admit", Unit::Microseconds, None),
    ]
}

#[cfg(test)]
mod tests {
    use api::orchestrator::DenialReason;

    use super::*;

    #[test]
    fn only_the_right_admission_passes() {
        let denied = serde_json::to_vec(&Admission::denied(DenialReason::EngineNotFound)).unwrap();
        let other = r#"{"admitted":true,"engine":{"user_id":"user-07"}}"#;
        let hollow = r#"{"admitted":true,"engine":{"user_id":"user-00"}}"#;
        let good = r#"{"admitted":true,"engine":{"user_id":"user-01"}}"#;
        assert!(check_admission(1, StatusCode::OK, &good.into()).is_ok());
        assert!(check_admission(1, StatusCode::TOO_MANY_REQUESTS, &good.into()).is_err());
        assert!(check_admission(1, StatusCode::OK, &other.into()).is_err());
        assert!(check_admission(1, StatusCode::OK, &denied.into()).is_err());
        // Request 0 is one of those whose responses are parsed completely.
        assert!(check_admission(0, StatusCode::OK, &hollow.into()).is_err());
    }
}
