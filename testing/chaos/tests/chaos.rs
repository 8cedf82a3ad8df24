//! The smallest chaos runs, against the real binary.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use chaos::fleet::{self, Backend, ClockPlan, Database, DueMinute, Failover};
use chaos::{Campaign, Counters, FleetCampaign, PostgresServer, Report, Wire, Workload, unmet_coverage};
use serde_json::Value;

/// The number of kills per wire protocol.
const KILLS: u64 = 5;

/// Returns the workspace's binary. Cargo builds no other package's binary for a test, and an existing one may be
/// older than the code, so cargo is called, which does nothing if the binary is fresh, and reports its path.
/// `ROUNDHOUSE_BINARY` names another one.
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
    built.expect("cargo reports the path of the binary")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn regression_e02_a_turn_outlives_every_kill() {
    let workload = Workload::all_features();
    let (binary, counters) = (binary(), Counters::default());
    let begin = std::time::Instant::now();
    for wire in Wire::ALL {
        let campaign = Campaign {
            binary: binary.clone(),
            seed: 1,
            wire,
            kills: KILLS,
            time_limit: Duration::from_mins(1),
            workload,
            tasks: 3,
            turns_per_task: 3,
            mutant: None,
        };
        counters.merge(&campaign.run().await.unwrap());
    }
    let report = Report { counters: &counters, elapsed: begin.elapsed() };
    let kills = KILLS * u64::try_from(Wire::ALL.len()).unwrap();
    let unmet_coverage = unmet_coverage(&counters, &workload, &Wire::ALL, kills);
    assert!(counters.violations().is_empty() && unmet_coverage.is_empty(), "{unmet_coverage:?}\n{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn regression_o01_whatever_the_orchestrator_is_killed_in_is_put_in_order() {
    let campaign = FleetCampaign {
        binary: binary(),
        backend: Backend::Process,
        database: Database::Sqlite,
        seed: 1,
        rounds: 15,
        time_limit: Duration::from_mins(1),
        mutant: None,
        cluster_faults: false,
        keep_folder: false,
    };
    let begin = std::time::Instant::now();
    let counters = campaign.run().await.unwrap();
    let report = Report { counters: &counters, elapsed: begin.elapsed() };
    let unmet_coverage = fleet::unmet_coverage(&counters, &campaign);
    assert!(counters.violations().is_empty() && unmet_coverage.is_empty(), "{unmet_coverage:?}\n{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_due_time_runs_once_whatever_is_killed_around_it() {
    let run = DueMinute {
        binary: binary(),
        backend: Backend::Process,
        database: Database::Sqlite,
        seed: 1,
        users: 6,
        kills: 10,
        clock: ClockPlan::Steady,
    };
    let begin = std::time::Instant::now();
    let counters = run.run().await.unwrap();
    let report = Report { counters: &counters, elapsed: begin.elapsed() };
    let unmet_coverage = run.unmet_coverage(&counters);
    assert!(counters.violations().is_empty() && unmet_coverage.is_empty(), "{unmet_coverage:?}\n{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_happens_to_the_active_orchestrator_the_other_one_takes_over() {
    if let Err(missing) = PostgresServer::programs() {
        let must = std::env::var_os("ROUNDHOUSE_REQUIRE_ALL").is_some();
        assert!(!must, "{missing:#}");
        // Written directly to standard error, so that the test harness does not capture it.
        writeln!(std::io::stderr(), "skipped: {missing:#}").unwrap();
        return;
    }
    let run = Failover {
        binary: binary(),
        backend: Backend::Process,
        seed: 1,
        takeovers: 5,
        users: 3,
        rate: 20,
        time_limit: Duration::from_mins(1),
        // The machine is busy with other tests.
        max_gap: Duration::from_secs(15),
        mutant: None,
    };
    let begin = std::time::Instant::now();
    let counters = run.run().await.unwrap();
    let report = Report { counters: &counters, elapsed: begin.elapsed() };
    let unmet_coverage = run.unmet_coverage(&counters);
    assert!(counters.violations().is_empty() && unmet_coverage.is_empty(), "{unmet_coverage:?}\n{report}");
}
