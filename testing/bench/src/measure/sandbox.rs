//! Measures the cost of running a program in the sandbox.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use sandbox::{Command, ExitStatus, HelperCommand, Limits, Sandbox, Settings};
use tokio::io::AsyncReadExt as _;

use crate::context::{BenchContext, log_progress};
use crate::report::{Budget, Quantity, Subject, Unit};
use crate::stats::percentile;

/// A program that does nothing.
const PROGRAM: &str = "/bin/true";

/// The number of measured runs in a round, and of warm-up runs before them.
const RUNS_PER_ROUND: usize = 100;
const WARM_UP: usize = 5;

const PERCENTILES: [usize; 2] = [50, 99];

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let sandbox = Sandbox::new(Settings {
        helper: HelperCommand { program: bench.binary.clone(), args: vec![sandbox::HELPER_ARG.into()] },
        workspace: bench.new_folder()?,
        readable: Vec::new(),
        hidden: Vec::new(),
        allow_unconfined: false,
    });
    let mut quantities = PERCENTILES.map(|percent| Quantity {
        name: format!("sandbox p{percent}"),
        unit: Unit::Milliseconds,
        subject: Subject::new("`true` in the sandbox"),
        baselines: vec![Subject::new("fork and exec of `true`")],
        budget: (percent == 50).then_some(Budget::AboveBaseline(20.0)),
    });
    for round in 0..bench.rounds {
        bench.report_round("sandbox", round);
        let (mut sandboxed, mut bare) = (Vec::new(), Vec::new());
        for run in 0..WARM_UP + RUNS_PER_ROUND {
            let (ours, baseline) = (run_sandboxed(&sandbox).await?, run_bare().await?);
            if run >= WARM_UP {
                sandboxed.push(ours);
                bare.push(baseline);
            }
        }
        for (quantity, percent) in quantities.iter_mut().zip(PERCENTILES) {
            quantity.add(percentile(&sandboxed, percent), percentile(&bare, percent));
        }
    }
    log_progress(&format!("sandbox: {}", sandbox.confinement().level));
    Ok(quantities.into())
}

/// Returns the time from the start to the exit with all output, in milliseconds.
async fn run_sandboxed(sandbox: &Sandbox) -> anyhow::Result<f64> {
    let command = Command {
        argv: vec![PROGRAM.into()],
        folder: ".".into(),
        env: Vec::new(),
        network: false,
        limits: Limits { disk_left: 0, ..Limits::default() },
    };
    let began = Instant::now();
    let mut child = sandbox.start(command).await?;
    drop(child.stdin.take());
    let mut output = Vec::new();
    child.stdout.take().context("the child has no standard output")?.read_to_end(&mut output).await?;
    let status = child.wait().await?;
    let took = began.elapsed();
    ensure!(status == ExitStatus::Exited(0) && output.is_empty(), "`true` exited with {status:?}");
    Ok(took.as_secs_f64() * 1_000.0)
}

async fn run_bare() -> anyhow::Result<f64> {
    let began = Instant::now();
    let child = tokio::process::Command::new(PROGRAM)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let output = child.wait_with_output().await?;
    let took = began.elapsed();
    ensure!(output.status.success() && output.stdout.is_empty(), "`true` exited with {}", output.status);
    Ok(took.as_secs_f64() * 1_000.0)
}
