//! Kills at random moments of backups and restores: an engine has all of one state, never a mixture of two, every backup
//! that is listed can be restored, and whatever was interrupted says so and can be begun again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::backups::{backups_of, content, product_id, put, recent_jobs};
use crate::support::http::client;
use crate::support::{Deployment, Engine, Orchestrator, Product, env_number, eventually, processes};

/// The files whose contents name their version.
const FILES: usize = 40;
/// Larger than what is cut into pieces together with others.
const FILE_REPEATS: usize = 9_000;
/// How many times the story may kill in vain before it fails.
const MAX_VAIN_KILLS: usize = 60;

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

impl Moment {
    fn restores(self) -> bool {
        matches!(self, Self::OrchestratorInRestore | Self::EngineInRestore)
    }
}

/// A number of 32 bits.
fn random_bits() -> u32 {
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    u32::try_from(random >> 32).unwrap()
}

/// A number from 0 to 1.
fn random() -> f64 {
    f64::from(random_bits()) / f64::from(u32::MAX)
}

fn text_of(version: usize) -> String {
    format!("{version:09}").repeat(FILE_REPEATS)
}

/// A deployment with one user, whose brain and files have one version at a time.
struct Scene {
    deployment: Deployment,
    orchestrator: Orchestrator,
    product: Product,
    product_id: Value,
    /// The version that each backup has.
    versions: BTreeMap<String, usize>,
    hits: BTreeMap<Moment, usize>,
    /// Restores that were killed while the content was on its way into the engine's folder.
    hits_in_arrival: usize,
    /// The longest pause before a kill.
    longest: BTreeMap<bool, Duration>,
}

impl Scene {
    /// The user's engine, which runs and answers.
    async fn engine(&self) -> Engine {
        // A kill in the middle of maintenance may leave a failed engine, which a start brings back.
        eventually("the engine runs", async || {
            let admission = self.product.admit("ada").await.body;
            if admission["admitted"] != true {
                drop(self.product.start("ada").await);
                return None;
            }
            // Its exit may not have been noticed yet.
            let url = admission["engine"]["url"].as_str().unwrap();
            client().get(format!("{url}/health")).send().await.ok().map(drop)
        })
        .await;
        self.product.engine("ada").await
    }

    /// Gives the brain and all files a version.
    async fn write(&self, version: usize) {
        let engine = self.engine().await;
        engine.run_turn("task", &format!("version {version}")).await;
        for number in 0..FILES {
            put(&engine, &format!("files/{number:03}"), &text_of(version)).await;
        }
    }

    /// The version that the brain and all files have.
    async fn version(&self) -> usize {
        let engine = self.engine().await;
        let messages = engine.messages("task").await;
        let said = messages.iter().rfind(|message| message["role"] == "user").unwrap();
        let version = said["content"].as_str().unwrap().strip_prefix("version ").unwrap().parse().unwrap();
        for number in 0..FILES {
            let found = content(&engine, &format!("files/{number:03}")).await.unwrap();
            assert!(found == text_of(version), "file {number} is not of version {version}: {}", &found[..9]);
        }
        version
    }

    fn job(&self, action: &str) -> Value {
        json!({"action": action, "product_id": self.product_id, "user_id": "ada"})
    }

    /// Runs a job to its end, which must be a success.
    async fn succeed(&self, job: Value) {
        let ended = self.orchestrator.job(job).await;
        assert_eq!((&ended["failed"], &ended["error"]), (&json!(0), &Value::Null), "{ended}");
    }

    /// Notes the version of the backups that are new, each of which must be sound.
    async fn note_backups(&mut self, version: usize) {
        for backup in backups_of(&self.orchestrator, &self.product_id, "ada").await {
            let id = backup.as_str().unwrap().to_owned();
            if !self.versions.contains_key(&id) {
                let mut verify = self.job("verify");
                verify["backup_id"] = backup;
                self.succeed(verify).await;
                self.versions.insert(id, version);
            }
        }
    }

    /// Restores a backup that is chosen at random: what the engine has then is what it had when the backup was made.
    async fn restore_any(&mut self, before: usize) -> usize {
        let (id, version) = self.any_backup();
        let mut restore = self.job("restore");
        restore["backup_id"] = json!(id);
        self.succeed(restore).await;
        assert_eq!(self.version().await, version, "backup {id}");
        self.note_backups(before).await;
        version
    }

    fn any_backup(&self) -> (String, usize) {
        let index = usize::try_from(random_bits()).unwrap() % self.versions.len();
        let (id, version) = self.versions.iter().nth(index).unwrap();
        (id.clone(), *version)
    }

    /// Kills once, while a job is under way.
    async fn kill(mut self, moment: Moment, version: usize) -> Self {
        self.write(version).await;
        let (backup_id, target) = self.any_backup();
        let mut job = self.job(if moment.restores() { "restore" } else { "back_up" });
        if moment.restores() {
            job["backup_id"] = json!(backup_id);
        } else {
            // Full, so that there is something to do whatever has been stored.
            job["full"] = json!(true);
        }
        let engine = self.engine().await;
        let folder = self.deployment.data_folder(&engine.id);
        let longest = self.longest[&moment.restores()];
        let begun_at = Instant::now();
        let begun = self.orchestrator.begin_job(job).await;
        tokio::time::sleep(longest.mul_f64(random())).await;
        let was_hit = match moment {
            Moment::OrchestratorInBackup | Moment::OrchestratorInRestore => {
                assert_eq!(self.orchestrator.signal_and_wait(Signal::KILL).await.code, None);
                let was_arriving = folder.is_some_and(|folder| folder.join("restore.new").exists());
                self.orchestrator = self.deployment.start().await;
                let was_hit = self.interrupted(&begun, moment).await;
                self.hits_in_arrival += usize::from(was_hit && was_arriving);
                was_hit
            }
            Moment::EngineInBackup | Moment::EngineInRestore => {
                let process = self.deployment.process_of(&engine);
                let was_under_way = process.is_some() && self.orchestrator.has_job().await;
                process.into_iter().for_each(processes::kill);
                eventually("the job has ended", async || (!self.orchestrator.has_job().await).then_some(()))
                    .await;
                was_under_way
            }
        };
        if was_hit {
            *self.hits.entry(moment).or_default() += 1;
        } else {
            // It was over already: the next kill comes earlier.
            let took = begun_at.elapsed().min(longest).mul_f64(0.8).max(Duration::from_millis(20));
            self.longest.insert(moment.restores(), took);
        }
        let after = self.version().await;
        let allowed = if moment.restores() { vec![version, target] } else { vec![version] };
        assert!(allowed.contains(&after), "{moment:?}: {after} is none of {allowed:?}");
        self.assert_nothing_left(moment).await;
        self.note_backups(version).await;
        // What was interrupted can be done again.
        let now = self.restore_any(after).await;
        self.succeed(self.job("back_up")).await;
        self.note_backups(now).await;
        self
    }

    /// Whether the orchestrator that was started says that the job was interrupted. If it does not, the job was over.
    async fn interrupted(&self, begun: &Value, moment: Moment) -> bool {
        assert!(!self.orchestrator.has_job().await);
        let recent = recent_jobs(&self.orchestrator).await;
        let Some(job) = recent.into_iter().find(|job| &job["started_at"] == begun) else { return false };
        let action = if moment.restores() { "restore" } else { "back_up" };
        assert_eq!((&job["action"], &job["ended_at"]), (&json!(action), &Value::Null), "{job}");
        assert!(job["error"]["message"].as_str().unwrap().contains("while this job was under way"), "{job}");
        true
    }

    async fn engine_folder(&self) -> Option<std::path::PathBuf> {
        self.deployment.data_folder(&self.engine().await.id)
    }

    async fn assert_nothing_left(&self, moment: Moment) {
        let Some(folder) = self.engine_folder().await else { return };
        let leftovers = ["restore.new", "restore.ready", "restore.old", "brain.sqlite.snapshot"];
        let left: Vec<_> = leftovers.iter().filter(|name| folder.join(name).exists()).collect();
        assert!(left.is_empty(), "{moment:?} left {left:?}");
    }
}

/// `ROUNDHOUSE_TEST_BACKUP_KILLS` sets how many kills have to hit.
#[tokio::test]
async fn kills_at_random_moments_leave_one_state_and_sound_backups() {
    let wanted = env_number("ROUNDHOUSE_TEST_BACKUP_KILLS", MOMENTS.len());
    let store = tempfile::tempdir().unwrap();
    let deployment = crate::backups::deployment(Deployment::new(), store.path());
    let (orchestrator, product) = deployment.start_with_product().await;
    let product_id = product_id(&orchestrator).await;
    product.engine("ada").await;
    let mut scene = Scene {
        deployment,
        orchestrator,
        product,
        product_id,
        versions: BTreeMap::new(),
        hits: BTreeMap::new(),
        hits_in_arrival: 0,
        longest: BTreeMap::from([(false, Duration::from_millis(400)), (true, Duration::from_millis(800))]),
    };
    scene.write(0).await;
    scene.succeed(scene.job("back_up")).await;
    scene.note_backups(0).await;
    let mut kills = 0;
    let hit = |scene: &Scene| scene.hits.values().sum::<usize>();
    while hit(&scene) < wanted || scene.hits.len() < MOMENTS.len() {
        assert!(kills < hit(&scene) + MAX_VAIN_KILLS, "{kills} kills, of which have hit: {:?}", scene.hits);
        // Those that were hit least, so that each gets its share.
        let moment = MOMENTS.into_iter().min_by_key(|moment| scene.hits.get(moment).copied().unwrap_or(0));
        kills += 1;
        scene = scene.kill(moment.unwrap(), kills).await;
    }
    eprintln!(
        "{kills} kills, of which have hit: {:?}; {} of the restores while content arrived; {} backups",
        scene.hits,
        scene.hits_in_arrival,
        scene.versions.len()
    );
    scene.orchestrator.signal_and_wait(Signal::TERM).await;
}
