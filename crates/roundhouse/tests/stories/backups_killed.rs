//! Kills at random moments of backups and restores: an engine has all of one state, never a mixture of two, and every
//! backup that is there can be restored.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::backups::{backups_of, product_id};
use crate::support::http::client;
use crate::support::{Deployment, Orchestrator, Product, eventually, processes};

/// How many kills there are; more with `ROUNDHOUSE_TEST_BACKUP_KILLS`.
const DEFAULT_KILLS: usize = 6;
/// The files whose contents name their version.
const FILES: usize = 60;

/// What is killed, and while what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    OrchestratorInBackup,
    OrchestratorInRestore,
    EngineInBackup,
    EngineInRestore,
}

const MOMENTS: [Moment; 4] = [
    Moment::OrchestratorInRestore,
    Moment::EngineInRestore,
    Moment::OrchestratorInBackup,
    Moment::EngineInBackup,
];

/// A number from 0 to 1.
fn random() -> f64 {
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    f64::from(u32::try_from(random >> 32).unwrap()) / f64::from(u32::MAX)
}

fn file(workspace: &Path, number: usize) -> PathBuf {
    workspace.join(format!("files/{number:03}"))
}

/// Writes a version into all files, each of which is large enough to be a piece of its own.
fn write_version(workspace: &Path, version: usize) {
    fs::create_dir_all(workspace.join("files")).unwrap();
    for number in 0..FILES {
        fs::write(file(workspace, number), format!("{version:09}").repeat(9_000)).unwrap();
    }
}

/// The version that all files have.
fn read_version(workspace: &Path) -> usize {
    let versions: Vec<usize> = (0..FILES)
        .map(|number| {
            let content = fs::read_to_string(file(workspace, number)).unwrap();
            let version = &content[..9];
            assert_eq!(content, version.repeat(9_000), "a file is torn");
            version.parse().unwrap()
        })
        .collect();
    assert!(versions.iter().all(|version| version == &versions[0]), "a mixture: {versions:?}");
    versions[0]
}

async fn settled(deployment: &Deployment, product: &Product, id: &str) -> PathBuf {
    // A kill in the middle of maintenance may leave a failed engine, which a start brings back.
    eventually("the engine runs", async || {
        let admission = product.admit("ada").await.body;
        if admission["admitted"] != true {
            drop(product.start("ada").await);
            return None;
        }
        // Its exit may not have been noticed yet.
        let url = admission["engine"]["url"].as_str().unwrap();
        client().get(format!("{url}/health")).send().await.ok().map(drop)
    })
    .await;
    deployment.data_folder(id).unwrap().join("workspace")
}

async fn job(orchestrator: &Orchestrator, body: Value) -> Value {
    orchestrator.job(body).await
}

#[tokio::test]
async fn kills_at_random_moments_leave_one_state_and_sound_backups() {
    let kills = std::env::var("ROUNDHOUSE_TEST_BACKUP_KILLS").ok();
    let kills = kills.map_or(DEFAULT_KILLS, |kills| kills.parse().unwrap());
    let store = tempfile::tempdir().unwrap();
    let deployment = crate::backups::deployment(Deployment::process_and_sqlite(), store.path());
    let (mut orchestrator, product) = deployment.start_with_product().await;
    let product_id = product_id(&orchestrator).await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    let workspace = settled(&deployment, &product, &engine.id).await;
    write_version(&workspace, 0);
    let of_ada = |action: &str| json!({"action": action, "product_id": product_id, "user_id": "ada"});
    let ended = job(&orchestrator, of_ada("back_up")).await;
    assert_eq!(ended["failed"], 0, "{ended}");
    let (mut hits, mut took) =
        (std::collections::BTreeMap::<Moment, usize>::new(), Duration::from_millis(400));
    let start = Instant::now();
    let is_done = |hits: &std::collections::BTreeMap<Moment, usize>, kill: usize| {
        kill >= kills && (hits.len() == MOMENTS.len() || start.elapsed() > Duration::from_mins(3))
    };
    let mut kill = 0;
    while !is_done(&hits, kill) {
        let moment = MOMENTS[kill % MOMENTS.len()];
        kill += 1;
        let workspace = settled(&deployment, &product, &engine.id).await;
        let before = read_version(&workspace);
        write_version(&workspace, kill);
        let restores = matches!(moment, Moment::OrchestratorInRestore | Moment::EngineInRestore);
        // Full, so that there is something to do whatever has been stored.
        let mut body = of_ada(if restores { "restore" } else { "back_up" });
        body["full"] = json!(!restores);
        let begun = Instant::now();
        orchestrator.begin_job(body).await;
        let pause = took.mul_f64(random());
        tokio::time::sleep(pause).await;
        let was_running = orchestrator.has_job().await;
        match moment {
            Moment::OrchestratorInBackup | Moment::OrchestratorInRestore => {
                orchestrator = deployment.kill_and_start(orchestrator).await;
            }
            Moment::EngineInBackup | Moment::EngineInRestore => {
                for process in processes::engines_in_folder(&deployment.data_folder(&engine.id).unwrap()) {
                    processes::kill(process);
                }
                eventually("the job has ended", async || (!orchestrator.has_job().await).then_some(())).await;
            }
        }
        if was_running {
            *hits.entry(moment).or_default() += 1;
        } else {
            // It was over already: the next kill comes earlier.
            took = begun.elapsed().min(took);
        }
        let workspace = settled(&deployment, &product, &engine.id).await;
        let after = read_version(&workspace);
        assert!(after == kill || restores, "a backup changes nothing: {before}, {kill}, {after}");
        assert!(after <= kill, "{after} was never written");
        let leftovers = ["restore.new", "restore.ready", "restore.old", "brain.sqlite.snapshot"];
        let folder = workspace.parent().unwrap();
        let left: Vec<_> = leftovers.iter().filter(|name| folder.join(name).exists()).collect();
        assert!(left.is_empty(), "{moment:?} left {left:?}");
        assert_eq!(product.engine("ada").await.messages("task").await, messages);
        for backup in backups_of(&orchestrator, &product_id, "ada").await {
            let mut body = of_ada("verify");
            body["backup_id"] = backup;
            let ended = job(&orchestrator, body).await;
            assert_eq!((&ended["failed"], &ended["done"]), (&json!(0), &json!(1)), "{ended}");
        }
    }
    for moment in MOMENTS {
        assert!(hits.contains_key(&moment), "{moment:?} was never hit in {kill} kills: {hits:?}");
    }
    // After all of it, a restore works, and brings the version of the backup.
    write_version(&settled(&deployment, &product, &engine.id).await, 999);
    let ended = job(&orchestrator, of_ada("restore")).await;
    assert_eq!(ended["failed"], 0, "{ended}");
    let workspace = settled(&deployment, &product, &engine.id).await;
    assert_ne!(read_version(&workspace), 999);
    orchestrator.signal_and_wait(Signal::TERM).await;
}
