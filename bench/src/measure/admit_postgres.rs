//! Admit of engines that run, with the registry in PostgreSQL, beside axum and one indexed read on the same server.

use anyhow::Context as _;
use chaos::postgres::Server;
use contract::EngineKey;
use serde_json::json;

use super::admit::{ROWS, USERS, quantities, round_of};
use crate::bench::{Bench, note};
use crate::floors::{self, ADMIT_KEY, Kind, admit_user};
use crate::postgres::Databases;
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::report::Quantity;
use crate::service::Service;
use crate::{postgres, registry};

/// Names a server that is there already, to a user that may make databases.
const URL: &str = "ROUNDHOUSE_TEST_POSTGRES_URL";

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let named = std::env::var(URL).ok();
    if let (None, Err(missing)) = (&named, Server::programs()) {
        note(&format!("admit-postgres: skipped: {missing:#}"));
        return Ok(Vec::new());
    }
    let password = EngineKey::generate()?.expose().trim_start_matches("sk-svc-").to_owned();
    let own = if named.is_none() { Some(Server::start(password)?) } else { None };
    let server = named.or_else(|| own.as_ref().map(Server::url)).context("there is a server")?;
    let databases = Databases::make(&server, ["ours", "floor"]).await?;
    with(bench, &databases).await
}

async fn with(bench: &Bench, databases: &Databases<2>) -> anyhow::Result<Vec<Quantity>> {
    let [ours_url, floor_url] = &databases.urls;
    let service = Service::new(
        bench,
        vec![
            ("ORCH_BACKEND", "process".to_owned()),
            ("ORCH_ENGINE_IMAGE", format!("svc-engine:{}", env!("CARGO_PKG_VERSION"))),
            ("ORCH_DATABASE_URL", ours_url.clone()),
        ],
    )?;
    let orchestrator = service.start(json!({})).await?;
    let mut client = orchestrator.connect().await?;
    for number in 0..USERS {
        orchestrator.provision(&mut client, &admit_user(number)).await?;
    }
    let folder = bench.folder()?;
    floors::tell_postgres(&folder, floor_url)?;
    let port = free_port()?;
    let command = floors::command(&bench.floors, Kind::AdmitPostgres, port, &folder)?;
    let mut floor = Process::spawn(command, "the admit floor", log_file(&folder, "floor"))?;
    probe::until_well(&mut floor, port)?;
    let floor_address = ([127, 0, 0, 1], port).into();
    let load = bench.size.of(std::time::Duration::from_secs(1), std::time::Duration::from_secs(2));
    let mut measured = Vec::new();
    let mut there = u32::from(USERS);
    for rows in ROWS {
        postgres::add_engines(ours_url, there..rows).await?;
        let added = (there..rows).map(|row| (row, registry::user(row)));
        floors::fill_admit_postgres(floor_url, added).await?;
        there = rows;
        let mut quantities = quantities(rows, "axum, one indexed read through a pool");
        for round in 0..bench.rounds {
            bench.progress(&format!("admit on PostgreSQL among {rows}"), round);
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
