//! Measures the memory of an idle engine.

use std::path::Path;

use crate::baselines::{self, BaselineKind};
use crate::binary;
use crate::context::BenchContext;
use crate::engine::{EngineSetup, ModelConfig};
use crate::probe;
use crate::process::{Memory, Process, free_port, log_file};
use crate::report::{Budget, Quantity, Subject, Unit};

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let mut total = quantity("idle PSS", Some(Budget::AtMost(8.0)));
    let mut anonymous = quantity("of it anonymous", None);
    for round in 0..bench.rounds {
        bench.report_round("idle", round);
        // All three processes idle at the same time, each from a private copy of its binary.
        let folder = bench.new_folder()?;
        let engine_binary = binary::copy_private(&bench.binary, folder.join("roundhouse"))?;
        let (engine, _) = EngineSetup::new(&engine_binary, folder.clone(), ModelConfig::unused())?.start()?;
        let bare_process = start_baseline(bench, BaselineKind::Bare, &folder)?;
        let sqlite_process = start_baseline(bench, BaselineKind::Sqlite, &folder)?;
        tokio::time::sleep(bench.idle_wait).await;
        let ours = engine.process.memory()?;
        let baselines = [sqlite_process.memory()?, bare_process.memory()?];
        add_samples(&mut total, ours, baselines, |memory| memory.pss_mib);
        add_samples(&mut anonymous, ours, baselines, |memory| memory.anonymous_mib);
    }
    Ok(vec![total, anonymous])
}

fn quantity(what: &str, budget: Option<Budget>) -> Quantity {
    Quantity {
        name: what.into(),
        unit: Unit::Mebibytes,
        subject: Subject::new("engine"),
        baselines: vec![Subject::new("bare axum and rusqlite"), Subject::new("bare axum")],
        budget,
    }
}

fn add_samples(quantity: &mut Quantity, ours: Memory, baselines: [Memory; 2], part: fn(Memory) -> f64) {
    quantity.subject.samples.push(part(ours));
    for (baseline, memory) in quantity.baselines.iter_mut().zip(baselines) {
        baseline.samples.push(part(memory));
    }
}

fn start_baseline(bench: &BenchContext, kind: BaselineKind, folder: &Path) -> anyhow::Result<Process> {
    let name = format!("{kind:?}");
    let program = binary::copy_private(&bench.baseline_program, folder.join(&name))?;
    let port = free_port()?;
    let command = baselines::command(&program, kind, port, folder)?;
    let mut process = Process::spawn(command, "a baseline", log_file(folder, &name))?;
    probe::wait_until_healthy(&mut process, port)?;
    Ok(process)
}
