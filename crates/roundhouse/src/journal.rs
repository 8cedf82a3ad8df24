//! `roundhouse engine journal`: prints what the turns of a task did.

mod formatting;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use api::TaskId;
use store::{Journal, JournalError};

use crate::engine_access;
use crate::error::Failure;
use crate::terminal::{print_line, single_line};
use crate::up::folder::{ENGINES_FOLDER, UpFolder};

/// The brain's file in an engine's folder.
const BRAIN_FILE: &str = "brain.sqlite";
/// How many existing tasks are listed when the requested one does not exist.
const MAX_NAMED_TASKS: u32 = 10;

/// Arguments of `roundhouse engine journal`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The task whose turns to print.
    task: String,
    /// The brain's file; by default the one that `SQLITE_DB_PATH` names.
    #[arg(long)]
    brain: Option<PathBuf>,
    /// The user of a `roundhouse up` whose engine's brain to read.
    #[arg(long, conflicts_with = "brain")]
    user: Option<String>,
    /// The folder of the `roundhouse up`.
    #[arg(long, requires = "user")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let task = TaskId::new(args.task).map_err(|error| Failure::usage(format!("the task: {error}")))?;
    let file = match (args.brain, args.user) {
        (Some(file), _) => file,
        (None, Some(user)) => brain_of_user(user, args.dir.as_deref())?,
        (None, None) => brain_from_env()?,
    };
    let journal = Journal::open(&file).map_err(|error| match error {
        JournalError::Unreadable { .. } | JournalError::Unknown { .. } => {
            Failure::usage(format!("{:#}", anyhow::Error::new(error)))
        }
        JournalError::Brain(error) => error.into(),
    })?;
    match journal.steps(&task).context("the journal cannot be read")? {
        Some(steps) => Ok(print_line(&formatting::format_steps(&steps))?),
        None => Err(unknown_task(&task, &journal)?),
    }
}

/// Returns the path of the brain that the engine of this environment would use.
fn brain_from_env() -> Result<PathBuf, Failure> {
    let file = std::env::var_os("SQLITE_DB_PATH").filter(|file| !file.is_empty());
    file.map(PathBuf::from).ok_or_else(|| {
        Failure::usage(
            "no brain is named: name its file with --brain, or a user of a `roundhouse up` with --user",
        )
    })
}

/// Returns the path of a user's brain. The engine is neither created nor woken for this.
fn brain_of_user(user: String, dir: Option<&Path>) -> Result<PathBuf, Failure> {
    let user = engine_access::parse_user(user)?;
    let folder = UpFolder::resolve(dir).map_err(Failure::usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let engines = folder.path().join(ENGINES_FOLDER);
    let orchestrator = engine_access::open_orchestrator(folder)?;
    let engine_id = runtime.block_on(orchestrator.engine_id(&user)).with_context(|| {
        format!("{user}'s engine cannot be found (--brain names a file below {})", engines.display())
    })?;
    Ok(engines.join(engine_id.to_string()).join(BRAIN_FILE))
}

/// Reports that there is no such task, and names tasks that exist.
fn unknown_task(task: &TaskId, journal: &Journal) -> Result<Failure, Failure> {
    let known = journal.tasks(MAX_NAMED_TASKS).context("the tasks cannot be read")?;
    let mut text = format!("there is no task `{}` in this brain", task_on_one_line(task));
    if !known.is_empty() {
        text.push_str("; the last that ran:");
    }
    for task in &known {
        text.push_str("\n  ");
        text.push_str(&task_on_one_line(task));
    }
    Ok(Failure::Failed(anyhow::anyhow!(text)))
}

fn task_on_one_line(task: &TaskId) -> String {
    single_line(task.as_str(), usize::MAX)
}
