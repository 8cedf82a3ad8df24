//! `roundhouse fleet log-filter` and `roundhouse engine log-filter`: what services log, changed for some time.

use api::log_filter::LogFilter;
use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::engine::UserArgument;
use super::output::{self, OutputOptions, Render, View};
use super::session::{ProductOptions, Session};
use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::terminal::single_line;
use crate::terminal::table::{Cell, fields};

/// What to do with the orchestrator's filter.
#[derive(Subcommand)]
pub(super) enum FleetCommand {
    /// Show what the orchestrator logs.
    Get {
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Change what the orchestrator logs, for some time.
    Set {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Let the configured filter hold again.
    Reset {
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
}

/// What to do with an engine's filter.
#[derive(Subcommand)]
pub(crate) enum EngineCommand {
    /// Show what an engine logs.
    Get {
        #[command(flatten)]
        user: UserArgument,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// Change what an engine logs, for some time.
    Set {
        #[command(flatten)]
        user: UserArgument,
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
    /// Let the configured filter hold again.
    Reset {
        #[command(flatten)]
        user: UserArgument,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        product: ProductOptions,
    },
}

/// A filter, and for how long it holds.
#[derive(clap::Args)]
pub(crate) struct Filter {
    /// A level (error, warn, info, debug, trace), or a list such as `info,engine=debug`.
    filter: String,
    /// After how many seconds the configured filter holds again.
    #[arg(long = "for", value_name = "SECONDS", default_value_t = api::log_filter::DEFAULT_FILTER_SECONDS)]
    seconds: i64,
}

impl Filter {
    fn body(&self) -> Value {
        json!({"filter": self.filter, "for_s": self.seconds})
    }
}

const FLEET_PATH: [&str; 2] = ["fleet", "log-filter"];

pub(super) async fn run_fleet(command: FleetCommand) -> Result<(), Failure> {
    let (method, body, output, access) = match command {
        FleetCommand::Get { output, access } => (Method::GET, None, output, access),
        FleetCommand::Set { filter, output, access } => (Method::PUT, Some(filter.body()), output, access),
        FleetCommand::Reset { output, access } => (Method::DELETE, None, output, access),
    };
    call(&Session::operator(access)?, (method, &FLEET_PATH, body), output).await
}

pub(crate) fn run_engine(command: EngineCommand) -> Result<(), Failure> {
    super::run(async {
        let (method, body, user, output, product) = match command {
            EngineCommand::Get { user, output, product } => (Method::GET, None, user, output, product),
            EngineCommand::Set { user, filter, output, product } => {
                (Method::PUT, Some(filter.body()), user, output, product)
            }
            EngineCommand::Reset { user, output, product } => (Method::DELETE, None, user, output, product),
        };
        let path = ["engines", user.user.as_str(), "log-filter"];
        call(&product.open()?, (method, &path, body), output).await
    })
}

/// Makes a call and shows the filter that it returns.
async fn call(
    session: &Session,
    (method, path, body): (Method, &[&str], Option<Value>),
    output: OutputOptions,
) -> Result<(), Failure> {
    let call = Call::new(method, path);
    let call = match &body {
        Some(body) => call.json(body),
        None => call,
    };
    let document = session.call(&call).await?;
    let render: Render<'_> = &|document: &Document, view: View| {
        let LogFilter { active, configured, expires_at } = document.parse()?;
        let until = expires_at.map_or_else(|| "it is changed".to_owned(), |at| at.to_string());
        let lines = [
            ("Filter", Cell::new(&single_line(&active, usize::MAX))),
            ("Until", Cell::new(&until)),
            ("Configured", Cell::new(&single_line(&configured, usize::MAX))),
        ];
        Ok(fields(&lines, view.canvas))
    };
    output::print(&document, output, render)
}
