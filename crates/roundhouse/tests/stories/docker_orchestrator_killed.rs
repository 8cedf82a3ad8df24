//! Story 34 (lessons o01, o04, o16): the orchestrator is killed in the middle of what it does to a container. No other
//! engine notices, and afterwards rows, containers and folders are one to one.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::support::http::client;
use crate::support::schema::ENGINE_RECORD;
use crate::support::{Deployment, Docker, Engine, Orchestrator, Product, eventually, with_deadline};

/// What is begun before the orchestrator is killed.
#[derive(Clone, Copy, Debug)]
enum Change {
    Provision,
    Start,
    Stop,
    Delete,
    Rotate,
}

/// When it is killed.
#[derive(Clone, Copy, Debug)]
enum KillMoment {
    /// So many milliseconds after it was asked for, wherever it is then.
    After(u64),
    /// When the daemon tells that this has happened to the container.
    EventSeen(&'static str),
}

/// What a daemon tells of a deployment's containers, as it happens.
struct DockerEvents {
    _client: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl DockerEvents {
    /// Listens from now on.
    async fn start(docker: &Docker, deployment: &str) -> Self {
        let now = docker.run(&["info", "--format", "{{.SystemTime}}"]).await;
        let mut client = Command::new("docker")
            .args(["--host", &format!("unix://{}", docker.socket().display()), "events", "--since", &now])
            .args([
                "--filter",
                &format!("label=roundhouse.deployment={deployment}"),
                "--format",
                "{{.Action}}",
            ])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(client.stdout.take().unwrap()).lines();
        Self { _client: client, lines }
    }

    async fn wait_for(&mut self, what: &str) {
        let told = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if line.split(':').next() == Some(what) {
                    return;
                }
            }
            panic!("the daemon stopped telling before {what}");
        };
        with_deadline(what, told).await;
    }
}

/// An engine that nothing is done to, which is asked something all the time.
struct Witness {
    engine: Engine,
    container: Option<String>,
    stop: Arc<AtomicBool>,
    request_count: Arc<AtomicU64>,
    requests_task: JoinHandle<Vec<String>>,
}

impl Witness {
    async fn new(place: &Deployment, product: &Product) -> Self {
        let engine = product.engine("witness").await;
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let asking = tokio::spawn({
            let (engine, stop, asked) = (engine.clone(), stop.clone(), asked.clone());
            async move {
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let request =
                        client().get(format!("{}/tasks", engine.url)).header("x-engine-key", &engine.key);
                    match request.send().await {
                        Ok(answer) if answer.status() == 200 => {}
                        other => failures.push(format!("{other:?}")),
                    }
                    asked.fetch_add(1, Ordering::Relaxed);
                }
                failures
            }
        });
        Self {
            container: place.container_of(&engine).await,
            engine,
            stop,
            request_count: asked,
            requests_task: asking,
        }
    }

    async fn assert_noticed_nothing(self, place: &Deployment, product: &Product) {
        self.stop.store(true, Ordering::Relaxed);
        assert_eq!(self.requests_task.await.unwrap(), Vec::<String>::new());
        assert!(self.request_count.load(Ordering::Relaxed) > 20, "it was asked all the time");
        assert_eq!(place.container_of(&self.engine).await, self.container);
        for event in ["crash", "restart", "start"] {
            let rows = product.audit_rows(event).await;
            assert!(rows.iter().all(|(user, _)| user != "witness"), "{event}: {rows:?}");
        }
    }
}

/// Waits until rows, containers and folders are one to one and nothing is under way.
async fn wait_until_consistent(place: &Deployment, product: &Product) {
    eventually("rows, containers and folders are one to one", async || {
        let (engines, _) = product.list("").await;
        let settled = |engine: &&serde_json::Value| {
            !["provisioning", "destroying"].contains(&engine["status"].as_str().unwrap())
        };
        let ids = |status: Option<&str>| {
            let chosen =
                engines.iter().filter(|engine| status.is_none_or(|status| engine["status"] == status));
            let mut ids: Vec<String> =
                chosen.map(|engine| engine["engine_id"].as_str().unwrap().to_owned()).collect();
            ids.sort();
            ids
        };
        let mut contained = Vec::new();
        for container in place.containers().await {
            // One that is just going is none that stays.
            let format = "{{.State.Status}} {{index .Config.Labels \"roundhouse.engine\"}}";
            let told =
                place.docker_daemon().try_run(&["inspect", "--format", format, &container]).await.ok()?;
            contained.push(told.strip_prefix("running ")?.to_owned());
        }
        contained.sort();
        let folders = std::fs::read_dir(place.fleet.folder().join("engines")).unwrap();
        let mut folders: Vec<String> =
            folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        folders.sort();
        let well = engines.iter().all(|engine| settled(&engine));
        (well && contained == ids(Some("running")) && folders == ids(None)).then_some(())
    })
    .await;
}

/// Begins a change to ada's engine and kills the orchestrator at a moment of it.
async fn kill_at_moment(
    place: &Deployment,
    orchestrator: Orchestrator,
    product: &Product,
    (change, moment): (Change, KillMoment),
    deployment: &str,
) -> Orchestrator {
    let mut told = DockerEvents::start(place.docker_daemon(), deployment).await;
    let call = tokio::spawn({
        let product = product.clone();
        async move {
            let path = |suffix: &str| format!("{}/engines/ada{suffix}", product.base);
            let request = match change {
                Change::Provision => client()
                    .post(format!("{}/engines/provision", product.base))
                    .json(&serde_json::json!({"user_id": "ada"})),
                Change::Start => client().post(path("/start")),
                Change::Stop => client().post(path("/stop")),
                Change::Delete => client().delete(path("")),
                Change::Rotate => client().post(path("/rotate-key")),
            };
            request.header("x-platform-key", &product.key).send().await
        }
    });
    match moment {
        KillMoment::EventSeen(what) => told.wait_for(what).await,
        KillMoment::After(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
    }
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    call.abort();
    let orchestrator = place.start().await;
    wait_until_consistent(place, product).await;
    orchestrator
}

/// Kills the orchestrator in each of these moments of a change; `before` says whether ada's engine runs, is stopped, or
/// is not there.
async fn kill_in_each_moment(change: Change, before: &str, event_counter: &[KillMoment]) {
    let Some(place) = Deployment::docker() else { return };
    let (mut orchestrator, product) = place.start_with_product().await;
    let witness = Witness::new(&place, &product).await;
    let told = place.docker_daemon().inspect(witness.container.as_ref().unwrap()).await;
    let deployment = told["Config"]["Labels"]["roundhouse.deployment"].as_str().unwrap().to_owned();
    for moment in event_counter {
        match before {
            "running" => drop(product.engine("ada").await),
            "stopped" => {
                product.engine("ada").await;
                product.stop("ada").await.assert_ok("status:text");
            }
            _ => assert_eq!(product.get("ada").await.status, 404),
        }
        orchestrator = kill_at_moment(&place, orchestrator, &product, (change, *moment), &deployment).await;
        // Whatever became of it, it can be put right by whoever wants it.
        match product.admit_existing("ada").await.body["reason"].as_str() {
            Some("engine_stopped") => drop(product.start("ada").await.assert_ok("status:text url:url")),
            Some("engine_not_found" | "engine_sleeping") | None => {}
            Some(other) => panic!("{change:?} at {moment:?}: {other}"),
        }
        let engine = product.engine("ada").await;
        engine.get("/tasks").await.assert_ok("tasks:array total:int");
        wait_until_consistent(&place, &product).await;
        if before != "running" {
            product.delete("ada").await.assert_ok("status:text engine_id:engine");
        }
    }
    witness.assert_noticed_nothing(&place, &product).await;
    drop(orchestrator);
}

#[tokio::test]
async fn lesson_o01_killed_amid_a_provision() {
    kill_in_each_moment(
        Change::Provision,
        "none",
        &[KillMoment::After(5), KillMoment::EventSeen("create"), KillMoment::EventSeen("start")],
    )
    .await;
}

#[tokio::test]
async fn lesson_o01_killed_amid_a_start() {
    kill_in_each_moment(
        Change::Start,
        "stopped",
        &[KillMoment::After(5), KillMoment::EventSeen("create"), KillMoment::EventSeen("start")],
    )
    .await;
}

#[tokio::test]
async fn lesson_o01_killed_amid_a_stop() {
    let event_counter = [
        KillMoment::After(5),
        KillMoment::EventSeen("kill"),
        KillMoment::EventSeen("die"),
        KillMoment::EventSeen("destroy"),
    ];
    // A stopped engine is no longer running: each round begins with a start.
    kill_in_each_moment(Change::Stop, "running", &event_counter).await;
}

#[tokio::test]
async fn lesson_o01_killed_amid_a_delete() {
    let event_counter =
        [KillMoment::After(5), KillMoment::EventSeen("die"), KillMoment::EventSeen("destroy")];
    kill_in_each_moment(Change::Delete, "running", &event_counter).await;
}

#[tokio::test]
async fn lesson_o04_engines_in_containers_do_not_notice_that_the_orchestrator_is_started_again() {
    let Some(place) = Deployment::docker() else { return };
    let place = place
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "600")
        .with_env("ORCH_RESTART_BACKOFF_MAX_S", "600")
        .with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", "3000");
    let mut orchestrator = place.start().await;
    let product = orchestrator.register("shop", json!({"max_engines": 2})).await;
    let witness = Witness::new(&place, &product).await;
    // One that waits for its restart.
    let failed = product.engine("ada").await;
    place.kill_engine(&failed);
    product.wait_for_status("ada", "failed").await;
    let before = (product.explain("witness").await, product.explain("ada").await);
    assert_eq!(
        (&before.0["next_action"]["action"], &before.1["next_action"]["action"]),
        (&json!("sleep"), &json!("restart"))
    );
    for signal in [Signal::KILL, Signal::TERM, Signal::KILL] {
        orchestrator.signal_and_wait(signal).await;
        orchestrator = place.start().await;
        let after = (product.explain("witness").await, product.explain("ada").await);
        assert_eq!(after.1["next_action"], before.1["next_action"], "the back-off goes on");
        assert_eq!(after.1["restart_attempt"], before.1["restart_attempt"]);
        let [was, is] = [&before.0, &after.0].map(|told| {
            assert_eq!(told["next_action"]["action"], "sleep");
            serde_json::from_value::<api::Timestamp>(told["next_action"]["at"].clone()).unwrap().unix_ms()
        });
        // A kill forgets a second of activity at most.
        assert!((was - is).abs() <= 1_500, "the idle clock goes on: {was} {is}");
        product.provision("bob").await.assert_error(429, "QUOTA_EXCEEDED");
    }
    witness.assert_noticed_nothing(&place, &product).await;
    drop(orchestrator);
}

#[tokio::test]
async fn lesson_o16_killed_amid_a_rotation_one_key_works_and_the_rest_are_dead() {
    let Some(place) = Deployment::docker() else { return };
    let (mut orchestrator, product) = place.start_with_product().await;
    let witness = Witness::new(&place, &product).await;
    let told = place.docker_daemon().inspect(witness.container.as_ref().unwrap()).await;
    let deployment = told["Config"]["Labels"]["roundhouse.deployment"].as_str().unwrap().to_owned();
    let mut dead: Vec<String> = Vec::new();
    for milliseconds in [1, 3, 6, 12, 25] {
        let before = product.engine("ada").await;
        let rotation = (Change::Rotate, KillMoment::After(milliseconds));
        orchestrator = kill_at_moment(&place, orchestrator, &product, rotation, &deployment).await;
        let engine = product.engine("ada").await;
        assert_eq!(product.get("ada").await.assert_ok(ENGINE_RECORD)["api_key"], engine.key.as_str());
        engine.get("/tasks").await.assert_ok("tasks:array total:int");
        if engine.key != before.key {
            dead.push(before.key.clone());
        }
        // What was told to be done is done for good.
        dead.push(engine.key.clone());
        product.rotate_key("ada").await.assert_ok("new_api_key:engine-key");
        let now = product.engine("ada").await;
        now.get("/tasks").await.assert_ok("tasks:array total:int");
        for key in &dead {
            let former = now.with_key(key);
            former.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
        }
    }
    witness.assert_noticed_nothing(&place, &product).await;
    drop(orchestrator);
}
