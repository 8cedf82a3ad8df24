//! `roundhouse replay`: runs recorded turns again, on another model if wanted, and tells what is different.

mod cassette_files;
mod options;
mod printing;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use api::cassettes::{CassetteReport, ReplayWith};
use api::{ErrorCode, TaskId, TurnId};
use http_service::signals::ShutdownSignals;
use serde::Serialize;
use serde_json::value::RawValue;

use self::cassette_files::CassetteFile;
use crate::client::{ClientError, Engine};
use crate::engine_access::EngineOptions;
use crate::error::Failure;
use crate::terminal::print_line;

/// Arguments of `roundhouse replay`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The id of a turn, a file with a cassette, or a folder of such files, which are run in the order of their names.
    what: String,
    /// What is different from the recorded turn: `model=NAME`, `effort=LEVEL`, `soul=TEXT`, `instructions=TEXT`,
    /// `catalog=true`, `agent=NAME`, `max_turns=N` or `max_tokens=N`. A text may be `@FILE`. Can be repeated.
    #[arg(long = "with", value_name = "NAME=VALUE")]
    with: Vec<String>,
    /// The task of the turn; not needed, but faster to check.
    #[arg(long)]
    task: Option<String>,
    /// Save the cassette of the turn in this file instead of running it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["with", "json", "min_score"])]
    save: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Exit with 1 if the mean of the total scores is lower, from 0 to 1.
    #[arg(long, value_parser = options::parse_score)]
    min_score: Option<f64>,
    #[command(flatten)]
    engine: EngineOptions,
}

/// A cassette of a set, and what became of it.
#[derive(Serialize)]
struct Outcome {
    /// The name of the file.
    cassette: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<CassetteReport>,
    /// Why it could not be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The result of a set.
#[derive(Serialize)]
struct Evaluation {
    cassettes: Vec<Outcome>,
    /// The mean of the total scores; one that could not be run has 0.
    total: f64,
}

impl Evaluation {
    #[expect(clippy::cast_precision_loss, reason = "a folder has fewer files than a double cannot count")]
    fn new(cassettes: Vec<Outcome>) -> Self {
        let scores =
            cassettes.iter().map(|outcome| outcome.report.as_ref().map_or(0.0, |run| run.scores.total));
        let mean = scores.sum::<f64>() / cassettes.len().max(1) as f64;
        Self { cassettes, total: (mean * 10_000.0).round() / 10_000.0 }
    }
}

/// What there is to run.
enum Source {
    Turn(TurnId, Option<TaskId>),
    Files { files: Vec<CassetteFile>, is_set: bool },
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
        tokio::select! {
            result = execute(args) => result,
            _ = signals.recv() => Err(anyhow!("interrupted before it was done").into()),
        }
    })
}

async fn execute(args: Args) -> Result<ExitCode, Failure> {
    let Args { what, with, task, save, json, min_score, engine } = args;
    let with = options::parse(&with)?;
    let task =
        task.map(TaskId::new).transpose().map_err(|error| Failure::usage(format!("--task: {error}")))?;
    let source = find_source(&what, task)?;
    let (orchestrator, user) = engine.resolve()?;
    let engine = orchestrator.admit(&user).await?;
    let evaluation = match source {
        Source::Turn(turn, task) => {
            let cassette = engine.export_cassette(turn, task.as_ref()).await.map_err(usage_failure)?;
            if let Some(file) = save {
                cassette_files::save(&file, cassette.get())?;
                print_line(&format!("The cassette of {turn} is in {}.", file.display()))?;
                return Ok(ExitCode::SUCCESS);
            }
            let report = engine.run_cassette(&cassette, &with).await.map_err(usage_failure)?;
            print_single(&report, json)?;
            Evaluation::new(vec![Outcome { cassette: turn.to_string(), report: Some(report), error: None }])
        }
        Source::Files { .. } if save.is_some() => {
            return Err(Failure::usage("--save: only the cassette of a turn can be saved; name its id"));
        }
        Source::Files { mut files, is_set: false } => {
            let Some(file) = files.pop() else { return Err(Failure::usage("there is no such file")) };
            let cassette = file.read().map_err(Failure::usage)?;
            let report = engine.run_cassette(&cassette, &with).await.map_err(usage_failure)?;
            print_single(&report, json)?;
            Evaluation::new(vec![Outcome { cassette: file.name, report: Some(report), error: None }])
        }
        Source::Files { files, .. } => {
            let (evaluation, stopped) = run_set(&engine, files, &with, json).await?;
            // Also what was run before an error that concerns all.
            if stopped.is_none() || !evaluation.cassettes.is_empty() {
                print_evaluation(&evaluation, json)?;
            }
            if let Some(error) = stopped {
                return Err(error);
            }
            evaluation
        }
    };
    let is_complete = evaluation.cassettes.iter().all(|outcome| outcome.error.is_none());
    let is_good = is_complete && min_score.is_none_or(|min| evaluation.total >= min);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Finds out what is to be run.
fn find_source(what: &str, task: Option<TaskId>) -> Result<Source, Failure> {
    let path = PathBuf::from(what);
    if path.exists() {
        let is_set = path.is_dir();
        let files = if is_set { cassette_files::list(&path)? } else { vec![CassetteFile::new(path)] };
        return Ok(Source::Files { files, is_set });
    }
    match what.parse() {
        Ok(turn) => Ok(Source::Turn(turn, task)),
        Err(_) => Err(Failure::usage(format!(
            "`{}` is neither a file, nor a folder, nor the id of a turn (turn_…)",
            crate::terminal::single_line(what, 100)
        ))),
    }
}

/// Runs cassettes one after the other. What goes wrong with one does not keep the others from being run, unless it
/// concerns all of them: that is the failure.
async fn run_set(
    engine: &Engine,
    files: Vec<CassetteFile>,
    with: &ReplayWith,
    json: bool,
) -> Result<(Evaluation, Option<Failure>), Failure> {
    let mut outcomes = Vec::with_capacity(files.len());
    for file in files {
        let (report, error) = match run_file(engine, &file, with).await {
            Ok(Ok(report)) => (Some(report), None),
            Ok(Err(error)) => (None, Some(error)),
            Err(failure) => return Ok((Evaluation::new(outcomes), Some(failure))),
        };
        let outcome = Outcome { cassette: file.name, report, error };
        if !json {
            print_line(&printing::outcome_line(
                &outcome.cassette,
                outcome.report.as_ref(),
                outcome.error.as_deref(),
            ))?;
        }
        outcomes.push(outcome);
    }
    Ok((Evaluation::new(outcomes), None))
}

/// Runs the cassette of a file. What goes wrong with it is the inner error; the outer one concerns all of them: what
/// `--with` asks for.
async fn run_file(
    engine: &Engine,
    file: &CassetteFile,
    with: &ReplayWith,
) -> Result<Result<CassetteReport, String>, Failure> {
    let cassette: Box<RawValue> = match file.read() {
        Ok(cassette) => cassette,
        Err(error) => return Ok(Err(error)),
    };
    match engine.run_cassette(&cassette, with).await {
        Ok(report) => Ok(Ok(report)),
        Err(error) => error_of_file(error).map(Err),
    }
}

/// The error as that of one file. What may pass, or lies in the file, says nothing about the others.
///
/// # Errors
/// The engine refuses what `--with` asks for.
fn error_of_file(error: ClientError) -> Result<String, Failure> {
    match error {
        ClientError::Refused { code: ErrorCode::ModelNotPermitted, .. } => Err(usage_failure(error)),
        ClientError::Refused { code: ErrorCode::InvalidRequest, ref message }
            if message.starts_with("`with") =>
        {
            Err(usage_failure(error))
        }
        ClientError::Refused { message, .. } => Ok(message),
        ClientError::Failed(error) => Ok(format!("{error:#}")),
    }
}

fn print_single(report: &CassetteReport, json: bool) -> Result<(), Failure> {
    let text = if json { serde_json::to_string_pretty(report)? } else { printing::report(report) };
    Ok(print_line(&text)?)
}

fn print_evaluation(evaluation: &Evaluation, json: bool) -> Result<(), Failure> {
    let text = if json {
        serde_json::to_string_pretty(evaluation)?
    } else {
        let failed = evaluation.cassettes.iter().filter(|outcome| outcome.error.is_some()).count();
        printing::total_line(evaluation.cassettes.len(), failed, evaluation.total)
    };
    Ok(print_line(&text)?)
}

/// Reports a refusal in the engine's words, which say what to do.
fn usage_failure(error: ClientError) -> Failure {
    match error {
        ClientError::Refused {
            code:
                ErrorCode::InvalidRequest
                | ErrorCode::ModelNotPermitted
                | ErrorCode::TaskNotFound
                | ErrorCode::TurnNotFound
                | ErrorCode::TaskBusy
                | ErrorCode::PayloadTooLarge,
            message,
        } => Failure::usage(crate::terminal::single_line(&message, usize::MAX)),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_concerns_all_files() {
        let refused =
            |code, message: &str| error_of_file(ClientError::Refused { code, message: message.to_owned() });
        for (code, message) in [
            (ErrorCode::InvalidRequest, "`cassette`: at most 1000 `steps`"),
            (ErrorCode::PayloadTooLarge, "too large"),
            (ErrorCode::UsageCapReached, "later"),
            (ErrorCode::TaskBusy, "not ended"),
        ] {
            assert_eq!(refused(code, message).unwrap(), message);
        }
        assert_eq!(error_of_file(ClientError::Failed(anyhow!("lost"))).unwrap(), "lost");
        for (code, message) in [
            (ErrorCode::InvalidRequest, "`with.agent`: the catalog has no such agent"),
            (ErrorCode::ModelNotPermitted, "`nope` is not permitted"),
        ] {
            assert!(matches!(refused(code, message), Err(Failure::Usage(_))), "{message}");
        }
    }
}
