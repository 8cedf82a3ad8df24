//! `roundhouse audit list`: what happened to the engines of a product.

use api::audit::AuditRow;
use serde::Deserialize;

use super::output::{self, ReadOptions, View};
use super::session::{Scope, ScopeOptions};
use super::watch;
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::single_line;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, Column, table};

/// How much is shown of a row's details, in characters.
const MAX_DETAIL_CHARS: usize = 200;

/// Arguments of `roundhouse audit list`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct ListArgs {
    /// The number of rows at most; 100 by default.
    #[arg(long)]
    limit: Option<i64>,
    /// Only rows older than the one with this number; across all products, where the page before says so.
    #[arg(long, value_name = "ID")]
    before: Option<String>,
    /// Only rows of this event, such as `crash`.
    #[arg(long)]
    event: Option<String>,
    /// Only rows about this user's engines.
    #[arg(long)]
    user: Option<String>,
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    scope: ScopeOptions,
}

/// A page of the audit log.
#[derive(Deserialize)]
struct ListedRows {
    rows: Vec<AuditRow>,
    /// Where the list across all products goes on.
    next: Option<String>,
}

pub(crate) fn list(args: ListArgs) -> Result<(), Failure> {
    let ListArgs { limit, before, event, user, read, scope } = args;
    super::run(async {
        let (session, scope) = scope.open()?;
        let path = scope.path("audit");
        let call = Call::get(&path)
            .with("limit", limit)
            .with("before", before)
            .with("event", event)
            .with("user_id", user);
        let render = |document: &Document, view: View| list_text(document, scope, view);
        watch::show(read, async || session.call(&call).await, &render).await
    })
}

fn list_text(document: &Document, scope: Scope, view: View) -> anyhow::Result<String> {
    let ListedRows { rows, next } = document.parse()?;
    let Some(last) = rows.last() else { return Ok("There is no such row.".to_owned()) };
    let next = next.or_else(|| Some(last.id.to_string()).filter(|_| scope == Scope::Product && last.id > 1));
    let note = next.map(|next| format!("Older rows: --before {}", single_line(&next, MAX_DETAIL_CHARS)));
    let cells = |row: &AuditRow| {
        let product = (scope == Scope::AllProducts).then(|| row.product_id.into());
        let cells = vec![
            row.id.into(),
            view.ago(row.at).into(),
            event_cell(row),
            row.user_id.as_ref().map_or_else(|| "-".into(), |user| Cell::new(user.as_str())),
            row.duration_ms.map_or_else(|| "-".into(), |duration| format!("{duration} ms").into()),
            Cell::excerpt(row.detail.get(), MAX_DETAIL_CHARS),
        ];
        product.into_iter().chain(cells).collect::<Vec<_>>()
    };
    let product = (scope == Scope::AllProducts).then_some(Column::word("PRODUCT"));
    let columns = [
        Column::number("ID"),
        Column::word("WHEN"),
        Column::word("EVENT"),
        Column::text("USER"),
        Column::number("TOOK"),
        Column::text("DETAIL"),
    ];
    let columns: Vec<_> = product.into_iter().chain(columns).collect();
    let rows: Vec<_> = rows.iter().map(cells).collect();
    Ok([Some(table(&columns, &rows, view.canvas)), note].into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

fn event_style(event: &str) -> Style {
    match event {
        "crash" | "provision_failed" => Style::Red,
        "restart" | "destroy" => Style::Yellow,
        _ => Style::Plain,
    }
}

fn event_cell(row: &AuditRow) -> Cell {
    Cell::new(&row.event).styled(event_style(&row.event))
}

/// A row on one line, with the exact time, for a list that grows.
pub(super) fn line(row: &AuditRow, scope: Scope, view: View) -> String {
    let product = if scope == Scope::AllProducts { format!("{}  ", row.product_id) } else { String::new() };
    let user = row.user_id.as_ref().map(|user| format!("  {}", single_line(user.as_str(), usize::MAX)));
    let took = row.duration_ms.map(|duration| format!("  {duration} ms"));
    let event = single_line(&row.event, MAX_DETAIL_CHARS);
    let event = event_style(&row.event).paint(&event, view.canvas.colours);
    format!(
        "{}  {product}#{}  {event}{}{}  {}",
        row.at,
        row.id,
        user.unwrap_or_default(),
        took.unwrap_or_default(),
        single_line(row.detail.get(), MAX_DETAIL_CHARS)
    )
}
