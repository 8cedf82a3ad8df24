//! Story 34 (lessons o01, o04, o16): the orchestrator is killed in the middle of an operation on a container.
//! Other engines are not affected, and afterwards rows, containers and folders are one to one.

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

/// The operation during which the orchestrator is killed.
#[derive(Clone, Copy, Debug)]
enum Change {
    Provision,
    Start,
    Stop,
    Delete,
    Rotate,
}

/// The moment at which the orchestrator is killed.
#[derive(Clone, Copy, Debug)]
enum KillMoment {
    /// This many milliseconds after the request, whatever the operation is doing then.
    After(u64),
    /// When the daemon reports this event of the container.
    EventSeen(&'static str),
}

/// The daemon's events of a deployment's containers.
struct DockerEvents {
    _client: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl DockerEvents {
    /// Listens for events from now on.
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
        let waiting = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if line.split(':').next() == Some(what) {
                    return;
                }
            }
            panic!("the daemon's events ended before {what}");
        };
        with_deadline(what, waiting).await;
    }
}

/// An engine without operations that is sent requests continuously.
struct Witness {
    engine: Engine,
    container: Option<String>,
    stop: Arc<AtomicBool>,
    request_count: Arc<AtomicU64>,
    requests_task: JoinHandle<Vec<String>>,
}

impl Witness {
    async fn new(deployment: &Deployment, product: &Product) -> Self {
        let engine = product.engine("witness").await;
        let (stop, request_count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let requests_task = tokio::spawn({
            let (engine, stop, request_count) = (engine.clone(), stop.clone(), request_count.clone());
            async move {
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let request =
                        client().get(format!("{}/tasks", engine.url)).header("x-engine-key", &engine.key);
                    match request.send().await {
                        Ok(answer) if answer.status() == 200 => {}
                        other => failures.push(format!("{other:?}")),
                    }
                    request_count.fetch_add(1, Ordering::Relaxed);
                }
                failures
            }
        });
        Self { container: deployment.container_of(&engine).await, engine, stop, request_count, requests_task }
    }

    async fn assert_noticed_nothing(self, deployment: &Deployment, product: &Product) {
        self.stop.store(true, Ordering::Relaxed);
        assert_eq!(self.requests_task.await.unwrap(), Vec::<String>::new());
        assert!(self.request_count.load(Ordering::Relaxed) > 20, "requests were sent all the time");
        assert_eq!(deployment.container_of(&self.engine).await, self.container);
        for event in ["crash", "restart", "start"] {
            let rows = product.audit_rows(event).await;
            assert!(rows.iter().all(|(user, _)| user != "witness"), "{event}: {rows:?}");
        }
    }
}

/// Waits until rows, containers and folders are one to one and no operation is under way.
async fn wait_until_consistent(deployment: &Deployment, product: &Product) {
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
        for container in deployment.containers().await {
            // A container that is being removed counts as not settled.
            let format = "{{.State.Status}} {{index .Config.Labels \"roundhouse.engine\"}}";
            let inspected = deployment
                .docker_daemon()
                .try_run(&["inspect", "--format", format, &container])
                .await
                .ok()?;
            contained.push(inspected.strip_prefix("running ")?.to_owned());
        }
        contained.sort();
        let folders = std::fs::read_dir(deployment.fleet.folder().join("engines")).unwrap();
        let mut folders: Vec<String> =
            folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        folders.sort();
        let all_settled = engines.iter().all(|engine| settled(&engine));
        (all_settled && contained == ids(Some("running")) && folders == ids(None)).then_some(())
    })
    .await;
}

/// Starts an operation on ada's engine, kills the orchestrator at `moment`, and starts it again.
async fn kill_at_moment(
    deployment: &Deployment,
    orchestrator: Orchestrator,
    product: &Product,
    (change, moment): (Change, KillMoment),
    label: &str,
) -> Orchestrator {
    let mut events = DockerEvents::start(deployment.docker_daemon(), label).await;
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
        KillMoment::EventSeen(what) => events.wait_for(what).await,
        KillMoment::After(milliseconds) => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
    }
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    call.abort();
    let orchestrator = deployment.start().await;
    wait_until_consistent(deployment, product).await;
    orchestrator
}

/// Kills the orchestrator in each of these moments of an operation; `before` is the state of ada's engine:
/// running, stopped or absent.
async fn kill_in_each_moment(change: Change, before: &str, moments: &[KillMoment]) {
    let Some(deployment) = Deployment::docker() else { return };
    let (mut orchestrator, product) = deployment.start_with_product().await;
    let witness = Witness::new(&deployment, &product).await;
    let container_info = deployment.docker_daemon().inspect(witness.container.as_ref().unwrap()).await;
    let label = container_info["Config"]["Labels"]["roundhouse.deployment"].as_str().unwrap().to_owned();
    for moment in moments {
        match before {
            "running" => drop(product.engine("ada").await),
            "stopped" => {
                product.engine("ada").await;
                product.stop("ada").await.assert_ok("status:text");
            }
            _ => assert_eq!(product.get("ada").await.status, 404),
        }
        orchestrator = kill_at_moment(&deployment, orchestrator, &product, (change, *moment), &label).await;
        // Whatever the result, callers can get the engine to run.
        match product.admit_existing("ada").await.body["reason"].as_str() {
            Some("engine_stopped") => drop(product.start("ada").await.assert_ok("status:text url:url")),
            Some("engine_not_found" | "engine_sleeping") | None => {}
            Some(other) => panic!("{change:?} at {moment:?}: {other}"),
        }
        let engine = product.engine("ada").await;
        engine.get("/tasks").await.assert_ok("tasks:array total:int");
        wait_until_consistent(&deployment, &product).await;
        if before != "running" {
            delete_patiently(&product, "ada").await;
        }
    }
    witness.assert_noticed_nothing(&deployment, &product).await;
    drop(orchestrator);
}

/// Deletes a user's engine. A daemon that many stories keep busy may not answer in time: then the engine is `destroying`
/// until the orchestrator has finished that by itself.
async fn delete_patiently(product: &Product, user: &str) {
    let answer = product.delete(user).await;
    if answer.status == 502 {
        answer.assert_error(502, "BACKEND_ERROR");
    } else {
        answer.assert_ok("status:text engine_id:engine");
    }
    eventually("the engine is gone", async || (product.get(user).await.status == 404).then_some(())).await;
}

#[tokio::test]
async fn regression_o01_killed_amid_a_provision() {
    kill_in_each_moment(
        Change::Provision,
        "none",
        &[KillMoment::After(5), KillMoment::EventSeen("create"), KillMoment::EventSeen("start")],
    )
    .await;
}

#[tokio::test]
async fn regression_o01_killed_amid_a_start() {
    kill_in_each_moment(
        Change::Start,
        "stopped",
        &[KillMoment::After(5), KillMoment::EventSeen("create"), KillMoment::EventSeen("start")],
    )
    .await;
}

#[tokio::test]
async fn regression_o01_killed_amid_a_stop() {
    let moments = [
        KillMoment::After(5),
        KillMoment::EventSeen("kill"),
        KillMoment::EventSeen("die"),
        KillMoment::EventSeen("destroy"),
    ];
    // Each round starts with a running engine.
    kill_in_each_moment(Change::Stop, "running", &moments).await;
}

#[tokio::test]
async fn regression_o01_killed_amid_a_delete() {
    let moments = [KillMoment::After(5), KillMoment::EventSeen("die"), KillMoment::EventSeen("destroy")];
    kill_in_each_moment(Change::Delete, "running", &moments).await;
}

#[tokio::test]
async fn regression_o04_engines_in_containers_do_not_notice_that_the_orchestrator_is_started_again() {
    let Some(deployment) = Deployment::docker() else { return };
    let deployment = deployment
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "600")
        .with_env("ORCH_RESTART_BACKOFF_MAX_S", "600")
        .with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", "3000");
    let mut orchestrator = deployment.start().await;
    let product = orchestrator.register("shop", json!({"max_engines": 2})).await;
    let witness = Witness::new(&deployment, &product).await;
    // An engine that waits for its restart.
    let failed = product.engine("ada").await;
    deployment.kill_engine(&failed);
    product.wait_for_status("ada", "failed").await;
    let before = (product.explain("witness").await, product.explain("ada").await);
    assert_eq!(
        (&before.0["next_action"]["action"], &before.1["next_action"]["action"]),
        (&json!("sleep"), &json!("restart"))
    );
    for signal in [Signal::KILL, Signal::TERM, Signal::KILL] {
        orchestrator.signal_and_wait(signal).await;
        orchestrator = deployment.start().await;
        let after = (product.explain("witness").await, product.explain("ada").await);
        assert_eq!(after.1["next_action"], before.1["next_action"], "the back-off continues");
        assert_eq!(after.1["restart_attempt"], before.1["restart_attempt"]);
        let [planned, replanned] = [&before.0, &after.0].map(|explanation| {
            assert_eq!(explanation["next_action"]["action"], "sleep");
            serde_json::from_value::<api::Timestamp>(explanation["next_action"]["at"].clone())
                .unwrap()
                .unix_ms()
        });
        // A kill loses at most a second of recorded activity.
        assert!((planned - replanned).abs() <= 1_500, "the idle clock continues: {planned} {replanned}");
        product.provision("bob").await.assert_error(429, "QUOTA_EXCEEDED");
    }
    witness.assert_noticed_nothing(&deployment, &product).await;
    drop(orchestrator);
}

#[tokio::test]
async fn regression_o16_killed_amid_a_rotation_one_key_works_and_the_rest_are_dead() {
    let Some(deployment) = Deployment::docker() else { return };
    let (mut orchestrator, product) = deployment.start_with_product().await;
    let witness = Witness::new(&deployment, &product).await;
    let container_info = deployment.docker_daemon().inspect(witness.container.as_ref().unwrap()).await;
    let label = container_info["Config"]["Labels"]["roundhouse.deployment"].as_str().unwrap().to_owned();
    let mut dead: Vec<String> = Vec::new();
    for milliseconds in [1, 3, 6, 12, 25] {
        let before = product.engine("ada").await;
        let rotation = (Change::Rotate, KillMoment::After(milliseconds));
        orchestrator = kill_at_moment(&deployment, orchestrator, &product, rotation, &label).await;
        let engine = product.engine("ada").await;
        assert_eq!(product.get("ada").await.assert_ok(ENGINE_RECORD)["api_key"], engine.key.as_str());
        engine.get("/tasks").await.assert_ok("tasks:array total:int");
        if engine.key != before.key {
            dead.push(before.key.clone());
        }
        // A rotation that was reported as done is permanent.
        dead.push(engine.key.clone());
        product.rotate_key("ada").await.assert_ok("new_api_key:engine-key");
        let now = product.engine("ada").await;
        now.get("/tasks").await.assert_ok("tasks:array total:int");
        for key in &dead {
            let former = now.with_key(key);
            former.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
        }
    }
    witness.assert_noticed_nothing(&deployment, &product).await;
    drop(orchestrator);
}
