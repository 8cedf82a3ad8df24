//! The start of an engine.

use std::time::Instant;

use crate::bench::Bench;
use crate::engine::{Home, Model};
use crate::floors::{self, Kind};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::report::{Budget, Quantity, Subject, Unit};

/// A start costs little and varies much, so each round has several and gives their median.
const STARTS: usize = 3;

pub(super) fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let mut ours = Subject::new("engine, fresh brain");
    let mut floor = Subject::new("bare axum");
    for round in 0..bench.rounds {
        bench.progress("start", round);
        let (mut engines, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..STARTS {
            engines.push(engine(bench)?);
            floors.push(bare(bench)?);
        }
        ours.samples.extend(crate::stats::median(&engines));
        floor.samples.extend(crate::stats::median(&floors));
    }
    let budget = Some(Budget::Most(20.0));
    Ok(vec![Quantity { what: "start".into(), unit: Unit::Milliseconds, ours, floors: vec![floor], budget }])
}

fn engine(bench: &Bench) -> anyhow::Result<f64> {
    let (mut engine, took) = Home::new(&bench.binary, bench.folder()?, Model::unused())?.start()?;
    engine.process.end()?;
    Ok(took.as_secs_f64() * 1_000.0)
}

fn bare(bench: &Bench) -> anyhow::Result<f64> {
    let folder = bench.folder()?;
    let port = free_port()?;
    let command = floors::command(&bench.floors, Kind::Bare, port, &folder)?;
    let began = Instant::now();
    let mut process = Process::spawn(command, "the bare floor", log_file(&folder, "floor"))?;
    probe::until_well(&mut process, port)?;
    Ok(began.elapsed().as_secs_f64() * 1_000.0)
}
