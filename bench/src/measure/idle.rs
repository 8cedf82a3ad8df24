//! The memory of an idle engine.

use std::path::Path;

use crate::bench::Bench;
use crate::binary;
use crate::engine::{Home, Model};
use crate::floors::{self, Kind};
use crate::probe;
use crate::process::{Memory, Process, free_port, log_file};
use crate::report::{Budget, Quantity, Subject, Unit};

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let mut whole = quantity("idle PSS", Some(Budget::Most(8.0)));
    let mut anonymous = quantity("of it anonymous", None);
    for round in 0..bench.rounds {
        bench.progress("idle", round);
        // All three idle at the same time, each from a copy of its binary that only it maps.
        let folder = bench.folder()?;
        let engine_binary = binary::copy(&bench.binary, folder.join("roundhouse"))?;
        let (engine, _) = Home::new(&engine_binary, folder.clone(), Model::unused())?.start()?;
        let bare_process = floor(bench, Kind::Bare, &folder)?;
        let sqlite_process = floor(bench, Kind::Sqlite, &folder)?;
        tokio::time::sleep(bench.wait).await;
        let ours = engine.process.memory()?;
        let floors = [sqlite_process.memory()?, bare_process.memory()?];
        note(&mut whole, ours, floors, |memory| memory.pss_mib);
        note(&mut anonymous, ours, floors, |memory| memory.anonymous_mib);
    }
    Ok(vec![whole, anonymous])
}

fn quantity(what: &str, budget: Option<Budget>) -> Quantity {
    Quantity {
        what: what.into(),
        unit: Unit::Mebibytes,
        ours: Subject::new("engine"),
        floors: vec![Subject::new("bare axum and rusqlite"), Subject::new("bare axum")],
        budget,
    }
}

fn note(quantity: &mut Quantity, ours: Memory, floors: [Memory; 2], part: fn(Memory) -> f64) {
    quantity.ours.samples.push(part(ours));
    for (floor, memory) in quantity.floors.iter_mut().zip(floors) {
        floor.samples.push(part(memory));
    }
}

fn floor(bench: &Bench, kind: Kind, folder: &Path) -> anyhow::Result<Process> {
    let name = format!("{kind:?}");
    let program = binary::copy(&bench.floors, folder.join(&name))?;
    let port = free_port()?;
    let command = floors::command(&program, kind, port, folder)?;
    let mut process = Process::spawn(command, "a floor", log_file(folder, &name))?;
    probe::until_well(&mut process, port)?;
    Ok(process)
}
