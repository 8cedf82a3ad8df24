//! `roundhouse doctor`: examines a deployment and its host, and reports problems that need an operator.

use anyhow::anyhow;
use http_service::env::ProcessEnv;
use orchestrator::doctor::{Check, Doctor, Outcome};
use serde_json::{Value, json};

use crate::error::Failure;
use crate::terminal::{print_line, single_line};

/// The longest line that is printed, in characters.
const MAX_LINE: usize = 4_096;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object instead of lines for people.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let doctor = Doctor::from_env(&ProcessEnv).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut checks = runtime
        .block_on(doctor.run())
        .map_err(|error| Failure::usage(format!("{:#}", anyhow::Error::new(error))))?;
    checks.push(check_sandbox(&doctor));
    if args.json {
        print_line(&json!({"checks": checks.iter().map(to_json).collect::<Vec<_>>()}).to_string())?;
    } else {
        for line in checks.iter().flat_map(lines) {
            print_line(&single_line(&line, MAX_LINE))?;
        }
    }
    let found = |check: &Check| match &check.outcome {
        Outcome::Found(found) => found.len(),
        Outcome::Passed(_) | Outcome::Skipped(_) => 0,
    };
    match checks.iter().map(found).sum() {
        0 if args.json => Ok(()),
        0 => Ok(print_line("all is well")?),
        1 => Err(anyhow!("1 problem was found").into()),
        count => Err(anyhow!("{count} problems were found").into()),
    }
}

/// Checks that this host's kernel can confine the programs of tools.
fn check_sandbox(doctor: &Doctor) -> Check {
    const SUBJECT: &str = "sandbox";
    if !doctor.runs_tools_here() {
        return Check::skipped(SUBJECT, "engines run on the nodes of the cluster");
    }
    let missing = sandbox::check_kernel().err().map(|missing| {
        format!(
            "this kernel cannot confine programs: {missing}. Tools that run programs are refused; use Linux 6.12 or later \
             with Landlock enabled (docs/sandbox.md)"
        )
    });
    Check::new(SUBJECT, missing.into_iter().collect(), "the kernel confines programs")
}

/// The lines of a check, for people.
fn lines(check: &Check) -> Vec<String> {
    let line = |word: &str, text: &str| format!("{word:<8} {:<13} {text}", check.subject);
    match &check.outcome {
        Outcome::Passed(remark) => vec![line("ok", remark)],
        Outcome::Found(found) => found.iter().map(|found| line("PROBLEM", found)).collect(),
        Outcome::Skipped(reason) => vec![line("skipped", reason)],
    }
}

fn to_json(check: &Check) -> Value {
    let subject = check.subject;
    match &check.outcome {
        Outcome::Passed(remark) => json!({"subject": subject, "outcome": "passed", "remark": remark}),
        Outcome::Found(found) => json!({"subject": subject, "outcome": "found", "problems": found}),
        Outcome::Skipped(reason) => json!({"subject": subject, "outcome": "skipped", "reason": reason}),
    }
}
