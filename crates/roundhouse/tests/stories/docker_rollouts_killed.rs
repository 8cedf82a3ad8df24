//! Images are rolled out over a fleet of containers whose users go on talking, while the orchestrator is killed at random:
//! no turn is lost or run twice, and an image that is no engine is taken back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::engine_calls::roles_and_texts;
use crate::support::http::{client, send};
use crate::support::image::{self, RetaggedImage};
use crate::support::{Deployment, Engine, Orchestrator, Product, env_number, eventually};

/// Turns take long enough to be under way when their engine is moved.
const SCRIPT: &str = r#"
rules:
  - when: '^(?<what>\S+)$'
    answers:
      - text: "This is the answer to $what, word by word, until it has come to its end."
        delay_ms: 60
"#;
/// How long a turn may take, with the moves of its engine and the kills of the orchestrator.
const TURN_DEADLINE: Duration = Duration::from_mins(5);
/// How many users talk at the same time.
const TALKERS: usize = 6;

fn answer_to(message: &str) -> String {
    format!("This is the answer to {message}, word by word, until it has come to its end.")
}

/// The engine of a user, if the orchestrator can be asked and the engine runs.
async fn try_admit(product: &Product, user: &str) -> Option<Engine> {
    let request = product.request(Method::POST, &format!("/engines/{user}/admit"));
    let answer = request.json(&json!({"auto_provision": false, "auto_wake": true})).send().await.ok()?;
    let admission: Value = answer.json().await.ok()?;
    (admission["admitted"] == true).then(|| Engine::new(&admission["engine"]))
}

/// Sends a message, and reads the answer to its end; `None` if that was cut off or refused.
async fn try_turn(product: &Product, user: &str, message: &str) -> Option<()> {
    let engine = try_admit(product, user).await?;
    let body = json!({"task_id": "task", "message": message, "client_request_id": message});
    let request = engine.request(Method::POST, "/execute").json(&body).timeout(TURN_DEADLINE);
    let stream = request.send().await.ok()?.text().await.ok()?;
    stream.contains("\"phase\":\"completed\"").then_some(())
}

/// Users who talk until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicUsize>,
    /// The turns that were cut off, or refused, at least once.
    cut: Arc<AtomicUsize>,
    /// Each returns the users with the number of their messages.
    talkers: Vec<JoinHandle<Vec<(String, usize)>>>,
}

impl Load {
    fn start(product: &Product, users: &[String]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (turns, cut) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let talkers = (0..TALKERS.min(users.len())).map(|talker| {
            let mut spoken: Vec<_> =
                users.iter().skip(talker).step_by(TALKERS).map(|user| (user.clone(), 0)).collect();
            let (product, stop) = (product.clone(), Arc::clone(&stop));
            let (turns, cut) = (Arc::clone(&turns), Arc::clone(&cut));
            tokio::spawn(async move {
                let count = spoken.len();
                for turn in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (user, said) = &mut spoken[turn % count];
                    let message = format!("{user}-{said}");
                    let begun = Instant::now();
                    let mut attempts = 1;
                    while try_turn(&product, user, &message).await.is_none() {
                        assert!(begun.elapsed() < TURN_DEADLINE, "{message} gets no answer");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        attempts += 1;
                    }
                    *said += 1;
                    turns.fetch_add(1, Ordering::Relaxed);
                    cut.fetch_add(usize::from(attempts > 1), Ordering::Relaxed);
                }
                spoken
            })
        });
        Self { talkers: talkers.collect(), stop, turns, cut }
    }

    /// Ends the load, and asserts that each message was answered once, in order.
    async fn assert_nothing_lost(self, product: &Product) -> (usize, usize) {
        self.stop.store(true, Ordering::Relaxed);
        for talker in self.talkers {
            for (user, said) in talker.await.unwrap() {
                if said == 0 {
                    continue;
                }
                let engine =
                    eventually("the user is admitted", async || try_admit(product, &user).await).await;
                let messages = engine.messages("task").await;
                let said: Vec<_> = (0..said).map(|n| format!("{user}-{n}")).collect();
                let answers: Vec<_> = said.iter().map(|message| answer_to(message)).collect();
                let expected = said.iter().zip(&answers);
                let expected: Vec<_> =
                    expected.flat_map(|(a, b)| [("user", &**a), ("assistant", &**b)]).collect();
                assert_eq!(roles_and_texts(&messages), expected, "{user}");
            }
        }
        (self.turns.load(Ordering::Relaxed), self.cut.load(Ordering::Relaxed))
    }
}

/// A fleet whose orchestrator can be asked as its operator.
struct World {
    deployment: Deployment,
    orchestrator: Orchestrator,
}

impl World {
    /// The last rollout; null before the first.
    async fn last_rollout(&self) -> Value {
        let list = self.orchestrator.operate(Method::GET, "/fleet/rollouts").await;
        assert_eq!(list.status, 200, "{list:?}");
        list.body["rollouts"][0].clone()
    }

    async fn start_rollout(&self, image: &str) {
        let plan = json!({
            "engine_version": image, "canary_percent": 10, "bake_s": 0, "window_s": 0, "max_failures": 0,
        });
        let request = client().post(format!("{}/fleet/rollouts", self.orchestrator.base)).json(&plan);
        let answer = send(request.header("x-admin-key", &self.deployment.admin_key)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    async fn kill(self) -> Self {
        let Self { deployment, orchestrator } = self;
        assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
        let orchestrator = deployment.start().await;
        Self { deployment, orchestrator }
    }
}

/// How many engines of a rollout have been moved, there or back.
fn moves(rollout: &Value) -> u64 {
    let moved = ["moved", "failed", "unhealthy", "rolled_back"];
    moved.iter().filter_map(|state| rollout["engines"][state].as_u64()).sum()
}

/// `ROUNDHOUSE_TEST_DOCKER_ROLLOUT_KILLS` orchestrators are killed, and `ROUNDHOUSE_TEST_DOCKER_ROLLOUT_ENGINES` users have
/// engines.
#[tokio::test]
#[expect(clippy::print_stdout, reason = "the counts are printed for runs with --nocapture")]
async fn no_turn_is_lost_though_orchestrators_are_killed_amid_rollouts() {
    let Some(deployment) = Deployment::docker() else { return };
    let kills = env_number("ROUNDHOUSE_TEST_DOCKER_ROLLOUT_KILLS", 3);
    let engines = env_number("ROUNDHOUSE_TEST_DOCKER_ROLLOUT_ENGINES", 6);
    let docker = deployment.docker_daemon();
    let images = [RetaggedImage::new(docker, "0.83.0").await, RetaggedImage::new(docker, "0.84.0").await];
    let broken = RetaggedImage::broken(docker, "84.0.0").await;
    let deployment = deployment.with_script(SCRIPT).with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", "86400");
    // The ports of containers are not the host's, so they need not be the range of this test.
    let deployment = if engines > 20 { deployment.with_env("ORCH_PORT_MAX", "49999") } else { deployment };
    let (orchestrator, product) = deployment.start_with_product().await;
    let users: Vec<String> = (0..engines).map(|index| format!("user{index}")).collect();
    for some in users.chunks(4) {
        join_all(some.iter().map(|user| product.engine(user))).await;
    }
    let load = Load::start(&product, &users);
    let mut world = World { deployment, orchestrator };
    let (mut done, mut amid, mut completed, mut taken_back, mut begun) = (0, 0, 0, 0, 0);
    let mut image = image::reference(env!("CARGO_PKG_VERSION"));
    loop {
        let last = world.last_rollout().await;
        if last["ended_at"].is_string() {
            if last["phase"] == "completed" {
                assert_ne!(last["engine_version"], *broken.reference, "{last}");
                completed += 1;
                last["engine_version"].as_str().unwrap().clone_into(&mut image);
            } else {
                taken_back += 1;
            }
        }
        if last.is_null() || last["ended_at"].is_string() {
            if done >= kills && completed > 0 && taken_back > 0 {
                break;
            }
            // The second one and every third after it is no engine.
            let next = if begun % 3 == 1 { &broken } else { &images[begun / 2 % 2] };
            world.start_rollout(&next.reference).await;
            begun += 1;
        }
        // Somewhat later, at another number of moves each time.
        let before = world.last_rollout().await;
        let later = moves(&before) + (done % 5) as u64;
        let killed = eventually("the rollout goes on", async || {
            let now = world.last_rollout().await;
            let is_over = now["ended_at"].is_string();
            (is_over || moves(&now) >= later).then_some((done < kills && !is_over).then_some(now))
        })
        .await;
        if let Some(now) = killed {
            amid += usize::from(now["engines"]["moving"].as_u64() > Some(0));
            world = world.kill().await;
            done += 1;
        }
    }
    let (turns, cut) = load.assert_nothing_lost(&product).await;
    let World { deployment, orchestrator } = world;
    for user in &users {
        product.wait_for_status(user, "running").await;
        assert_eq!(image::of_engine(&deployment, &product, user).await, image, "{user}");
    }
    assert_eq!(deployment.containers().await.len(), engines, "nothing is left over");
    assert!(turns > 0 && amid * 4 >= kills, "{amid} of {kills} kills were amid a move");
    println!(
        "{done} kills, {amid} of them amid a move, in {begun} rollouts of {engines} engines: {completed} completed, \
         {taken_back} taken back; {turns} turns, {cut} of them cut off or refused at least once"
    );
    drop(orchestrator);
}
