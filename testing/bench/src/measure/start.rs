//! Measures the start of an engine on a fresh brain.

use std::time::Instant;

use crate::baselines::{self, BaselineKind};
use crate::context::BenchContext;
use crate::engine::{EngineSetup, ModelConfig};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::report::{Budget, Quantity, Subject, Unit};

/// The number of starts per round, whose median is the sample: single starts are short and vary much.
const STARTS_PER_ROUND: usize = 3;

pub(super) fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let mut ours = Subject::new("engine, fresh brain");
    let mut baseline = Subject::new("bare axum");
    for round in 0..bench.rounds {
        bench.report_round("start", round);
        let (mut engines, mut baselines) = (Vec::new(), Vec::new());
        for _ in 0..STARTS_PER_ROUND {
            engines.push(start_engine(bench)?);
            baselines.push(start_bare_server(bench)?);
        }
        ours.samples.extend(crate::stats::median(&engines));
        baseline.samples.extend(crate::stats::median(&baselines));
    }
    let budget = Some(Budget::AtMost(20.0));
    Ok(vec![Quantity {
        name: "start".into(),
        unit: Unit::Milliseconds,
        subject: ours,
        baselines: vec![baseline],
        budget,
    }])
}

fn start_engine(bench: &BenchContext) -> anyhow::Result<f64> {
    let (mut engine, took) =
        EngineSetup::new(&bench.binary, bench.new_folder()?, ModelConfig::unused())?.start()?;
    engine.process.stop()?;
    Ok(took.as_secs_f64() * 1_000.0)
}

fn start_bare_server(bench: &BenchContext) -> anyhow::Result<f64> {
    let folder = bench.new_folder()?;
    let port = free_port()?;
    let command = baselines::command(&bench.baseline_program, BaselineKind::Bare, port, &folder)?;
    let began = Instant::now();
    let mut process = Process::spawn(command, "the bare baseline", log_file(&folder, "baseline"))?;
    probe::wait_until_healthy(&mut process, port)?;
    Ok(began.elapsed().as_secs_f64() * 1_000.0)
}
