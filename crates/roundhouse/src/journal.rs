//! `roundhouse engine journal`: what the turns of a task did, as a person reads it.

mod lines;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use contract::TaskId;
use engine::brain::{Journal, JournalError};

use crate::access;
use crate::error::Failure;
use crate::terminal::{on_one_line, say};
use crate::up::folder::{ENGINES, Folder};

/// The brain's file in an engine's folder.
const BRAIN: &str = "brain.sqlite";
/// How many tasks are named where the one that was asked for is not there.
const NAMED_TASKS: u32 = 10;

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
    /// The folder of that `roundhouse up`.
    #[arg(long, requires = "user")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let task = TaskId::new(args.task).map_err(|error| Failure::usage(format!("the task: {error}")))?;
    let file = match (args.brain, args.user) {
        (Some(file), _) => file,
        (None, Some(user)) => of_user(user, args.dir.as_deref())?,
        (None, None) => of_environment()?,
    };
    let journal = Journal::open(&file).map_err(|error| match error {
        JournalError::Unreadable { .. } | JournalError::Unknown { .. } => {
            Failure::usage(format!("{:#}", anyhow::Error::new(error)))
        }
        JournalError::Brain(error) => error.into(),
    })?;
    match journal.steps(&task).context("the journal cannot be read")? {
        Some(steps) => Ok(say(&lines::of(&steps))?),
        None => Err(unknown(&task, &journal)?),
    }
}

/// The brain that the engine of this environment would use.
fn of_environment() -> Result<PathBuf, Failure> {
    let file = std::env::var_os("SQLITE_DB_PATH").filter(|file| !file.is_empty());
    file.map(PathBuf::from).ok_or_else(|| {
        Failure::usage("which brain? Name its file with --brain, or a user of a `roundhouse up` with --user")
    })
}

/// The brain of a user's engine. The engine is neither made nor woken for it.
fn of_user(user: String, dir: Option<&Path>) -> Result<PathBuf, Failure> {
    let user = access::user(user)?;
    let folder = Folder::at(dir).map_err(Failure::usage)?;
    let orchestrator = access::orchestrator(&folder, None)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let engines = folder.path().join(ENGINES);
    let found = runtime.block_on(orchestrator.engine_id(&user)).with_context(|| {
        format!("{user}'s engine cannot be found (--brain names a file below {})", engines.display())
    })?;
    Ok(engines.join(found.to_string()).join(BRAIN))
}

/// Tells that there is no such task, and what there is instead.
fn unknown(task: &TaskId, journal: &Journal) -> Result<Failure, Failure> {
    let known = journal.tasks(NAMED_TASKS).context("the tasks cannot be read")?;
    let mut text = format!("there is no task `{}` in this brain", whole(task));
    if !known.is_empty() {
        text.push_str("; the last that ran:");
    }
    for task in &known {
        text.push_str("\n  ");
        text.push_str(&whole(task));
    }
    Ok(Failure::Failed(anyhow::anyhow!(text)))
}

fn whole(task: &TaskId) -> String {
    on_one_line(task.as_str(), usize::MAX)
}
