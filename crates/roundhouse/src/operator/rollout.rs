//! `roundhouse rollout`: moves all engines to another image, step by step, and back.

use api::rollout::{
    OnFailure, Rollout, RolloutEngine, RolloutEngineList, RolloutEngineState, RolloutList, RolloutPhase,
};
use api::{EngineId, EngineImage, RolloutId};
use clap::{Subcommand, ValueEnum};
use reqwest::Method;
use serde_json::json;

use super::confirm::{Expected, confirm};
use super::output::{self, OutputOptions, ReadOptions, Render, View};
use super::session::Session;
use super::watch;
use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, Column, fields, table};

const PATH: [&str; 2] = ["fleet", "rollouts"];

/// How much is shown of the reason of a failure, in characters.
const MAX_REASON_CHARS: usize = 300;

/// Arguments of `roundhouse rollout`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Move all engines to another image: some first, then the others; back again if too many fail.
    Start(StartArgs),
    /// Show how far a rollout is.
    Status(ShowArgs),
    /// List the last rollouts, newest first.
    List {
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// List the engines that a rollout has begun with.
    Engines(EnginesArgs),
    /// Move no engine until the rollout is resumed.
    Pause(ActArgs),
    /// Go on with a rollout that is paused. What has failed so far is accepted.
    Resume(ActArgs),
    /// Let the engines of a rollout go back to the image that they had.
    Rollback(RollbackArgs),
}

#[derive(clap::Args)]
struct StartArgs {
    /// The image: a name with an exact version, such as svc-engine:1.2.3.
    image: EngineImage,
    /// How many engines are moved first, in percent [default: 5].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(i64).range(0..=100))]
    canary: Option<i64>,
    /// How long these are watched before the others follow [default: 600].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..=2_592_000))]
    bake: Option<i64>,
    /// When engines that run are moved, if they do not sleep before [default: 86400].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..=2_592_000))]
    window: Option<i64>,
    /// How many engines may fail [default: 0].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(0..=1_000_000))]
    max_failures: Option<i64>,
    /// How many calls to engines on the new version may fail, in percent [default: 5].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(i64).range(0..=100))]
    max_errors: Option<i64>,
    /// How many engines are moved at the same time [default: 4].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(1..=64))]
    concurrency: Option<i64>,
    /// What happens when too many fail [default: roll-back].
    #[arg(long, value_enum)]
    on_failure: Option<OnFailureChoice>,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    access: AccessOptions,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnFailureChoice {
    /// All engines go back.
    RollBack,
    /// The rollout pauses.
    Pause,
}

impl From<OnFailureChoice> for OnFailure {
    fn from(choice: OnFailureChoice) -> Self {
        match choice {
            OnFailureChoice::RollBack => Self::RollBack,
            OnFailureChoice::Pause => Self::Pause,
        }
    }
}

#[derive(clap::Args)]
struct ShowArgs {
    /// The rollout's id; by default the last one.
    rollout: Option<RolloutId>,
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    access: AccessOptions,
}

#[derive(clap::Args)]
struct ActArgs {
    /// The rollout's id; by default the last one.
    rollout: Option<RolloutId>,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    access: AccessOptions,
}

#[derive(clap::Args)]
struct RollbackArgs {
    /// The rollout's id; by default the last one.
    rollout: Option<RolloutId>,
    /// Let engines go back that were used since, though what their users have said meanwhile is lost where the newer
    /// version has migrated their data.
    #[arg(long)]
    discard_new_turns: bool,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    access: AccessOptions,
}

#[derive(clap::Args)]
struct EnginesArgs {
    /// The rollout's id; by default the last one.
    rollout: Option<RolloutId>,
    /// Only engines in this state: moving, moved, failed, unhealthy, skipped, `rolled_back` or stuck.
    #[arg(long, value_parser = parse_state)]
    state: Option<RolloutEngineState>,
    /// The number of rows at most; 100 by default.
    #[arg(long)]
    limit: Option<i64>,
    /// Only engines after this one: where the page before says so.
    #[arg(long, value_name = "ENGINE")]
    after: Option<EngineId>,
    #[command(flatten)]
    read: ReadOptions,
    #[command(flatten)]
    access: AccessOptions,
}

fn parse_state(text: &str) -> Result<RolloutEngineState, String> {
    RolloutEngineState::from_name(text).ok_or_else(|| {
        let names = RolloutEngineState::ALL.map(RolloutEngineState::as_str);
        format!("must be one of {}", names.join(", "))
    })
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    super::run(async {
        match args.command {
            Command::Start(args) => start(args).await,
            Command::Status(args) => status(args).await,
            Command::List { read, access } => {
                let session = Session::operator(access)?;
                watch::show(read, async || session.call(&Call::get(&PATH)).await, &list_text).await
            }
            Command::Engines(args) => engines(args).await,
            Command::Pause(args) => act(args, "pause").await,
            Command::Resume(args) => act(args, "resume").await,
            Command::Rollback(args) => roll_back(args).await,
        }
    })
}

async fn start(args: StartArgs) -> Result<(), Failure> {
    let session = Session::operator(args.access)?;
    let question = format!(
        "This moves the engines of all products to {}, and back again if too many of them fail.",
        args.image
    );
    confirm(&question, Expected::Yes, args.yes).await?;
    let mut body = json!({"engine_version": args.image});
    if let Some(fields) = body.as_object_mut() {
        let numbers = [
            ("canary_percent", args.canary),
            ("bake_s", args.bake),
            ("window_s", args.window),
            ("max_failures", args.max_failures),
            ("max_error_percent", args.max_errors),
            ("concurrency", args.concurrency),
        ];
        fields
            .extend(numbers.into_iter().filter_map(|(name, number)| Some((name.to_owned(), number?.into()))));
        if let Some(choice) = args.on_failure {
            fields.insert("on_failure".to_owned(), json!(OnFailure::from(choice)));
        }
    }
    let call = Call::new(Method::POST, &PATH).json(&body);
    let render: Render<'_> = &|document, view| {
        let text = rollout_text(document, view)?;
        Ok(format!("{text}\n\n`roundhouse rollout status --watch` shows how far it is."))
    };
    output::print(&session.call(&call).await?, args.output, render)
}

async fn status(args: ShowArgs) -> Result<(), Failure> {
    let session = Session::operator(args.access)?;
    let id = find(&session, args.rollout).await?;
    let path = [PATH[0], PATH[1], &id];
    watch::show(args.read, async || session.call(&Call::get(&path)).await, &rollout_text).await
}

async fn act(args: ActArgs, what: &'static str) -> Result<(), Failure> {
    let session = Session::operator(args.access)?;
    let id = find(&session, args.rollout).await?;
    let path = [PATH[0], PATH[1], &id, what];
    output::print(&session.call(&Call::new(Method::POST, &path)).await?, args.output, &rollout_text)
}

async fn roll_back(args: RollbackArgs) -> Result<(), Failure> {
    let session = Session::operator(args.access)?;
    let id = find(&session, args.rollout).await?;
    let path = [PATH[0], PATH[1], &id];
    // Before a person is asked: so that they know what they confirm.
    let rollout: Rollout = session.call(&Call::get(&path)).await?.parse()?;
    let engines = rollout.engines.moved + rollout.engines.unhealthy + rollout.engines.stuck;
    let loss = if args.discard_new_turns {
        " Where the newer version has migrated an engine's data, what its user has said since is lost."
    } else {
        ""
    };
    let question = format!("This moves {engines} engines back to {}.{loss}", rollout.previous_version);
    confirm(&question, Expected::Yes, args.yes).await?;
    let path = [PATH[0], PATH[1], &id, "rollback"];
    let body = json!({"discard_new_turns": args.discard_new_turns});
    let call = Call::new(Method::POST, &path).json(&body);
    output::print(&session.call(&call).await?, args.output, &rollout_text)
}

async fn engines(args: EnginesArgs) -> Result<(), Failure> {
    let session = Session::operator(args.access)?;
    let id = find(&session, args.rollout).await?;
    let path = [PATH[0], PATH[1], &id, "engines"];
    let state = args.state.map(|state| state.as_str().to_owned());
    let call = Call::get(&path).with("state", state).with("limit", args.limit).with("after", args.after);
    watch::show(args.read, async || session.call(&call).await, &engines_text).await
}

/// The id of the rollout that was named, or of the last one.
async fn find(session: &Session, named: Option<RolloutId>) -> Result<String, Failure> {
    if let Some(id) = named {
        return Ok(id.to_string());
    }
    let RolloutList { rollouts } = session.call(&Call::get(&PATH)).await?.parse()?;
    match rollouts.first() {
        Some(last) => Ok(last.rollout_id.to_string()),
        None => Err(Failure::NotFound("there was no rollout so far".to_owned())),
    }
}

fn phase_cell(rollout: &Rollout) -> Cell {
    let name = rollout.phase.as_str().replace('_', " ");
    let style = match rollout.phase {
        RolloutPhase::Completed => Style::Green,
        RolloutPhase::RollingBack | RolloutPhase::RolledBack => Style::Red,
        RolloutPhase::Canary | RolloutPhase::Baking | RolloutPhase::Rolling => Style::Yellow,
    };
    let paused = if rollout.paused { ", paused" } else { "" };
    Cell::new(&format!("{name}{paused}")).styled(style)
}

fn rollout_text(document: &Document, view: View) -> anyhow::Result<String> {
    let rollout: Rollout = document.parse()?;
    let counted = |count: u64, style| Cell::from(count).styled(if count > 0 { style } else { Style::Plain });
    let engines = &rollout.engines;
    let mut lines = vec![
        ("Rollout", Cell::from(&rollout.rollout_id)),
        ("Image", Cell::new(rollout.engine_version.as_str())),
        ("Before", Cell::new(rollout.previous_version.as_str())),
        ("Phase", phase_cell(&rollout)),
        ("Since", view.exactly(rollout.phase_since).into()),
    ];
    if let Some(reason) = &rollout.reason {
        lines.push(("Why", Cell::excerpt(reason, MAX_REASON_CHARS)));
    }
    lines.extend([
        ("Waiting", engines.waiting.into()),
        ("Moving", engines.moving.into()),
        ("Moved", engines.moved.into()),
        ("Failed", counted(engines.failed, Style::Red)),
        ("Unhealthy", counted(engines.unhealthy, Style::Red)),
        ("Skipped", engines.skipped.into()),
        ("Rolled back", engines.rolled_back.into()),
        ("Stuck", counted(engines.stuck, Style::Red)),
    ]);
    Ok(fields(&lines, view.canvas))
}

fn list_text(document: &Document, view: View) -> anyhow::Result<String> {
    let RolloutList { rollouts } = document.parse()?;
    if rollouts.is_empty() {
        return Ok("There was no rollout so far.".to_owned());
    }
    let columns = [
        Column::word("ROLLOUT"),
        Column::text("IMAGE"),
        Column::word("PHASE"),
        Column::number("MOVED"),
        Column::number("FAILED"),
        Column::word("BEGAN"),
    ];
    let row = |rollout: &Rollout| {
        vec![
            Cell::from(&rollout.rollout_id),
            Cell::new(rollout.engine_version.as_str()),
            phase_cell(rollout),
            rollout.engines.moved.into(),
            (rollout.engines.failed + rollout.engines.unhealthy).into(),
            view.ago(rollout.started_at).into(),
        ]
    };
    Ok(table(&columns, &rollouts.iter().map(row).collect::<Vec<_>>(), view.canvas))
}

fn engines_text(document: &Document, view: View) -> anyhow::Result<String> {
    let RolloutEngineList { engines, next } = document.parse()?;
    if engines.is_empty() {
        return Ok("There is no such engine.".to_owned());
    }
    let columns = [
        Column::word("PRODUCT"),
        Column::text("USER"),
        Column::word("STATE"),
        Column::word("SINCE"),
        Column::text("WHY"),
    ];
    let row = |engine: &RolloutEngine| {
        let why = engine.error.as_ref().map(|error| format!("{} ({})", error.message, error.code));
        vec![
            Cell::from(&engine.product_id),
            Cell::new(engine.user_id.as_str()),
            Cell::new(&engine.state.as_str().replace('_', " ")),
            view.ago(engine.since).into(),
            Cell::excerpt(&why.unwrap_or_default(), MAX_REASON_CHARS),
        ]
    };
    let table = table(&columns, &engines.iter().map(row).collect::<Vec<_>>(), view.canvas);
    Ok(match next {
        Some(next) => format!("{table}\n--after {next} shows more"),
        None => table,
    })
}
