//! `roundhouse doctor`: what an operator should look at.

use anyhow::anyhow;
use orchestrator::doctor::Doctor;
use service::env::ProcessEnv;

use crate::error::Failure;
use crate::terminal::{on_one_line, say};

/// The longest line that is shown.
const MAX_LINE: usize = 4_096;

pub(crate) fn run() -> Result<(), Failure> {
    let doctor = Doctor::from_env(&ProcessEnv).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime
        .block_on(doctor.examine())
        .map_err(|error| Failure::usage(format!("{:#}", anyhow::Error::new(error))))?;
    for finding in &findings {
        say(&on_one_line(&finding.to_string(), MAX_LINE))?;
    }
    match findings.len() {
        0 => Ok(say("all is well")?),
        1 => Err(anyhow!("there is something to look at").into()),
        several => Err(anyhow!("there are {several} things to look at").into()),
    }
}
