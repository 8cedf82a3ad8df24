//! `roundhouse engine list`, `get` and `explain`: what is known about the engines of users.

use api::orchestrator::{
    Action, EngineRecord, EngineStatus, EngineSummary, Explanation, NextAction, RestartAttempt, Transition,
};
use api::{EngineId, ProductId, UserId};
use serde::Deserialize;

use super::output::{Page, ReadOptions, View};
use super::session::{ProductOptions, Scope, ScopeOptions};
use super::{times, watch};
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, Column, fields, table};

/// Arguments of `roundhouse engine list`.
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Only engines in this state: provisioning, running, sleeping, stopped, failed or destroying.
    #[arg(long, value_parser = parse_status)]
    status: Option<EngineStatus>,
    #[command(flatten)]
    page: Page,
    /// Across all products: only engines after this one.
    #[arg(long, value_name = "ENGINE", conflicts_with = "offset", requires = "all_products")]
    after: Option<EngineId>,
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    scope: ScopeOptions,
}

/// Arguments of the commands that show one engine.
#[derive(clap::Args)]
pub(crate) struct OneArgs {
    #[command(flatten)]
    user: UserArgument,
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    product: ProductOptions,
}

/// The user whose engine a command is about.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UserArgument {
    /// The user whose engine it is.
    #[arg(value_parser = parse_user)]
    pub(super) user: UserId,
}

fn parse_user(text: &str) -> Result<UserId, String> {
    crate::engine_access::parse_user(text.to_owned()).map_err(|failure| failure.to_string())
}

pub(super) fn parse_status(text: &str) -> Result<EngineStatus, String> {
    EngineStatus::from_name(text).ok_or_else(|| {
        let names: Vec<_> = EngineStatus::ALL.into_iter().map(EngineStatus::as_str).collect();
        format!("must be one of {}", names.join(", "))
    })
}

/// An engine of a list, which across all products says whose it is.
#[derive(Deserialize)]
struct ListedEngine {
    #[serde(flatten)]
    engine: EngineSummary,
    product_id: Option<ProductId>,
}

#[derive(Deserialize)]
struct ListedEngines {
    engines: Vec<ListedEngine>,
    /// Of a product's list.
    total: Option<u64>,
    /// Where the list across all products goes on.
    next: Option<EngineId>,
}

pub(crate) fn list(args: ListArgs) -> Result<(), Failure> {
    let ListArgs { status, page, after, read, scope } = args;
    super::run(async {
        let (session, scope) = scope.open()?;
        let path = scope.path("engines");
        let call = Call::get(&path).with("status", status.map(EngineStatus::as_str)).with("after", after);
        let call = page.of(call);
        let render = |document: &Document, view: View| list_text(document, scope, page, view);
        watch::show(read, async || session.call(&call).await, &render).await
    })
}

fn list_text(document: &Document, scope: Scope, page: Page, view: View) -> anyhow::Result<String> {
    let ListedEngines { engines, total, next } = document.parse()?;
    if engines.is_empty() {
        let total = total.map(|total| format!("; {total} match in all")).unwrap_or_default();
        return Ok(format!("There is no engine here{total}."));
    }
    let row = |listed: &ListedEngine| {
        let engine = &listed.engine;
        let product =
            (scope == Scope::AllProducts).then(|| listed.product_id.map_or_else(Cell::default, Into::into));
        let cells = vec![
            Cell::new(engine.user_id.as_str()),
            status_cell(engine.status),
            Cell::from(&engine.engine_version),
            Cell::new(engine.url.as_deref().unwrap_or("-")),
            view.ago(engine.created_at).into(),
            times::ago_or_never(engine.last_health_at, view.now).into(),
        ];
        product.into_iter().chain(cells).collect::<Vec<_>>()
    };
    let columns = [
        Column::text("USER"),
        Column::word("STATUS"),
        Column::word("VERSION"),
        Column::word("ADDRESS"),
        Column::word("CREATED"),
        Column::word("HEALTHY"),
    ];
    let product = (scope == Scope::AllProducts).then_some(Column::word("PRODUCT"));
    let columns: Vec<_> = product.into_iter().chain(columns).collect();
    let rows: Vec<_> = engines.iter().map(row).collect();
    let note = match (total, next) {
        (Some(total), _) => page.note(engines.len(), total),
        (None, next) => next.map(|next| format!("--after {next} shows more")),
    };
    Ok([Some(table(&columns, &rows, view.canvas)), note].into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

/// A state, in the colour of what it means.
pub(super) fn status_cell(status: EngineStatus) -> Cell {
    Cell::new(status.as_str()).styled(match status {
        EngineStatus::Running => Style::Green,
        EngineStatus::Failed => Style::Red,
        EngineStatus::Provisioning | EngineStatus::Destroying => Style::Yellow,
        EngineStatus::Sleeping | EngineStatus::Stopped => Style::Dim,
    })
}

pub(crate) fn get(args: OneArgs) -> Result<(), Failure> {
    show(args, None, &get_text)
}

fn get_text(document: &Document, view: View) -> anyhow::Result<String> {
    let EngineRecord { summary: engine, .. } = document.parse()?;
    let health = engine.last_health_at.map_or_else(|| "never".to_owned(), |at| view.exactly(at));
    Ok(fields(
        &[
            ("User", Cell::new(engine.user_id.as_str())),
            ("Status", status_cell(engine.status)),
            ("Engine id", engine.engine_id.into()),
            ("Version", Cell::from(&engine.engine_version)),
            ("Address", Cell::new(engine.url.as_deref().unwrap_or("unknown"))),
            ("Created", view.exactly(engine.created_at).into()),
            ("Healthy", health.into()),
            ("Key", Cell::new("only with --json").styled(Style::Dim)),
        ],
        view.canvas,
    ))
}

pub(crate) fn explain(args: OneArgs) -> Result<(), Failure> {
    show(args, Some("explain"), &explain_text)
}

fn explain_text(document: &Document, view: View) -> anyhow::Result<String> {
    let explanation: Explanation = document.parse()?;
    let mut lines = vec![
        ("Status", status_cell(explanation.status)),
        ("Engine id", explanation.engine_id.into()),
        ("Next", next_text(explanation.next_action, view).into()),
    ];
    if let Some(transition) = &explanation.last_transition {
        lines.push(("Last change", Cell::new(&transition_text(transition, view))));
    }
    if let Some(RestartAttempt { n, max }) = explanation.restart_attempt {
        lines.push(("Restarts", format!("{n} of {max} tried").into()));
    }
    if let Some(caps) = explanation.caps {
        let cap = |value: Option<String>, unit: &str| value.map(|value| format!("{value} {unit}"));
        let caps_text = [
            cap(caps.memory_mb.map(|value| value.to_string()), "MiB"),
            cap(caps.cpus.map(|value| value.to_string()), "processors"),
            cap(caps.pids.map(|value| value.to_string()), "processes"),
        ];
        let applied = if caps.applied { "" } else { " (not applied)" };
        lines.push((
            "Limits",
            format!("{}{applied}", caps_text.into_iter().flatten().collect::<Vec<_>>().join(", ")).into(),
        ));
    }
    for (at, because) in (0..).zip(explanation.awake_because.unwrap_or_default()) {
        lines.push((if at == 0 { "Because" } else { "" }, Cell::new(&because)));
    }
    Ok(fields(&lines, view.canvas))
}

fn next_text(next: NextAction, view: View) -> String {
    let when = next.at.map(|at| format!(" {} ({at})", times::until(at, view.now))).unwrap_or_default();
    match next.action {
        Action::Sleep => format!("it is put to sleep{when} if nobody uses it"),
        Action::Restart => format!("it is restarted{when}"),
        Action::None => "nothing happens by itself".to_owned(),
    }
}

fn transition_text(transition: &Transition, view: View) -> String {
    let state = |status: Option<EngineStatus>| status.map_or("nothing", EngineStatus::as_str);
    let reason = transition.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let (from, to, when) = (state(transition.from), state(transition.to), view.ago(transition.at));
    format!("{}, from {from} to {to}, {when} ({}){reason}", transition.event, transition.at)
}

fn show(
    args: OneArgs,
    part: Option<&'static str>,
    render: &dyn Fn(&Document, View) -> anyhow::Result<String>,
) -> Result<(), Failure> {
    let OneArgs { user, read, product } = args;
    super::run(async {
        let session = product.open()?;
        let path: Vec<&str> = ["engines", user.user.as_str()].into_iter().chain(part).collect();
        watch::show(read, async || session.call(&Call::get(&path)).await, render).await
    })
}
