//! The memory of an idle engine.

use std::path::Path;

use crate::baselines::{self, BaselineKind};
use crate::binary;
use crate::context::BenchContext;
use crate::engine::{EngineSetup, ModelConfig};
use crate::probe;
use crate::process::{Memory, Process, free_port, log_file};
use crate::report::{Budget, Quantity, Subject, Unit};

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let mut whole = quantity("idle PSS", Some(Budget::AtMost(8.0)));
    let mut anonymous = quantity("of it anonymous", None);
    for round in 0..bench.rounds {
        bench.report_round("idle", round);
        // All three idle at the same time, each from a copy of its binary that only it maps.
        let folder = bench.new_folder()?;
        let engine_binary = binary::copy_private(&bench.binary, folder.join("roundhouse"))?;
        let (engine, _) = EngineSetup::new(&engine_binary, folder.clone(), ModelConfig::unused())?.start()?;
        let bare_process = start_baseline(bench, BaselineKind::Bare, &folder)?;
        let sqlite_process = start_baseline(bench, BaselineKind::Sqlite, &folder)?;
        tokio::time::sleep(bench.idle_wait).await;
        let ours = engine.process.memory()?;
        let floors = [sqlite_process.memory()?, bare_process.memory()?];
        add_samples(&mut whole, ours, floors, |memory| memory.pss_mib);
        add_samples(&mut anonymous, ours, floors, |memory| memory.anonymous_mib);
    }
    Ok(vec![whole, anonymous])
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

fn add_samples(quantity: &mut Quantity, ours: Memory, floors: [Memory; 2], part: fn(Memory) -> f64) {
    quantity.subject.samples.push(part(ours));
    for (floor, memory) in quantity.baselines.iter_mut().zip(floors) {
        floor.samples.push(part(memory));
    }
}

fn start_baseline(bench: &BenchContext, kind: BaselineKind, folder: &Path) -> anyhow::Result<Process> {
    let name = format!("{kind:?}");
    let program = binary::copy_private(&bench.baseline_program, folder.join(&name))?;
    let port = free_port()?;
    let command = baselines::command(&program, kind, port, folder)?;
    let mut process = Process::spawn(command, "a floor", log_file(folder, &name))?;
    probe::wait_until_healthy(&mut process, port)?;
    Ok(process)
}
