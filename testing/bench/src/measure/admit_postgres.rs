//! Measures admits of running engines with the registry in PostgreSQL. The baseline is axum with one indexed read
//! on the same server.

use serde_json::json;

use super::admit::{ROW_COUNTS, USER_COUNT, measure_round, quantities};
use crate::baselines::{self, ADMIT_KEY, BaselineKind, admit_user};
use crate::context::{BenchContext, log_progress};
use crate::postgres::{Databases, Server};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::report::Quantity;
use crate::service::OrchestratorService;
use crate::{postgres, registry};

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    if let Some(missing) = Server::missing() {
        log_progress(&format!("admit-postgres: skipped: {missing:#}"));
        return Ok(Vec::new());
    }
    let server = Server::find_or_start()?;
    let databases = Databases::create(&server.url, ["ours", "baseline"]).await?;
    measure_with(bench, &databases).await
}

async fn measure_with(bench: &BenchContext, databases: &Databases<2>) -> anyhow::Result<Vec<Quantity>> {
    let [ours_url, baseline_url] = &databases.urls;
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
    baselines::tell_postgres(&folder, baseline_url)?;
    let port = free_port()?;
    let command = baselines::command(&bench.baseline_program, BaselineKind::AdmitPostgres, port, &folder)?;
    let mut baseline = Process::spawn(command, "the admit baseline", log_file(&folder, "baseline"))?;
    probe::wait_until_healthy(&mut baseline, port)?;
    let baseline_address = ([127, 0, 0, 1], port).into();
    let load = bench.size.choose(std::time::Duration::from_secs(1), std::time::Duration::from_secs(2));
    let mut measured = Vec::new();
    let mut present = u32::from(USER_COUNT);
    for rows in ROW_COUNTS {
        postgres::add_engines(ours_url, present..rows).await?;
        let added = (present..rows).map(|row| (row, registry::user_name(row)));
        baselines::fill_admit_postgres(baseline_url, added).await?;
        present = rows;
        let mut quantities = quantities(rows, "axum, one indexed read through a pool");
        for round in 0..bench.rounds {
            bench.report_round(&format!("admit on PostgreSQL among {rows}"), round);
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
