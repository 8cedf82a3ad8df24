//! Admit of engines that run, with the registry in PostgreSQL, beside axum and one indexed read on the same server.

use anyhow::Context as _;
use api::EngineKey;
use chaos::postgres::PostgresServer;
use serde_json::json;

use super::admit::{ROW_COUNTS, USER_COUNT, measure_round, quantities};
use crate::baselines::{self, ADMIT_KEY, BaselineKind, admit_user};
use crate::context::{BenchContext, log_progress};
use crate::postgres::Databases;
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::report::Quantity;
use crate::service::OrchestratorService;
use crate::{postgres, registry};

/// Names a server that is there already, to a user that may make databases.
const SERVER_URL_VAR: &str = "ROUNDHOUSE_TEST_POSTGRES_URL";

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let named = std::env::var(SERVER_URL_VAR).ok();
    if let (None, Err(missing)) = (&named, PostgresServer::programs()) {
        log_progress(&format!("admit-postgres: skipped: {missing:#}"));
        return Ok(Vec::new());
    }
    let password = EngineKey::generate()?.expose().trim_start_matches("sk-svc-").to_owned();
    let own = if named.is_none() { Some(PostgresServer::start(password)?) } else { None };
    let server = named.or_else(|| own.as_ref().map(PostgresServer::url)).context("there is a server")?;
    let databases = Databases::create(&server, ["ours", "floor"]).await?;
    measure_with(bench, &databases).await
}

async fn measure_with(bench: &BenchContext, databases: &Databases<2>) -> anyhow::Result<Vec<Quantity>> {
    let [ours_url, floor_url] = &databases.urls;
    let service = OrchestratorService::new(
        bench,
        vec![
            ("ORCH_BACKEND", "process".to_owned()),
            ("ORCH_ENGINE_IMAGE", format!("svc-engine:{}", env!("CARGO_PKG_VERSION"))),
            ("ORCH_DATABASE_URL", ours_url.clone()),
        ],
    )?;
    let orchestrator = service.start(json!({})).await?;
    let mut client = orchestrator.connect().await?;
    for number in 0..USER_COUNT {
        orchestrator.provision(&mut client, &admit_user(number)).await?;
    }
    let folder = bench.new_folder()?;
    baselines::tell_postgres(&folder, floor_url)?;
    let port = free_port()?;
    let command = baselines::command(&bench.baseline_program, BaselineKind::AdmitPostgres, port, &folder)?;
    let mut floor = Process::spawn(command, "the admit floor", log_file(&folder, "floor"))?;
    probe::wait_until_healthy(&mut floor, port)?;
    let floor_address = ([127, 0, 0, 1], port).into();
    let load = bench.size.choose(std::time::Duration::from_secs(1), std::time::Duration::from_secs(2));
    let mut measured = Vec::new();
    let mut there = u32::from(USER_COUNT);
    for rows in ROW_COUNTS {
        postgres::add_engines(ours_url, there..rows).await?;
        let added = (there..rows).map(|row| (row, registry::user_name(row)));
        baselines::fill_admit_postgres(floor_url, added).await?;
        there = rows;
        let mut quantities = quantities(rows, "axum, one indexed read through a pool");
        for round in 0..bench.rounds {
            bench.report_round(&format!("admit on PostgreSQL among {rows}"), round);
            let ours =
                measure_round(&orchestrator.process, orchestrator.address, orchestrator.platform_key(), load)
                    .await?;
            let floors = measure_round(&floor, floor_address, ADMIT_KEY, load).await?;
            for ((quantity, ours), floor) in quantities.iter_mut().zip(ours).zip(floors) {
                quantity.add(ours, floor);
            }
        }
        measured.extend(quantities);
    }
    orchestrator.shut_down()?;
    Ok(measured)
}
