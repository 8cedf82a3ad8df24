//! Shows that the harness sees what it must: with each saboteur in the engine, a violation is found.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::tally::{KILLS, Tally};

/// The engine's saboteurs whose guarantee the harness checks.
pub const ENGINE: [&str; 5] =
    ["skip_intent", "repeat_ts", "publish_before_commit", "rerun_tool", "forget_pending"];

/// The orchestrator's.
pub const ORCHESTRATOR: [&str; 5] =
    ["forget_roll_back", "commit_before_act", "share_ports", "return_old_key", "skip_audit"];

/// How one saboteur fared.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Its name.
    pub saboteur: String,
    /// After how many kills it was caught; none if it was not.
    pub kills: Option<u64>,
    /// How many kills there were in all.
    pub of: u64,
    /// What was found first.
    pub found: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// Lets `run` run against `binary` with each of `names`.
///
/// # Errors
/// Also where the binary has no saboteurs: it was built without the feature.
pub async fn all(
    binary: &Path,
    names: &[String],
    run: impl AsyncFn(String) -> anyhow::Result<Arc<Tally>>,
) -> anyhow::Result<Vec<Caught>> {
    if !tokio::fs::read(binary).await?.windows(VARIABLE.len()).any(|bytes| bytes == VARIABLE) {
        bail!("{} has no saboteurs: build it with `--features sabotage`", binary.display());
    }
    let mut caught = Vec::new();
    for name in names {
        let begin = Instant::now();
        let (kills, of, found) = match run(name.clone()).await {
            Ok(tally) => (tally.kills_until_first(), tally.of(KILLS), tally.violations().first().cloned()),
            // A service that a saboteur keeps from starting is caught as well.
            Err(error) => (Some(0), 0, Some(format!("{error:#}"))),
        };
        caught.push(Caught { saboteur: name.clone(), kills, of, found, took: begin.elapsed() });
    }
    Ok(caught)
}

const VARIABLE: &[u8] = b"ROUNDHOUSE_SABOTEUR";
