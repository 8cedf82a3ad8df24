//! `roundhouse audit`: verifies the audit log, or lists it.

use anyhow::anyhow;
use clap::Subcommand;
use http_service::env::{EnvReader, ProcessEnv};
use orchestrator::config::DatabaseUrl;
use orchestrator::{VerifiedProduct, VerifyError};

use crate::error::Failure;
use crate::operator;
use crate::terminal::{print_line, single_line};

/// Arguments of `roundhouse audit`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check that the audit log is complete, in order and unchanged, including its end. Reads the registry that
    /// `ORCH_DATABASE_URL` names; the orchestrator may be running.
    Verify,
    /// List what happened to a product's engines, the newest first. Asks a running orchestrator.
    List(Box<operator::audit::ListArgs>),
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Verify => verify(),
        Command::List(args) => operator::audit::list(*args),
    }
}

fn verify() -> Result<(), Failure> {
    let mut reader = EnvReader::new(&ProcessEnv);
    let database = DatabaseUrl::read(&mut reader);
    let database = reader.finish(database).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut summary = VerificationSummary::default();
    runtime.block_on(orchestrator::verify(&database, |checked| summary.add(checked))).map_err(|error| {
        match error {
            VerifyError::Unreadable { .. } | VerifyError::NotARegistry { .. } => {
                Failure::usage(format!("{:#}", anyhow::Error::new(error)))
            }
            VerifyError::Database { .. } => error.into(),
        }
    })?;
    summary.output_result?;
    match summary.broken {
        0 => Ok(print_line(&format!("the audit log is intact: {}", pluralize(summary.products, "product")))?),
        broken => Err(anyhow!("the audit log is broken: {}", pluralize(broken, "product")).into()),
    }
}

/// The totals of a verification.
struct VerificationSummary {
    products: usize,
    broken: usize,
    /// Whether the report could be written.
    output_result: std::io::Result<()>,
}

impl Default for VerificationSummary {
    fn default() -> Self {
        Self { products: 0, broken: 0, output_result: Ok(()) }
    }
}

impl VerificationSummary {
    fn add(&mut self, checked: VerifiedProduct) {
        // Anyone who can write to the registry can put anything into an id.
        let product_id = single_line(&checked.product_id, 100);
        self.products += 1;
        let line = match checked.rows {
            Ok(rows) => format!("{product_id}: {rows} row(s)"),
            Err(broken) => {
                self.broken += 1;
                format!("{product_id}: BROKEN: {broken}")
            }
        };
        if self.output_result.is_ok() {
            self.output_result = print_line(&line);
        }
    }
}

fn pluralize(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
