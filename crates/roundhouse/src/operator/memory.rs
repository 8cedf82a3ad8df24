//! `roundhouse memory`: what a user's engine knows about its user.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use api::facts::{Fact, Facts};
use api::memory::KnowledgeResults;
use api::transfer::Imported;
use clap::{Subcommand, ValueEnum};
use futures::stream;
use reqwest::{Body, Method, Response};
use serde_json::json;

use super::confirm::{Expected, confirm};
use super::input::is_standard_input;
use super::output::{self, OutputOptions, Page, ReadOptions, Render, View};
use super::user_engine::UserOptions;
use super::watch;
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::table::{Cell, Column, fields, table};

/// How much is shown of a fact in a list, in characters.
const MAX_FACT_CHARS: usize = 300;
/// How long a download may stand still.
const MAX_SILENCE: Duration = Duration::from_secs(30);
/// How much of an upload is read at once.
const UPLOAD_CHUNK: usize = 256 * 1024;

/// Arguments of `roundhouse memory`.
#[derive(clap::Args)]
#[command(after_help = output::EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the facts in force, the one said last first.
    List {
        /// Only facts with this tag.
        #[arg(long)]
        tag: Option<String>,
        #[command(flatten)]
        page: Page,
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Search the facts in force.
    Search {
        /// The words to search for, in any language.
        query: String,
        /// The number of results at most; 10 by default.
        #[arg(long)]
        limit: Option<i64>,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Show a fact with its history.
    Show {
        /// The fact's id.
        id: String,
        #[command(flatten)]
        read: ReadOptions,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Erase a fact and all that it replaced.
    Delete {
        /// The fact's id.
        id: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Export all that the engine keeps of its user, as one JSON document.
    Export {
        /// The file to write, which must not exist; the standard output by default.
        #[arg(value_hint = clap::ValueHint::FilePath)]
        file: Option<PathBuf>,
        #[command(flatten)]
        user: UserOptions,
    },
    /// Import a document that was exported.
    Import {
        /// The file to read, or `-` for the standard input.
        #[arg(value_hint = clap::ValueHint::FilePath)]
        file: PathBuf,
        /// What happens to what the engine has: it is kept, or replaced by the document.
        #[arg(long, value_enum, default_value_t = Mode::Merge)]
        mode: Mode,
        /// Do not ask before everything is replaced.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        output: OutputOptions,
        #[command(flatten)]
        user: UserOptions,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Merge,
    Replace,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    super::run(async {
        match args.command {
            Command::List { tag, page, read, user } => {
                let engine = user.open().await?;
                let call = Call::get(&["memory", "facts"]);
                let call = page.of(call.with("tag", tag));
                let render = |document: &Document, view: View| facts_text(document, page, view);
                watch::show(read, async || engine.call(&call).await, &render).await
            }
            Command::Search { query, limit, output, user } => {
                let body = json!({"query": query, "limit": limit});
                let call = Call::new(Method::POST, &["memory", "knowledge", "search"]);
                output::print(&user.open().await?.call(&call.json(&body)).await?, output, &results_text)
            }
            Command::Show { id, read, user } => {
                let engine = user.open().await?;
                let path = ["memory", "facts", &id];
                watch::show(read, async || engine.call(&Call::get(&path)).await, &fact_text).await
            }
            Command::Delete { id, yes, output, user } => {
                let engine = user.open().await?;
                let path = ["memory", "facts", &id];
                let fact: Fact = engine.call(&Call::get(&path)).await?.parse()?;
                let shown = crate::terminal::single_line(&fact.content, MAX_FACT_CHARS);
                confirm(&format!("This erases “{shown}”, and what it replaced."), Expected::Yes, yes).await?;
                let render: Render<'_> = &|_, _| Ok("The fact is erased.".to_owned());
                output::print(&engine.call(&Call::new(Method::DELETE, &path)).await?, output, render)
            }
            Command::Export { file, user } => {
                let response = user.open().await?.open(&Call::get(&["memory", "export"])).await?;
                save(response, file.as_deref()).await
            }
            Command::Import { file, mode, yes, output, user } => import(&file, mode, yes, output, user).await,
        }
    })
}

fn facts_text(document: &Document, page: Page, view: View) -> anyhow::Result<String> {
    let Facts { facts, total } = document.parse()?;
    if facts.is_empty() {
        return Ok(format!("There is no fact here; {total} in all."));
    }
    let row = |fact: &Fact| {
        vec![
            fact.id.into(),
            view.ago(fact.said_at).into(),
            fact.source.as_str().into(),
            Cell::excerpt(&fact.content, MAX_FACT_CHARS),
            Cell::new(&fact.tags.join(", ")),
        ]
    };
    let columns = [
        Column::word("ID"),
        Column::word("SAID"),
        Column::word("BY"),
        Column::text("FACT"),
        Column::text("TAGS"),
    ];
    let rows: Vec<_> = facts.iter().map(row).collect();
    let note = page.note(facts.len(), total);
    Ok([Some(table(&columns, &rows, view.canvas)), note].into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

fn results_text(document: &Document, view: View) -> anyhow::Result<String> {
    let KnowledgeResults { results } = document.parse()?;
    if results.is_empty() {
        return Ok("Nothing was found.".to_owned());
    }
    let columns = [Column::number("SCORE"), Column::word("ID"), Column::word("SAID"), Column::text("FACT")];
    let rows: Vec<_> = results
        .iter()
        .map(|result| {
            vec![
                format!("{:.2}", result.score).into(),
                result.id.into(),
                view.ago(result.created_at).into(),
                Cell::excerpt(&result.content, MAX_FACT_CHARS),
            ]
        })
        .collect();
    Ok(table(&columns, &rows, view.canvas))
}

fn fact_text(document: &Document, view: View) -> anyhow::Result<String> {
    let fact: Fact = document.parse()?;
    let exact = |time: api::Timestamp| format!("{} ({time})", view.ago(time));
    let mut lines = vec![
        ("Fact", Cell::new(&fact.content)),
        ("Id", fact.id.into()),
        ("Said", exact(fact.said_at).into()),
        ("By", fact.source.as_str().into()),
        ("Tags", Cell::new(&fact.tags.join(", "))),
    ];
    lines.extend(fact.held_until.map(|until| ("Held until", exact(until).into())));
    lines.extend(fact.origin.iter().map(|origin| ("Task", Cell::new(origin.task_id.as_str()))));
    lines.extend(
        fact.replaced_by.iter().map(|by| ("Replaced by", Cell::new(&format!("{} {}", by.id, by.content)))),
    );
    lines.extend(
        fact.replaced.iter().map(|old| ("Replaced", Cell::new(&format!("{} {}", old.id, old.content)))),
    );
    Ok(fields(&lines, view.canvas))
}

/// Saves a download of any size. A file that was not completed is removed.
pub(super) async fn save(response: Response, file: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = file else {
        if io::stdout().is_terminal() {
            return Err(Failure::usage(
                "the document is not for a terminal: name a file, or redirect the output",
            ));
        }
        return copy(response, &mut io::stdout().lock()).await;
    };
    let unusable =
        |error: io::Error| Failure::usage(format!("{} cannot be written: {error}", path.display()));
    // It is about a user, and not for others on the machine.
    let mut created =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(unusable)?;
    let mut unfinished = Unfinished { path: Some(path) };
    copy(response, &mut created).await?;
    created.sync_all().map_err(unusable)?;
    unfinished.path = None;
    output::note(&format!("Saved in {}.", path.display()));
    Ok(())
}

/// A file that is removed unless it was completed.
struct Unfinished<'a> {
    path: Option<&'a Path>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path {
            // If it cannot be removed, the failure is told anyway.
            let _ = std::fs::remove_file(path);
        }
    }
}

async fn copy(mut response: Response, output: &mut impl Write) -> Result<(), Failure> {
    loop {
        let chunk = tokio::time::timeout(MAX_SILENCE, response.chunk());
        let chunk =
            chunk.await.context("the download stood still")?.context("the download was interrupted")?;
        let Some(chunk) = chunk else { return output.flush().map_err(Failure::of_output) };
        output.write_all(&chunk).map_err(Failure::of_output)?;
    }
}

async fn import(
    file: &Path,
    mode: Mode,
    yes: bool,
    options: OutputOptions,
    user: UserOptions,
) -> Result<(), Failure> {
    let body = if is_standard_input(file) {
        read_in_chunks(io::stdin())
    } else {
        let shown = file.display();
        read_in_chunks(
            File::open(file).map_err(|error| Failure::usage(format!("{shown} cannot be read: {error}")))?,
        )
    };
    if mode == Mode::Replace {
        confirm("This replaces everything that the engine keeps of its user.", Expected::Yes, yes).await?;
    }
    let call = Call::new(Method::POST, &["memory", "import"])
        .with("mode", Some(if mode == Mode::Replace { "replace" } else { "merge" }));
    output::print(&user.open().await?.upload(&call, body).await?, options, &imported_text)
}

/// A body that is read as it is sent, on a thread that may wait for it.
fn read_in_chunks(input: impl io::Read + Send + 'static) -> Body {
    let chunks = stream::unfold(Some(input), async |input| {
        let mut input = input?;
        let read = tokio::task::spawn_blocking(move || {
            let mut chunk = vec![0; UPLOAD_CHUNK];
            let count = input.read(&mut chunk)?;
            chunk.truncate(count);
            Ok::<_, io::Error>((chunk, input))
        });
        match read.await.map_err(io::Error::other).flatten() {
            Ok((chunk, _)) if chunk.is_empty() => None,
            Ok((chunk, input)) => Some((Ok(chunk), Some(input))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Body::wrap_stream(chunks)
}

fn imported_text(document: &Document, view: View) -> anyhow::Result<String> {
    let Imported { counts, .. } = document.parse()?;
    let counts = serde_json::to_value(counts)?;
    let counts = counts.as_object().into_iter().flatten().filter(|(_, count)| count.as_u64() != Some(0));
    let rows: Vec<_> = counts.map(|(name, count)| vec![name.into(), count.into()]).collect();
    if rows.is_empty() {
        return Ok("The engine has all of it already.".to_owned());
    }
    Ok(table(&[Column::word("IMPORTED"), Column::number("COUNT")], &rows, view.canvas))
}
