//! `roundhouse events` and `roundhouse fleet events`: the audit log as it grows. A connection that is cut is taken up
//! again after the last row.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::audit::{AuditList, AuditRow};
use api::{ProductId, Timestamp};
use futures::StreamExt as _;

use super::audit::line;
use super::output::{self, OutputOptions, View};
use super::session::{Scope, ScopeOptions, Session};
use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::remote::MAX_AWAY;

/// The pauses before another attempt to connect: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

/// Arguments of `roundhouse events`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    #[command(flatten)]
    rows: RowOptions,
    #[command(flatten)]
    scope: ScopeOptions,
}

/// Arguments of `roundhouse fleet events`.
#[derive(clap::Args)]
pub(super) struct FleetArgs {
    #[command(flatten)]
    rows: RowOptions,
    #[command(flatten)]
    access: AccessOptions,
}

/// Which rows are printed, and how.
#[derive(clap::Args)]
struct RowOptions {
    /// Go on with new rows until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    /// The number of rows to begin with.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1_000))]
    tail: u16,
    /// Begin after the row with this number; across all products, after this time in Unix milliseconds. 0 is the
    /// beginning.
    #[arg(long, value_name = "ID", conflicts_with = "tail", requires = "follow")]
    after: Option<u64>,
    /// Print each row as the API's JSON, one on a line.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    super::run(async {
        let (session, scope) = args.scope.open()?;
        print_rows(session, scope, args.rows).await
    })
}

/// Prints the rows of all products.
pub(super) async fn print_of_all(args: FleetArgs) -> Result<(), Failure> {
    print_rows(Session::operator(args.access)?, Scope::AllProducts, args.rows).await
}

async fn print_rows(session: Session, scope: Scope, options: RowOptions) -> Result<(), Failure> {
    let RowOptions { follow, tail, after, json } = options;
    let last = after.map(|id| id.to_string());
    let output = OutputOptions { json };
    let mut rows = Rows { session, scope, output, last, seen: Seen::default() };
    if after.is_none() && tail > 0 {
        rows.print_newest(tail).await?;
    }
    if follow { rows.follow().await } else { Ok(()) }
}

/// The rows, and how far they were printed.
struct Rows {
    session: Session,
    scope: Scope,
    output: OutputOptions,
    /// Where the stream goes on: the id of its last message.
    last: Option<String>,
    seen: Seen,
}

/// The rows that were printed. Across products, a stream that is taken up again repeats some rows.
#[derive(Default)]
struct Seen {
    /// The last row of each product, whose rows come in their order.
    last: HashMap<ProductId, i64>,
    /// Across products, when the first one was written: what is older was not asked for.
    since: Option<Timestamp>,
}

impl Seen {
    /// Notes a row; returns whether it is new.
    fn is_new(&mut self, row: &AuditRow) -> bool {
        if self.since.is_some_and(|since| row.at < since) {
            return false;
        }
        let last = self.last.entry(row.product_id).or_insert(0);
        let is_new = row.id > *last;
        *last = row.id.max(*last);
        is_new
    }
}

impl Rows {
    async fn print_newest(&mut self, count: u16) -> Result<(), Failure> {
        let path = self.scope.path("audit");
        let call = Call::get(&path).with("limit", Some(count));
        let AuditList { mut rows } = self.session.call(&call).await?.parse()?;
        rows.reverse();
        for row in &rows {
            self.seen.is_new(row);
            self.print(&serde_json::to_string(row)?)?;
        }
        match self.scope {
            Scope::Product => self.last = rows.last().map(|row| row.id.to_string()),
            // A position is a time, and the rows of some minutes before it come again.
            Scope::AllProducts => {
                self.last = rows.last().map(|row| row.at.unix_ms().to_string());
                self.seen.since = rows.iter().map(|row| row.at).min();
            }
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
            let row: AuditRow = serde_json::from_str(&data).context("an event could not be parsed")?;
            if self.seen.is_new(&row) {
                self.print(&data)?;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_comes_again_is_known() {
        let products = [ProductId::new(), ProductId::new()];
        let row = |product: usize, id: i64, at: i64| -> AuditRow {
            serde_json::from_value(serde_json::json!({
                "id": id, "at": Timestamp::from_unix_ms(at), "product_id": products[product], "engine_id": null,
                "user_id": null, "event": "stop", "duration_ms": null, "detail": {}, "hash": "",
            }))
            .unwrap()
        };
        let mut seen = Seen::default();
        let new: Vec<bool> =
            [row(0, 1, 50), row(1, 1, 51), row(0, 2, 52), row(0, 1, 50), row(1, 1, 51), row(1, 2, 49)]
                .iter()
                .map(|row| seen.is_new(row))
                .collect();
        assert_eq!(new, [true, true, true, false, false, true]);
        seen.since = Some(Timestamp::from_unix_ms(50));
        assert!(!seen.is_new(&row(1, 3, 49)) && seen.is_new(&row(1, 4, 50)));
    }
}
