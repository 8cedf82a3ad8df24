//! `roundhouse doctor`: reports problems that need an operator.

use anyhow::anyhow;
use http_service::env::ProcessEnv;
use orchestrator::doctor::Doctor;

use crate::error::Failure;
use crate::terminal::{print_line, single_line};

/// The longest line that is printed, in characters.
const MAX_LINE: usize = 4_096;

pub(crate) fn run() -> Result<(), Failure> {
    let doctor = Doctor::from_env(&ProcessEnv).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let findings = runtime
        .block_on(doctor.run())
        .map_err(|error| Failure::usage(format!("{:#}", anyhow::Error::new(error))))?;
    for finding in &findings {
        print_line(&single_line(&finding.to_string(), MAX_LINE))?;
    }
    match findings.len() {
        0 => Ok(print_line("all is well")?),
        1 => Err(anyhow!("1 problem was found").into()),
        count => Err(anyhow!("{count} problems were found").into()),
    }
}
