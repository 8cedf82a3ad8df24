//! The smallest runs, against the real binary.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use chaos::fleet::{self, Backend, Database};
use chaos::{Campaign, Counters, FleetCampaign, Report, Wire, Workload, unmet_coverage};
use serde_json::Value;

/// How often the engine is killed over each wire.
const KILLS: u64 = 5;

/// The binary of this workspace. Cargo builds no other package's binary for a test, and one that lies about
/// may be older than the code: so cargo is asked, which has nothing to do where the binary is fresh, and says
/// where it is. `ROUNDHOUSE_BINARY` names another one.
fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("ROUNDHOUSE_BINARY") {
        return named.into();
    }
    let arguments = ["build", "--locked", "--workspace", "--bin", "roundhouse", "--message-format", "json"];
    let output = Command::new(env!("CARGO")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let built = output.stdout.split(|byte| *byte == b'\n').find_map(|line| {
        let message: Value = serde_json::from_slice(line).ok()?;
        let is_it = message.pointer("/target/name")? == "roundhouse";
        is_it.then(|| message.get("executable")?.as_str().map(PathBuf::from))?
    });
    built.expect("cargo says where the binary is")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lesson_e02_a_turn_outlives_every_kill() {
    let mix = Workload::all_features();
    let (binary, tally) = (binary(), Counters::default());
    let begin = std::time::Instant::now();
    for wire in Wire::ALL {
        let campaign = Campaign {
            binary: binary.clone(),
            seed: 1,
            wire,
            kills: KILLS,
            time_limit: Duration::from_mins(1),
            workload: mix,
            tasks: 3,
            turns_per_task: 3,
            mutation: None,
        };
        tally.merge(&campaign.run().await.unwrap());
    }
    let report = Report { counters: &tally, elapsed: begin.elapsed() };
    let unmet_coverage = unmet_coverage(&tally, &mix, &Wire::ALL, KILLS * 5);
    assert!(tally.violations().is_empty() && unmet_coverage.is_empty(), "{unmet_coverage:?}\n{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lesson_o01_whatever_the_orchestrator_is_killed_in_is_put_in_order() {
    let campaign = FleetCampaign {
        binary: binary(),
        backend: Backend::Process,
        database: Database::Sqlite,
        seed: 1,
        rounds: 15,
        time_limit: Duration::from_mins(1),
        mutation: None,
        keep_folder: false,
    };
    let begin = std::time::Instant::now();
    let tally = campaign.run().await.unwrap();
    let report = Report { counters: &tally, elapsed: begin.elapsed() };
    let unmet_coverage = fleet::unmet_coverage(&tally, &campaign);
    assert!(tally.violations().is_empty() && unmet_coverage.is_empty(), "{unmet_coverage:?}\n{report}");
}
