//! Admit of engines that run, over many connections at once, among few and very many engines at rest.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use contract::orchestrator::{Admission, EngineStatus};
use hyper::StatusCode;

use crate::bench::Bench;
use crate::client::Client;
use crate::floors::{self, ADMIT_KEY, ADMIT_USERS, Kind, admit_user};
use crate::load::{self, Load, Plan};
use crate::orchestrator::{Site, admit};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::registry;
use crate::report::{Budget, Quantity, Subject, Unit};

const CONNECTIONS: usize = 32;
/// How many users are admitted in turn. Each has an engine, and an engine is a process.
pub(super) const USERS: u16 = ADMIT_USERS;
/// How many engines the product has in all; those that run stand spread among them.
pub(super) const ROWS: [u32; 3] = [10, 1_000, 100_000];
const WARM_UP: Duration = Duration::from_millis(300);
/// More than any server answers in that time; should the clock stand still, this ends the load.
const AT_MOST: u64 = 1_000_000;
/// One answer in so many is read as a whole; the others are looked through.
const READ_EVERY: u64 = 64;

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let site = Site::small(bench)?;
    let orchestrator = site.start().await?;
    let mut client = orchestrator.connect().await?;
    for number in 0..USERS {
        orchestrator.provision(&mut client, &admit_user(number)).await?;
    }
    let folder = bench.folder()?;
    let (floor, floor_address) = floor(bench, &folder)?;
    let load = bench.size.of(Duration::from_secs(1), Duration::from_secs(2));
    let mut measured = Vec::new();
    let mut there = u32::from(USERS);
    for rows in ROWS {
        registry::add_engines(&site.registry(), there..rows)?;
        floors::fill_admit(&floors::database(&folder), (there..rows).map(|row| (row, registry::user(row))))?;
        there = rows;
        let mut quantities = quantities(rows, "axum, one point read");
        for round in 0..bench.rounds {
            bench.progress(&format!("admit among {rows}"), round);
            let ours =
                round_of(&orchestrator.process, orchestrator.address, orchestrator.key(), load).await?;
            let floors = round_of(&floor, floor_address, ADMIT_KEY, load).await?;
            for ((quantity, ours), floor) in quantities.iter_mut().zip(ours).zip(floors) {
                quantity.add(ours, floor);
            }
        }
        measured.extend(quantities);
    }
    orchestrator.end()?;
    Ok(measured)
}

/// The plain server that admits, and its address.
pub(super) fn floor(bench: &Bench, folder: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let port = free_port()?;
    let command = floors::command(&bench.floors, Kind::Admit, port, folder)?;
    let mut process = Process::spawn(command, "the admit floor", log_file(folder, "floor"))?;
    probe::until_well(&mut process, port)?;
    Ok((process, ([127, 0, 0, 1], port).into()))
}

/// One round's figures, in the order of [`quantities`].
pub(super) async fn round_of(
    process: &Process,
    address: SocketAddr,
    key: &str,
    duration: Duration,
) -> anyhow::Result<[f64; 4]> {
    load_for(WARM_UP, address, key).await?;
    let before = process.cpu()?;
    let load = load_for(duration, address, key).await?;
    let cpu = process.cpu()?.saturating_sub(before);
    let per_admit = cpu.as_secs_f64() / load.elapsed.as_secs_f64() / load.throughput() * 1_000_000.0;
    Ok([load.throughput(), load.latency_ms(50)?, load.latency_ms(99)?, per_admit])
}

async fn load_for(duration: Duration, address: SocketAddr, key: &str) -> anyhow::Result<Load> {
    load::run(&Plan {
        address,
        connections: CONNECTIONS,
        duration,
        at_most: AT_MOST,
        request: &|client: &Client, number| admit(client, &user_of(number), key),
        check: &check,
    })
    .await
}

fn user_of(number: u64) -> String {
    admit_user(u16::try_from(number % u64::from(USERS)).unwrap_or_default())
}

/// Whether this is the admission of the right user.
fn check(number: u64, status: StatusCode, body: &Bytes) -> anyhow::Result<()> {
    let user = user_of(number);
    ensure!(status == StatusCode::OK, "answered {status}: {}", String::from_utf8_lossy(body));
    let text = std::str::from_utf8(body).context("an answer that is no text")?;
    let named = format!("\"user_id\":\"{user}\"");
    ensure!(
        text.contains("\"admitted\":true") && text.contains(&named),
        "not the admission of {user}: {text}"
    );
    if number.is_multiple_of(READ_EVERY) {
        let admission: Admission = serde_json::from_str(text).context("an answer that is no admission")?;
        let engine = admission.engine.context("an admission without an engine")?;
        let running = engine.summary.status == EngineStatus::Running;
        ensure!(running && engine.api_key.expose().starts_with("sk-svc-"), "an engine that does not run");
    }
    Ok(())
}

pub(super) fn quantities(rows: u32, floor: &str) -> [Quantity; 4] {
    let quantity = |what: &str, unit, budget| Quantity {
        what: what.into(),
        unit,
        ours: Subject::new(format!("orchestrator, {rows} rows")),
        floors: vec![Subject::new(floor)],
        budget,
    };
    [
        quantity("admits", Unit::PerSecond, Some(Budget::LeastTimesFloor(0.8))),
        quantity("admit p50", Unit::Milliseconds, None),
        quantity("admit p99", Unit::Milliseconds, Some(Budget::MostTimesFloor(2.0))),
        quantity("server's CPU per admit", Unit::Microseconds, None),
    ]
}

#[cfg(test)]
mod tests {
    use contract::orchestrator::DenialReason;

    use super::*;

    #[test]
    fn only_the_right_admission_passes() {
        let denied = serde_json::to_vec(&Admission::denied(DenialReason::EngineNotFound)).unwrap();
        let other = r#"{"admitted":true,"engine":{"user_id":"user-07"}}"#;
        let hollow = r#"{"admitted":true,"engine":{"user_id":"user-00"}}"#;
        let good = r#"{"admitted":true,"engine":{"user_id":"user-01"}}"#;
        assert!(check(1, StatusCode::OK, &good.into()).is_ok());
        assert!(check(1, StatusCode::TOO_MANY_REQUESTS, &good.into()).is_err());
        assert!(check(1, StatusCode::OK, &other.into()).is_err());
        assert!(check(1, StatusCode::OK, &denied.into()).is_err());
        // Every so often an answer is read as a whole.
        assert!(check(0, StatusCode::OK, &hollow.into()).is_err());
    }
}
