//! Shows that the harness detects violations: with each mutant active in the engine, one is found.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::counters::{Counters, KILLS};

/// The engine's mutants whose guarantee the harness checks.
pub const ENGINE_MUTANTS: [&str; 5] =
    ["skip_intent", "repeat_ts", "publish_before_commit", "rerun_tool", "forget_pending"];

/// The orchestrator's mutants whose guarantee the harness checks.
pub const ORCHESTRATOR_MUTANTS: [&str; 5] =
    ["forget_roll_back", "commit_before_act", "share_ports", "return_old_key", "skip_audit"];

/// The result of running with one mutant.
#[derive(Clone, Debug)]
pub struct MutantResult {
    /// Its name.
    pub mutant: String,
    /// After how many kills it was caught; none if it was not.
    pub kills_until_caught: Option<u64>,
    /// How many kills there were in all.
    pub total_kills: u64,
    /// What was found first.
    pub first_violation: Option<String>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Runs `run` against `binary` with each of `names`.
///
/// # Errors Also if the binary has no mutants: only one of the mutated copy reads the variable that names one.
pub async fn run_all(
    binary: &Path,
    names: &[String],
    run: impl AsyncFn(String) -> anyhow::Result<Arc<Counters>>,
) -> anyhow::Result<Vec<MutantResult>> {
    if !tokio::fs::read(binary).await?.windows(MUTANT_VAR.len()).any(|bytes| bytes == MUTANT_VAR) {
        bail!("{} has no mutants: name the binary that `.ci/mutants binary` builds", binary.display());
    }
    let mut results = Vec::new();
    for name in names {
        let begin = Instant::now();
        let (kills, total_kills, found) = match run(name.clone()).await {
            Ok(counters) => {
                (counters.kills_until_first(), counters.get(KILLS), counters.violations().first().cloned())
            }
            // A mutant that keeps the service from starting is caught as well.
            Err(error) => (Some(0), 0, Some(format!("{error:#}"))),
        };
        results.push(MutantResult {
            mutant: name.clone(),
            kills_until_caught: kills,
            total_kills,
            first_violation: found,
            elapsed: begin.elapsed(),
        });
    }
    Ok(results)
}

const MUTANT_VAR: &[u8] = b"ROUNDHOUSE_MUTANT";
