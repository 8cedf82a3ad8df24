//! `roundhouse fleet drain`: begins a drain, shows how far it is, and ends it.

use api::fleet::{DrainProgress, DrainStatus, EngineFailure};
use clap::Subcommand;
use reqwest::Method;

use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::operator::confirm::{Expected, confirm};
use crate::operator::output::{self, OutputOptions, ReadOptions, Render, View};
use crate::operator::session::Session;
use crate::operator::watch;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, Column, fields, table};

const PATH: [&str; 2] = ["fleet", "drain"];

/// How much is shown of the reason of a failure, in characters.
const MAX_REASON_CHARS: usize = 300;

#[derive(Subcommand)]
pub(super) enum Command {
    /// Put all engines to sleep, and start none until the drain is ended.
    Start {
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Show how many engines are left, and which could not be put to sleep.
    Status {
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Let engines start again. Each is woken when somebody needs it.
    End {
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
}

pub(super) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Start { yes, output, access } => start(yes, output, access).await,
        Command::Status { read, access } => {
            let session = Session::operator(access)?;
            let call = Call::get(&PATH);
            watch::show(read, async || session.call(&call).await, &progress_text).await
        }
        Command::End { output, access } => {
            let render: Render<'_> = &|document, _| {
                let DrainStatus { .. } = document.parse()?;
                Ok("Nothing is drained: engines start again when somebody needs them.".to_owned())
            };
            let call = Call::new(Method::DELETE, &PATH);
            output::print(&Session::operator(access)?.call(&call).await?, output, render)
        }
    }
}

async fn start(yes: bool, options: OutputOptions, access: AccessOptions) -> Result<(), Failure> {
    let session = Session::operator(access)?;
    // Before a person is asked: so that they know what they confirm, and nobody confirms what cannot be done.
    let DrainProgress { drained_since, left, .. } = session.call(&Call::get(&PATH)).await?.parse()?;
    if drained_since.is_none() {
        let question = format!(
            "This puts the engines of all products to sleep ({left} run or are being changed), and lets none start \
             until the drain is ended."
        );
        confirm(&question, Expected::Yes, yes).await?;
    }
    let render: Render<'_> = &|document, view| {
        let DrainStatus { drained_since, left } = document.parse()?;
        let since = drained_since.map_or_else(|| "now".to_owned(), |since| view.exactly(since));
        Ok(format!(
            "The deployment is drained since {since}; engines left: {left}.\n\
             `roundhouse fleet drain status --watch` shows how far it is, `roundhouse fleet drain end` ends it."
        ))
    };
    output::print(&session.call(&Call::new(Method::POST, &PATH)).await?, options, render)
}

fn progress_text(document: &Document, view: View) -> anyhow::Result<String> {
    let DrainProgress { drained_since, left, asleep, failing, failures } = document.parse()?;
    let state = match (drained_since, left) {
        (None, _) => Cell::new("none"),
        (Some(since), 0) => {
            Cell::new(&format!("complete, began {}", view.exactly(since))).styled(Style::Green)
        }
        (Some(since), _) => {
            Cell::new(&format!("under way, began {}", view.exactly(since))).styled(Style::Yellow)
        }
    };
    let failing_cell = Cell::from(failing).styled(if failing > 0 { Style::Red } else { Style::Plain });
    let lines =
        [("Drain", state), ("Left", left.into()), ("Asleep", asleep.into()), ("Failing", failing_cell)];
    let shown = failures.len();
    let note = (failing > shown as u64).then(|| format!("{shown} of {failing} are shown"));
    let rows: Vec<_> = failures.iter().map(|failure| failure_row(failure, view)).collect();
    let columns = [
        Column::word("PRODUCT"),
        Column::text("USER"),
        Column::word("FAILING"),
        Column::number("ATTEMPTS"),
        Column::text("WHY"),
    ];
    let table = (shown > 0).then(|| table(&columns, &rows, view.canvas));
    let table = table.map(|table| [Some(table), note].into_iter().flatten().collect::<Vec<_>>().join("\n"));
    Ok([Some(fields(&lines, view.canvas)), table].into_iter().flatten().collect::<Vec<_>>().join("\n\n"))
}

fn failure_row(failure: &EngineFailure, view: View) -> Vec<Cell> {
    let EngineFailure { product_id, user_id, since, attempts, error, .. } = failure;
    vec![
        product_id.into(),
        Cell::new(user_id.as_str()),
        view.ago(*since).into(),
        attempts.into(),
        Cell::excerpt(&format!("{} ({})", error.message, error.code), MAX_REASON_CHARS),
    ]
}
