//! Measures the memory of idle engines that share a host, and so the pages of their program.

use std::path::Path;

use crate::baselines::{self, BaselineKind};
use crate::binary;
use crate::context::BenchContext;
use crate::engine::{EngineSetup, ModelConfig};
use crate::probe;
use crate::process::{Memory, Process, free_port, log_file};
use crate::report::{Budget, Quantity, Subject, Unit};

/// How many engines, and as many of each baseline, are idle at once.
const COUNT: usize = 50;

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let mut total = quantity("PSS of one of 50", Some(Budget::AtMost(4.0)));
    let mut private = quantity("of it private", Some(Budget::AtMost(5.0)));
    let mut anonymous = quantity("of it anonymous", None);
    for round in 0..bench.rounds {
        bench.report_round("idle", round);
        let folder = bench.new_folder()?;
        // Copies of the programs, which nothing but these processes maps. All are idle at the same time.
        let program = binary::copy_private(&bench.binary, folder.join("roundhouse"))?;
        let baseline_program = binary::copy_private(&bench.baseline_program, folder.join("baseline"))?;
        let mut engines = Vec::with_capacity(COUNT);
        let mut sqlite = Vec::with_capacity(COUNT);
        let mut bare = Vec::with_capacity(COUNT);
        for index in 0..COUNT {
            let folder = folder.join(index.to_string());
            std::fs::create_dir(&folder)?;
            let (engine, _) = EngineSetup::new(&program, folder.clone(), ModelConfig::unused())?.start()?;
            engines.push(engine.process);
            sqlite.push(start_baseline(&baseline_program, BaselineKind::Sqlite, &folder)?);
            bare.push(start_baseline(&baseline_program, BaselineKind::Bare, &folder)?);
        }
        tokio::time::sleep(bench.idle_wait).await;
        let ours = mean(&engines)?;
        let baselines = [mean(&sqlite)?, mean(&bare)?];
        add_samples(&mut total, ours, baselines, |memory| memory.pss_mib);
        add_samples(&mut private, ours, baselines, |memory| memory.private_mib);
        add_samples(&mut anonymous, ours, baselines, |memory| memory.anonymous_mib);
    }
    Ok(vec![total, private, anonymous])
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

/// The mean memory of the processes.
fn mean(processes: &[Process]) -> anyhow::Result<Memory> {
    let mut sum = Memory { pss_mib: 0.0, anonymous_mib: 0.0, private_mib: 0.0 };
    let mut count = 0.0;
    for process in processes {
        let memory = process.memory()?;
        sum.pss_mib += memory.pss_mib;
        sum.anonymous_mib += memory.anonymous_mib;
        sum.private_mib += memory.private_mib;
        count += 1.0;
    }
    Ok(Memory {
        pss_mib: sum.pss_mib / count,
        anonymous_mib: sum.anonymous_mib / count,
        private_mib: sum.private_mib / count,
    })
}

fn add_samples(quantity: &mut Quantity, ours: Memory, baselines: [Memory; 2], part: fn(Memory) -> f64) {
    quantity.subject.samples.push(part(ours));
    for (baseline, memory) in quantity.baselines.iter_mut().zip(baselines) {
        baseline.samples.push(part(memory));
    }
}

fn start_baseline(program: &Path, kind: BaselineKind, folder: &Path) -> anyhow::Result<Process> {
    let port = free_port()?;
    let command = baselines::command(program, kind, port, folder)?;
    let mut process = Process::spawn(command, "a baseline", log_file(folder, &format!("{kind:?}")))?;
    probe::wait_until_healthy(&mut process, port)?;
    Ok(process)
}
