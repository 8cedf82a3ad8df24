//! `roundhouse audit`: the ledger, checked by its operator.

use anyhow::anyhow;
use clap::Subcommand;
use orchestrator::config::DatabaseUrl;
use orchestrator::{Checked, VerifyError};
use service::env::{ProcessEnv, Reader};

use crate::error::Failure;
use crate::terminal::{on_one_line, say};

/// Arguments of `roundhouse audit`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check that the ledger is as it was written: whole, in order, unchanged, its end included. Reads the
    /// registry that `ORCH_DATABASE_URL` names, also beside a running orchestrator.
    Verify,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match args.command {
        Command::Verify => verify(),
    }
}

fn verify() -> Result<(), Failure> {
    let mut reader = Reader::new(&ProcessEnv);
    let database = DatabaseUrl::read(&mut reader);
    let database = reader.finish(database).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut seen = Seen::default();
    runtime.block_on(orchestrator::verify(&database, |checked| seen.note(checked))).map_err(|error| {
        match error {
            VerifyError::Unreadable { .. } | VerifyError::Unknown { .. } => {
                Failure::usage(format!("{:#}", anyhow::Error::new(error)))
            }
            VerifyError::Database { .. } => error.into(),
        }
    })?;
    seen.said?;
    match seen.broken {
        0 => Ok(say(&format!("the ledger is as it was written: {}", counted(seen.products, "product")))?),
        broken => Err(anyhow!("the ledger is broken: {}", counted(broken, "product")).into()),
    }
}

/// What the check has come to.
struct Seen {
    products: usize,
    broken: usize,
    /// Whether there was somewhere to say it.
    said: std::io::Result<()>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { products: 0, broken: 0, said: Ok(()) }
    }
}

impl Seen {
    fn note(&mut self, checked: Checked) {
        // Whoever can write the registry can write anything into an id.
        let product_id = on_one_line(&checked.product_id, 100);
        self.products += 1;
        let line = match checked.rows {
            Ok(rows) => format!("{product_id}: {rows} row(s)"),
            Err(broken) => {
                self.broken += 1;
                format!("{product_id}: BROKEN: {broken}")
            }
        };
        if self.said.is_ok() {
            self.said = say(&line);
        }
    }
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
