//! The schedule of backups when the orchestrator is killed in the middle of one: it says so, and makes up for it. The
//! metrics tell since when everything is backed up.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::backups::{put, recent_jobs};
use crate::metrics::{scrape, value};
use crate::support::{Deployment, Orchestrator, eventually};

/// How often the story may miss the job that it wants to kill.
const MAX_ATTEMPTS: usize = 20;

/// The metrics of backups: age, interval, engines that were backed up, engines that failed, bytes.
async fn figures(address: &str) -> [u64; 5] {
    let text = scrape(address, "*/*").await;
    let names = [
        "roundhouse_backup_age_seconds",
        "roundhouse_backup_interval_seconds",
        "roundhouse_backup_engines_total{action=\"back_up\",outcome=\"done\"}",
        "roundhouse_backup_engines_total{action=\"back_up\",outcome=\"failed\"}",
        "roundhouse_backup_stored_bytes_total",
    ];
    names.map(|name| {
        let value = value(&text, name).unwrap_or_else(|| panic!("{name} is not in {text}"));
        format!("{value:.0}").parse().unwrap()
    })
}

fn is_interrupted(job: &Value) -> bool {
    job["action"] == "back_up" && job["ended_at"].is_null() && !job["error"].is_null()
}

/// The latest job, once it has ended.
async fn ended_job(orchestrator: &Orchestrator) -> Value {
    eventually("the schedule has made a backup", async || {
        let recent = recent_jobs(orchestrator).await;
        recent.into_iter().find(|job| !job["ended_at"].is_null())
    })
    .await
}

/// Whether all three engines and the registry are in the store of this attempt.
fn is_complete(folder: &tempfile::TempDir, attempt: usize) -> bool {
    std::fs::read_dir(folder.path().join(format!("{attempt}/m"))).is_ok_and(|owners| owners.count() == 4)
}

#[tokio::test]
async fn a_scheduled_backup_that_was_killed_is_named_and_made_up_for() {
    let folder = tempfile::tempdir().unwrap();
    let deployment = Deployment::process_and_sqlite();
    let metrics = format!("127.0.0.1:{}", deployment.fleet.test_env.ports.last());
    let last = (deployment.fleet.test_env.ports.last() - 1).to_string();
    let mut deployment =
        deployment.with_env("ORCH_METRICS_ADDR", metrics.clone()).with_env("ORCH_PORT_MAX", last);
    let (orchestrator, product) = deployment.start_with_product().await;
    assert_eq!(figures(&metrics).await, [0; 5]);
    for user in ["ada", "bob", "eve"] {
        let engine = product.engine(user).await;
        for number in 0..20 {
            put(&engine, &format!("{number}"), &format!("{user}{number}").repeat(40_000)).await;
        }
    }
    orchestrator.signal_and_wait(Signal::TERM).await;
    // A schedule whose first backup is due at once. If it is over before the kill, it is begun with another store.
    for attempt in 0.. {
        assert!(attempt < MAX_ATTEMPTS, "no kill has hit a job");
        let store = format!("file://{}/{attempt}", folder.path().display());
        deployment = deployment.with_env("ORCH_BACKUP_URL", store).with_env("ORCH_BACKUP_INTERVAL", "1d");
        let orchestrator = deployment.start().await;
        eventually("a job begins", async || {
            (orchestrator.has_job().await || !recent_jobs(&orchestrator).await.is_empty()).then_some(())
        })
        .await;
        assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
        let orchestrator = deployment.start().await;
        // Either way there is one soon: the one that was interrupted, or the one that makes up for it.
        let job = eventually("there is a job", async || {
            let recent = recent_jobs(&orchestrator).await;
            let is_over = recent.is_empty() && !orchestrator.has_job().await && is_complete(&folder, attempt);
            recent.last().cloned().or_else(|| is_over.then_some(Value::Null))
        })
        .await;
        if is_interrupted(&job) {
            let ended = ended_job(&orchestrator).await;
            assert_eq!(
                (&ended["failed"], &ended["error"], &ended["done"]),
                (&json!(0), &Value::Null, &json!(4)),
                "{ended}"
            );
            let [age, interval, done, failed, bytes] = figures(&metrics).await;
            assert!(age < 120 && bytes > 10_000, "{age} {bytes}");
            assert_eq!((interval, failed), (86_400, 0));
            assert!((1..=4).contains(&done), "{done}");
            // Nothing is due after another restart, and the age goes on.
            orchestrator.signal_and_wait(Signal::TERM).await;
            let orchestrator = deployment.start().await;
            eventually("the age is there", async || {
                let later = figures(&metrics).await[0];
                (later >= age && later < 600).then_some(())
            })
            .await;
            assert!(!orchestrator.has_job().await && recent_jobs(&orchestrator).await.is_empty());
            return;
        }
        orchestrator.signal_and_wait(Signal::TERM).await;
    }
}
