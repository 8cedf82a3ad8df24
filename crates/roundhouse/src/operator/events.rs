//! `roundhouse events`: the audit log as it grows. A connection that is cut is taken up again after the last row.

use std::time::{Duration, Instant};

use api::audit::{AuditList, AuditRow};
use futures::StreamExt as _;

use super::audit::line;
use super::output::{self, OutputOptions, View};
use super::session::{Scope, ScopeOptions, Session};
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::remote::MAX_AWAY;

/// The pauses before another attempt to connect: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

/// Arguments of `roundhouse events`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    /// Go on with new rows until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    /// The number of rows to begin with.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1_000))]
    tail: u16,
    /// Begin after the row with this number; 0 is the beginning. It follows the rows, too.
    #[arg(long, value_name = "ID", conflicts_with = "tail", requires = "follow")]
    after: Option<u64>,
    /// Print each row as the API's JSON, one on a line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    scope: ScopeOptions,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let Args { follow, tail, after, json, scope } = args;
    super::run(async {
        let (session, scope) = scope.open()?;
        let mut rows =
            Rows { session, scope, output: OutputOptions { json }, last: after.map(|id| id.to_string()) };
        if after.is_none() && tail > 0 {
            rows.print_newest(tail).await?;
        }
        if follow { rows.follow().await } else { Ok(()) }
    })
}

/// The rows, and how far they were printed.
struct Rows {
    session: Session,
    scope: Scope,
    output: OutputOptions,
    /// The id of the last row.
    last: Option<String>,
}

impl Rows {
    async fn print_newest(&mut self, count: u16) -> Result<(), Failure> {
        let path = self.scope.path("audit");
        let call = Call::get(&path).with("limit", Some(count));
        let AuditList { mut rows } = self.session.call(&call).await?.parse()?;
        rows.reverse();
        for row in &rows {
            self.print(&serde_json::to_string(row)?)?;
        }
        // Across products, rows are numbered by each of them.
        if self.scope == Scope::Product {
            self.last = rows.last().map(|row| row.id.to_string());
        }
        Ok(())
    }

    /// Prints new rows until it is interrupted, or the orchestrator is away for too long.
    async fn follow(&mut self) -> Result<(), Failure> {
        let [first_pause, max_pause] = PAUSES;
        let (mut pause, mut away_since) = (first_pause, Instant::now());
        loop {
            match self.read_stream().await {
                Ok(count) if count > 0 => (pause, away_since) = (first_pause, Instant::now()),
                Ok(_) => {}
                Err(failure @ (Failure::Unavailable(_) | Failure::Failed(_))) => {
                    if away_since.elapsed() > MAX_AWAY {
                        return Err(failure);
                    }
                    output::note(&format!("roundhouse: {failure}; trying again"));
                }
                Err(failure) => return Err(failure),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(max_pause);
        }
    }

    /// Prints the rows of one connection until it ends; returns their number.
    async fn read_stream(&mut self) -> Result<u64, Failure> {
        let path = self.scope.path("events");
        let opened = self.session.orchestrator.audit_stream(&path, self.last.as_deref()).await;
        let mut stream = opened.map_err(|error| self.session.failure(error))?;
        let mut count = 0;
        // What breaks a stream is no failure: it is taken up again.
        while let Some(Ok(message)) = stream.next().await {
            let Some(data) = message.data else { continue };
            self.print(&data)?;
            self.last = message.id.or_else(|| self.last.take());
            count += 1;
        }
        Ok(count)
    }

    fn print(&self, row: &str) -> Result<(), Failure> {
        let document = Document::from(row.to_owned());
        let render =
            |document: &Document, view: View| Ok(line(&document.parse::<AuditRow>()?, self.scope, view));
        output::print(&document, self.output, &render)
    }
}
