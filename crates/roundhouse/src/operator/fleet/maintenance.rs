//! `roundhouse fleet maintenance`: begins a maintenance, shows it, and ends it.

use api::maintenance::MaintenanceStatus;
use clap::Subcommand;
use reqwest::Method;
use serde_json::json;

use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::operator::confirm::{Expected, confirm};
use crate::operator::output::{self, OutputOptions, ReadOptions, Render, View};
use crate::operator::session::Session;
use crate::operator::watch;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, fields};

const PATH: [&str; 2] = ["fleet", "maintenance"];

#[derive(Subcommand)]
pub(super) enum Command {
    /// Let nothing change an engine until the maintenance is ended. Repeated, it replaces the message.
    Start {
        /// What whoever is refused is told: why, and until when.
        message: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Show whether there is a maintenance, and what is still under way.
    Status {
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// End the maintenance.
    End {
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
}

pub(super) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Start { message, yes, output, access } => {
            let session = Session::operator(access)?;
            let known: MaintenanceStatus = session.call(&Call::get(&PATH)).await?.parse()?;
            if known.maintenance.is_none() {
                let question = "This refuses whatever would provision, start, wake, move, rotate or destroy an engine \
                                of any product, until the maintenance is ended.";
                confirm(question, Expected::Yes, yes).await?;
            }
            let body = json!({"message": message});
            let document = session.call(&Call::new(Method::PUT, &PATH).json(&body)).await?;
            output::print(&document, output, &status_text)
        }
        Command::Status { read, access } => {
            let session = Session::operator(access)?;
            watch::show(read, async || session.call(&Call::get(&PATH)).await, &status_text).await
        }
        Command::End { output, access } => {
            let render: Render<'_> = &|document, _| {
                let MaintenanceStatus { .. } = document.parse()?;
                Ok("There is no maintenance: engines are changed as ever.".to_owned())
            };
            let call = Call::new(Method::DELETE, &PATH);
            output::print(&Session::operator(access)?.call(&call).await?, output, render)
        }
    }
}

fn status_text(document: &Document, view: View) -> anyhow::Result<String> {
    let MaintenanceStatus { maintenance, changes_under_way } = document.parse()?;
    let changing = ("Changing", Cell::from(changes_under_way));
    let lines = match &maintenance {
        Some(maintenance) => vec![
            ("Maintenance", Cell::new(&view.exactly(maintenance.since)).styled(Style::Yellow)),
            ("Message", Cell::new(maintenance.message.as_str())),
            changing,
        ],
        None => vec![("Maintenance", Cell::new("none")), changing],
    };
    Ok(fields(&lines, view.canvas))
}
