//! `roundhouse backup`: makes backups of a deployment, and shows, verifies and removes them.

use std::time::Duration;

use api::backup::{BackupAction, BackupFailure, BackupJob, BackupList, BackupStatus, StartBackupJob};
use api::{ProductId, UserId};
use clap::Subcommand;
use reqwest::Method;

use super::output::{self, OutputOptions, ReadOptions, View};
use super::session::Session;
use super::watch;
use crate::client::{Call, Document};
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::terminal::single_line;
use crate::terminal::style::Style;
use crate::terminal::table::{Cell, Column, fields, table};

const PATH: [&str; 2] = ["fleet", "backups"];

/// The time between two looks at a job.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How much is shown of the reason of a failure, in characters.
const MAX_REASON_CHARS: usize = 300;

/// Arguments of `roundhouse backup`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Back up all engines and the registry, or the engines of one product or user, and wait until that is done.
    Start {
        /// Back up engines that have not changed, too, and store again what the store has already.
        #[arg(long)]
        full: bool,
        #[command(flatten)]
        job: JobArgs,
    },
    /// Show what is set, the job under way, and the latest jobs.
    Status {
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// List the backups of a user's engine, the latest first; without a user, those of the registry.
    List {
        /// The user's product.
        #[arg(long, value_name = "ID", requires = "user")]
        product: Option<ProductId>,
        /// The user.
        #[arg(long, value_name = "USER", requires = "product", value_parser = parse_user)]
        user: Option<UserId>,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        access: AccessOptions,
    },
    /// Read backups from the store as a restore would, and check them, and wait until that is done.
    Verify {
        /// The backup of a single user's engine; by default the latest one.
        #[arg(long, value_name = "BACKUP", requires = "user")]
        backup: Option<String>,
        #[command(flatten)]
        job: JobArgs,
    },
    /// Remove what is not kept any more, and wait until that is done.
    Collect {
        #[command(flatten)]
        job: JobArgs,
    },
}

/// What a job is about, and whether it is waited for.
#[derive(clap::Args)]
pub(super) struct JobArgs {
    /// Only engines of this product.
    #[arg(long, value_name = "ID")]
    pub(super) product: Option<ProductId>,
    /// Only this user's engine.
    #[arg(long, value_name = "USER", requires = "product", value_parser = parse_user)]
    pub(super) user: Option<UserId>,
    #[command(flatten)]
    pub(super) run: RunArgs,
}

/// Whether a job is waited for, and how it is shown.
#[derive(clap::Args)]
pub(super) struct RunArgs {
    /// Do not wait for the end of the job: `roundhouse backup status` shows it.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    pub(super) access: AccessOptions,
}

/// Parses a user's id.
pub(super) fn parse_user(text: &str) -> Result<UserId, String> {
    UserId::new(text).map_err(|error| error.to_string())
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    super::run(async {
        match args.command {
            Command::Start { full, job } => run_job(BackupAction::BackUp, None, full, job).await,
            Command::Verify { backup, job } => run_job(BackupAction::Verify, backup, false, job).await,
            Command::Collect { job } => run_job(BackupAction::Collect, None, false, job).await,
            Command::Status { read, access } => {
                let session = Session::operator(access)?;
                let call = Call::get(&PATH);
                watch::show(read, async || session.call(&call).await, &status_text).await
            }
            Command::List { product, user, output, access } => {
                let call = Call::get(&["fleet", "backups", "list"]);
                let call =
                    call.with("product_id", product).with("user_id", user.as_ref().map(UserId::as_str));
                output::print(&Session::operator(access)?.call(&call).await?, output, &list_text)
            }
        }
    })
}

async fn run_job(
    action: BackupAction,
    backup_id: Option<String>,
    full: bool,
    args: JobArgs,
) -> Result<(), Failure> {
    let JobArgs { product, user, run } = args;
    let job = StartBackupJob { action, product_id: product, user_id: user, backup_id, full };
    follow(&job, run).await
}

/// Begins a job, and shows its progress until it ends.
pub(super) async fn follow(job: &StartBackupJob, args: RunArgs) -> Result<(), Failure> {
    let RunArgs { detach, output, access } = args;
    let session = Session::operator(access)?;
    let body = serde_json::to_value(job)?;
    let mut document = session.call(&Call::new(Method::POST, &PATH).json(&body)).await?;
    let BackupStatus { current, recent, .. } = document.parse()?;
    // A short job may have ended already.
    let begun = current.or_else(|| recent.into_iter().next()).map(|job| job.started_at);
    if detach {
        return output::print(&document, output, &status_text);
    }
    let mut noted = 0;
    let ended = loop {
        let BackupStatus { current, recent, .. } = document.parse()?;
        let of_this = |job: &BackupJob| Some(job.started_at) == begun;
        if let Some(ended) = recent.into_iter().find(of_this) {
            break ended;
        }
        match current.filter(of_this) {
            Some(current) if current.done > noted => {
                noted = current.done;
                output::note(&format!("{} of {} done", current.done, current.total));
            }
            Some(_) => {}
            None => return Err(anyhow::anyhow!("the orchestrator was restarted, which ended the job").into()),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        document = session.call(&Call::get(&PATH)).await?;
    };
    if output.json {
        output::print_line(&serde_json::to_string(&ended)?)?;
    } else {
        output::print_line(&ended_text(&ended))?;
    }
    match (&ended.error, ended.failed) {
        (None, 0) => Ok(()),
        (Some(error), _) => Err(anyhow::anyhow!("the job ended early: {}", error.message).into()),
        (None, failed) => Err(anyhow::anyhow!("{failed} of {} failed", ended.total).into()),
    }
}

fn ended_text(job: &BackupJob) -> String {
    let mut lines: Vec<_> = job
        .failures
        .iter()
        .map(|failure| {
            let reason = single_line(&failure.error.message, MAX_REASON_CHARS);
            format!("{}: {reason} ({})", name_of(failure), failure.error.code)
        })
        .collect();
    let BackupJob { done, unchanged, failed, bytes, stored_bytes, .. } = job;
    let verb = verb(job.action);
    lines.push(format!(
        "{} {verb}, {unchanged} unchanged, {failed} failed; {} of content, {} in the store.",
        done.saturating_sub(unchanged + failed),
        size(*bytes),
        size(*stored_bytes),
    ));
    lines.join("\n")
}

const fn verb(action: BackupAction) -> &'static str {
    match action {
        BackupAction::BackUp => "backed up",
        BackupAction::Verify => "verified",
        BackupAction::Restore => "restored",
        BackupAction::Collect => "collected",
    }
}

fn name_of(failure: &BackupFailure) -> String {
    match (&failure.user_id, failure.product_id) {
        (Some(user), Some(product)) => format!("{} of {product}", single_line(user.as_str(), usize::MAX)),
        _ => "the registry".to_owned(),
    }
}

fn status_text(document: &Document, view: View) -> anyhow::Result<String> {
    let BackupStatus { target, interval_s, keep_last, keep_days, next_at, current, recent } =
        document.parse()?;
    let Some(target) = target else {
        return Ok("Backups are not configured: set ORCH_BACKUP_URL.".to_owned());
    };
    let schedule = interval_s.map_or_else(|| "none".to_owned(), |interval| format!("every {interval} s"));
    let next = next_at.map(|next| super::times::until(next, view.now)).unwrap_or_default();
    let kept = format!("{} days, {} at least", keep_days.unwrap_or_default(), keep_last.unwrap_or_default());
    let lines = [
        ("Store", Cell::new(&target)),
        ("Schedule", Cell::new(&schedule)),
        ("Next", Cell::new(&next)),
        ("Kept", Cell::new(&kept)),
    ];
    let columns = [
        Column::word("JOB"),
        Column::word("BEGAN"),
        Column::word("STATE"),
        Column::number("DONE"),
        Column::number("UNCHANGED"),
        Column::number("FAILED"),
        Column::word("CONTENT"),
        Column::word("STORE"),
    ];
    let rows: Vec<_> = current.iter().chain(&recent).map(|job| job_row(job, view)).collect();
    let jobs = (!rows.is_empty()).then(|| table(&columns, &rows, view.canvas));
    Ok([Some(fields(&lines, view.canvas)), jobs].into_iter().flatten().collect::<Vec<_>>().join("\n\n"))
}

fn job_row(job: &BackupJob, view: View) -> Vec<Cell> {
    let state = match (&job.ended_at, &job.error, job.failed) {
        (None, None, _) => Cell::new("under way").styled(Style::Yellow),
        (None, Some(_), _) => Cell::new("interrupted").styled(Style::Red),
        (Some(_), None, 0) => Cell::new("done").styled(Style::Green),
        (Some(_), ..) => Cell::new("failed").styled(Style::Red),
    };
    vec![
        Cell::new(verb(job.action)),
        Cell::new(&view.ago(job.started_at)),
        state,
        Cell::new(&format!("{}/{}", job.done, job.total)),
        job.unchanged.into(),
        job.failed.into(),
        Cell::new(&size(job.bytes)),
        Cell::new(&size(job.stored_bytes)),
    ]
}

fn list_text(document: &Document, view: View) -> anyhow::Result<String> {
    let BackupList { backups } = document.parse()?;
    if backups.is_empty() {
        return Ok("There are no backups.".to_owned());
    }
    let columns = [
        Column::word("BACKUP"),
        Column::word("MADE"),
        Column::word("AT REST"),
        Column::word("VERSION"),
        Column::number("ENTRIES"),
        Column::number("SKIPPED"),
        Column::word("CONTENT"),
    ];
    let row = |backup: &api::backup::StoredBackup| {
        vec![
            Cell::new(&backup.backup_id),
            Cell::new(&view.exactly(backup.at)),
            Cell::new(if backup.at_rest { "yes" } else { "no" }),
            Cell::new(&backup.version),
            backup.entries.into(),
            backup.skipped.into(),
            Cell::new(&size(backup.bytes)),
        ]
    };
    Ok(table(&columns, &backups.iter().map(row).collect::<Vec<_>>(), view.canvas))
}

/// A number of bytes for people.
fn size(bytes: u64) -> String {
    let mut unit = "B";
    let mut shown = bytes;
    let mut tenths = 0;
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if shown < 1_024 {
            break;
        }
        tenths = shown % 1_024 * 10 / 1_024;
        shown /= 1_024;
        unit = larger;
    }
    if unit == "B" { format!("{shown} B") } else { format!("{shown}.{tenths} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_their_largest_unit() {
        let shown = [0, 1_023, 1_024, 1_536, 10 << 20, u64::MAX].map(size);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "10.0 MiB", "16777215.9 TiB"]);
    }
}
