//! An operator sees what differs between the registry and what exists of engines, and has it repaired.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use api::EngineId;
use futures::future::join_all;
use reqwest::Method;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use crate::support::command_line::cells;
use crate::support::http::{client, send};
use crate::support::{Deployment, Engine, Orchestrator, Product, eventually, processes};

/// The fields of a difference.
const DIFFERENCE: &str = "kind:text engine_id:engine product_id:product|null user_id:text|null instance:text|null \
                          seen:text repair:text|null advice:text|null";

impl Orchestrator {
    /// The differences, each as its kind, its engine and its repair.
    async fn drift(&self) -> Vec<(String, String, String)> {
        let path = "/fleet/drift";
        let fields = "differences:array total:int truncated:bool data_compared:bool";
        let answer = self.operate(Method::GET, path).await.assert_ok(fields);
        let differences = answer["differences"].as_array().unwrap();
        assert_eq!((&answer["total"], &answer["truncated"]), (&json!(differences.len()), &json!(false)));
        for difference in differences {
            crate::support::assert_fields(difference, DIFFERENCE);
        }
        differences
            .iter()
            .map(|one| (text(one, "kind"), text(one, "engine_id"), text(one, "repair")))
            .collect()
    }

    /// Calls the repair.
    async fn repair(&self, body: &Value) -> Vec<Value> {
        let request = client().post(format!("{}/fleet/drift/repair", self.base));
        let answer = send(request.header("x-admin-key", &self.admin_key).json(body)).await;
        let answer = answer.assert_ok("dry_run:bool results:array total:int truncated:bool");
        assert_eq!(answer["dry_run"], body["dry_run"] != false, "{answer}");
        for result in answer["results"].as_array().unwrap() {
            crate::support::assert_fields(result, &format!("{DIFFERENCE} outcome:text error:object|null"));
        }
        answer["results"].as_array().unwrap().clone()
    }

    /// Repairs, and returns what became of each.
    async fn outcomes(&self, body: Value) -> Vec<String> {
        self.repair(&body).await.iter().map(|result| text(result, "outcome")).collect()
    }
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or("-").to_owned()
}

/// The id of a deployment, from the command line of one of its engines.
fn deployment_id(deployment: &Deployment, engine: &Engine) -> String {
    let process = deployment.process_of(engine).unwrap();
    let line = fs::read_to_string(processes::proc_folder(process).join("cmdline")).unwrap();
    line.split('\0').nth(3).unwrap().to_owned()
}

/// A process that looks like the deployment's engine of this id, and that no orchestrator has launched.
struct Stranger(Child);

impl Stranger {
    fn start(folder: &Path, deployment_id: &str, engine_id: &str) -> Self {
        let script = folder.join("engine");
        fs::write(&script, "while :; do sleep 0.2; done\n").unwrap();
        let mut command = Command::new("sh");
        command.arg0("roundhouse").args(["engine", "--deployment", deployment_id, "--engine-id", engine_id]);
        command.args(["--generation", "3"]).current_dir(folder);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(child.unwrap())
    }

    fn is_alive(&self) -> bool {
        processes::is_alive(Pid::from_child(&self.0))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets nothing in the folder look as if it had changed lately.
fn age(folder: &Path) {
    let old = SystemTime::now() - Duration::from_hours(48);
    for entry in fs::read_dir(folder).unwrap() {
        File::open(entry.unwrap().path()).unwrap().set_modified(old).unwrap();
    }
    File::open(folder).unwrap().set_modified(old).unwrap();
}

/// Destroys the engines of these users, and leaves copies of their data. Returns the engines' ids.
async fn leave_data(deployment: &Deployment, product: &Product, users: &[&str]) -> Vec<String> {
    let leave = users.iter().map(|user| async move {
        let engine = product.engine(user).await;
        product.stop(user).await.assert_ok("status:text");
        let (folder, aside) =
            (deployment.fleet.engine_folder(&engine.id), deployment.fleet.folder().join(user));
        fs::rename(&folder, &aside).unwrap();
        fs::create_dir(&folder).unwrap();
        product.delete(user).await.assert_ok("status:text engine_id:engine");
        assert!(!folder.exists());
        fs::rename(&aside, &folder).unwrap();
        engine.id
    });
    join_all(leave).await
}

#[tokio::test]
async fn a_process_of_no_engine_is_seen_and_removed_and_the_engines_are_left_alone() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, product) = deployment.start_with_product().await;
    let ada = product.engine("ada").await;
    let process = deployment.process_of(&ada);
    let id = deployment_id(&deployment, &ada);
    assert_eq!(orchestrator.drift().await, []);
    let home = deployment.fleet.test_env.path();
    // Reconciliation comes every 30 seconds, and may be first.
    let (engine_id, stranger) = eventually("it is seen before reconciliation comes", async || {
        let engine_id = EngineId::new().to_string();
        let stranger = Stranger::start(home, &id, &engine_id);
        let seen = orchestrator.drift().await;
        let expected = ("orphan_instance".to_owned(), engine_id.clone(), "remove_instance".to_owned());
        let dry = orchestrator.outcomes(json!({})).await;
        (seen == [expected] && dry == ["would_repair"] && stranger.is_alive())
            .then_some((engine_id, stranger))
    })
    .await;
    let other = json!({"dry_run": false, "engine_id": ada.id});
    assert_eq!(orchestrator.outcomes(other).await, [""; 0]);
    let repaired = orchestrator.outcomes(json!({"dry_run": false, "engine_id": engine_id})).await;
    assert!(
        repaired == ["repaired"] || repaired.is_empty(),
        "reconciliation was first, at most: {repaired:?}"
    );
    assert!(!stranger.is_alive());
    assert_eq!(orchestrator.outcomes(json!({"dry_run": false})).await, [""; 0]);
    assert_eq!(orchestrator.drift().await, []);
    assert_eq!(deployment.process_of(&ada), process);
    assert_eq!(product.audit_rows("crash").await, []);
}

#[tokio::test]
async fn data_of_a_destroyed_engine_is_removed_if_it_is_named_and_no_other_is() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, product) = deployment.start_with_product().await;
    let ids = leave_data(&deployment, &product, &["ada"]).await;
    let (left, unknown) = (ids[0].as_str(), EngineId::new().to_string());
    let folder = |id: &str| deployment.fleet.engine_folder(id);
    fs::create_dir(folder(&unknown)).unwrap();
    fs::write(folder(&unknown).join("brain.sqlite"), "somebody's").unwrap();
    fs::create_dir(deployment.fleet.folder().join("engines/lost+found")).unwrap();
    let kind = "data_without_engine";
    let of = |id: &str, repair: &str| (kind.to_owned(), id.to_owned(), repair.to_owned());
    // It was put there a moment ago.
    age(&folder(&unknown));
    File::create(folder(left).join("engine.log")).unwrap();
    assert_eq!(orchestrator.drift().await, [of(left, "-"), of(&unknown, "-")]);
    let named = || json!({"dry_run": false, "kinds": [kind]});
    assert_eq!(orchestrator.outcomes(named()).await, ["no_repair", "no_repair"]);

    age(&folder(left));
    assert_eq!(orchestrator.drift().await, [of(left, "remove_data"), of(&unknown, "-")]);
    assert_eq!(orchestrator.outcomes(json!({"dry_run": false})).await, ["needs_kind", "no_repair"]);
    assert_eq!(orchestrator.outcomes(json!({"kinds": [kind]})).await, ["would_repair", "no_repair"]);
    assert!(folder(left).exists());
    assert_eq!(product.audit_rows("repair").await, []);
    assert_eq!(orchestrator.outcomes(named()).await, ["repaired", "no_repair"]);
    assert!(!folder(left).exists() && folder(&unknown).join("brain.sqlite").exists());
    assert_eq!(orchestrator.outcomes(named()).await, ["no_repair"]);
    let detail = json!({"kind": kind, "repair": "remove_data", "reason": "requested", "actor": "admin"});
    assert_eq!(product.audit_rows("repair").await, [("ada".to_owned(), detail)]);
}

#[tokio::test]
async fn an_engine_whose_data_is_gone_is_named_and_a_missing_disk_is_no_difference() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, product) = deployment.start_with_product().await;
    let ada = product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    let folder = deployment.fleet.engine_folder(&ada.id);
    let aside = deployment.fleet.folder().join("aside");
    fs::rename(&folder, &aside).unwrap();
    let expected = ("engine_without_data".to_owned(), ada.id.clone(), "-".to_owned());
    assert_eq!(orchestrator.drift().await, [expected]);
    let named = json!({"dry_run": false, "kinds": ["engine_without_data"]});
    let results = orchestrator.repair(&named).await;
    assert_eq!(text(&results[0], "outcome"), "no_repair");
    assert!(text(&results[0], "advice").contains("from a backup"), "{results:?}");
    assert_eq!(product.status("ada").await, "stopped");
    fs::rename(&aside, &folder).unwrap();
    assert_eq!(orchestrator.drift().await, []);
    // The disk is away: nothing is known of any engine.
    let root = deployment.fleet.folder().join("engines");
    fs::rename(&root, &aside).unwrap();
    for (method, path) in [(Method::GET, "/fleet/drift"), (Method::POST, "/fleet/drift/repair")] {
        let request = client().request(method, format!("{}{path}", orchestrator.base));
        let request = request.header("x-admin-key", &orchestrator.admin_key).json(&json!({}));
        let answer = send(request).await;
        let message = answer.assert_error(502, "BACKEND_ERROR");
        assert!(message.contains("data is unavailable"), "{message}");
    }
    fs::rename(&aside, &root).unwrap();
    product.start("ada").await.assert_ok("status:text url:text");
}

#[tokio::test]
async fn what_is_changing_is_no_difference_and_no_repair_disturbs_it() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let users: Vec<_> = (0..4).map(|number| format!("user-{number}")).collect();
    let lives = users.iter().map(|user| {
        let product = &product;
        async move {
            for _ in 0..3 {
                product.engine(user).await;
                product.stop(user).await.assert_ok("status:text");
                product.start(user).await.assert_ok("status:text url:text");
                product.delete(user).await.assert_ok("status:text engine_id:engine");
            }
        }
    });
    let looks = async {
        loop {
            assert_eq!(orchestrator.drift().await, []);
            assert_eq!(orchestrator.outcomes(json!({"dry_run": false})).await, [""; 0]);
        }
    };
    tokio::select! {
        _ = join_all(lives) => {}
        () = looks => {}
    }
    assert_eq!(product.audit_rows("crash").await, []);
    assert_eq!(product.audit_rows("destroy").await.len(), 12);
}

#[tokio::test]
async fn an_engine_that_is_killed_is_restarted_once_whoever_repairs_it() {
    let deployment = Deployment::new().with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let (orchestrator, product) = deployment.start_with_product().await;
    let ada = product.engine("ada").await;
    let before = deployment.kill_engine(&ada);
    eventually("it runs again", async || {
        orchestrator.outcomes(json!({"dry_run": false})).await;
        let process = deployment.process_of(&ada).filter(|process| *process != before);
        (process.is_some() && product.status("ada").await == "running").then_some(())
    })
    .await;
    assert_eq!(orchestrator.drift().await, []);
    assert_eq!(product.audit_rows("crash").await.len(), 1);
    assert_eq!(product.audit_rows("restart").await.len(), 1);
}

#[tokio::test]
async fn a_repair_that_was_killed_is_repeated() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, product) = deployment.start_with_product().await;
    let users = ["ada", "bob", "eve"];
    let left = leave_data(&deployment, &product, &users).await;
    let folders: Vec<_> = left.iter().map(|id| deployment.fleet.engine_folder(id)).collect();
    for folder in &folders {
        // So that a removal takes long enough to be killed in its middle.
        let workspace = folder.join("workspace/many");
        fs::create_dir_all(&workspace).unwrap();
        for number in 0..4_000 {
            File::create(workspace.join(number.to_string())).unwrap();
        }
        age(folder);
    }
    let named = json!({"dry_run": false, "kinds": ["data_without_engine"]});
    let call = client().post(format!("{}/fleet/drift/repair", orchestrator.base));
    let call = call.header("x-admin-key", &orchestrator.admin_key).json(&named).send();
    let call = tokio::spawn(call);
    let files = |folder: &Path| fs::read_dir(folder.join("workspace/many")).map_or(0, Iterator::count);
    eventually("a removal has begun", async || {
        folders.iter().any(|folder| files(folder) < 4_000).then_some(())
    })
    .await;
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    assert!(call.await.unwrap().is_err(), "it was killed before it answered");
    // What is half removed was changed a moment ago, and looks as if somebody were at work on it.
    for folder in folders.iter().filter(|folder| folder.exists()) {
        age(folder);
    }
    let outcomes = orchestrator.outcomes(named.clone()).await;
    assert!(!outcomes.is_empty() && outcomes.iter().all(|outcome| outcome == "repaired"), "{outcomes:?}");
    assert!(folders.iter().all(|folder| !folder.exists()));
    assert_eq!(orchestrator.outcomes(named).await, [""; 0]);
    // Each was ordered before it was begun.
    let audited = product.audit_rows("repair").await;
    for user in users {
        assert!(audited.iter().any(|(of, _)| of == user), "{user}: {audited:?}");
    }
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
    let verified =
        deployment.fleet.test_env.run(&["audit", "verify"], &deployment.fleet.variables).wait().await;
    verified.assert_success();
}

#[tokio::test]
async fn containers_of_no_engine_and_of_engines_at_rest_are_seen_and_removed() {
    let Some(deployment) = Deployment::docker() else { return };
    let (orchestrator, product) = deployment.start_with_product().await;
    let (ada, bob) = (product.engine("ada").await, product.engine("bob").await);
    let docker = deployment.docker_daemon();
    let container = deployment.container_of(&ada).await.unwrap();
    let inspected = docker.inspect(&container).await;
    let labels: Vec<_> = inspected["Config"]["Labels"].as_object().unwrap().iter().collect();
    let image = inspected["Config"]["Image"].as_str().unwrap();
    product.stop("bob").await.assert_ok("status:text");
    // Reconciliation comes every 30 seconds, and may be first.
    let (unknown, made) = eventually("both are seen before reconciliation comes", async || {
        let unknown = EngineId::new().to_string();
        let mut made = Vec::new();
        for engine_id in [unknown.as_str(), bob.id.as_str()] {
            let labels = labels.iter().map(|(name, value)| {
                let value = if *name == "roundhouse.engine" { engine_id } else { value.as_str().unwrap() };
                format!("{name}={value}")
            });
            let labels: Vec<_> = labels.flat_map(|label| ["--label".to_owned(), label]).collect();
            let mut line =
                vec!["run", "--detach", "--network", deployment.network(), "--entrypoint", "sleep"];
            line.extend(labels.iter().map(String::as_str));
            line.extend([image, "1000"]);
            made.push(docker.run(&line).await.trim().to_owned());
        }
        let of = |kind: &str, id: &str| (kind.to_owned(), id.to_owned(), "remove_instance".to_owned());
        let expected = [of("orphan_instance", &unknown), of("unexpected_instance", &bob.id)];
        (orchestrator.drift().await == expected).then_some((unknown, made))
    })
    .await;
    orchestrator.outcomes(json!({"dry_run": false, "engine_id": unknown})).await;
    assert_eq!(docker.state(&made[0]).await, None);
    orchestrator.outcomes(json!({"dry_run": false})).await;
    assert_eq!(docker.state(&made[1]).await, None);
    assert_eq!(orchestrator.outcomes(json!({"dry_run": false})).await, [""; 0]);
    assert_eq!(deployment.container_of(&ada).await.unwrap(), container);
    assert_eq!(product.status("bob").await, "stopped");
    product.start("bob").await.assert_ok("status:text url:text");
}

#[tokio::test]
async fn the_command_shows_asks_and_repairs() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, product) = deployment.start_with_product().await;
    let variables = [
        ("ROUNDHOUSE_URL".to_owned(), orchestrator.base.clone()),
        ("ROUNDHOUSE_ADMIN_KEY".to_owned(), orchestrator.admin_key.clone()),
    ];
    let variables = variables.into();
    let run = async |words: &[&str]| {
        let line = [&["fleet", "drift"], words].concat();
        let (program, input) = deployment.fleet.test_env.run_interactive(&line, &variables);
        drop(input);
        program.wait().await
    };
    assert_eq!(run(&[]).await.assert_success(), "Nothing differs.\n");
    assert_eq!(run(&["repair", "--all"]).await.assert_success(), "Nothing differs.\n");
    run(&["repair"]).await.assert_failure(2, &["--kind", "--engine", "--all"]);
    run(&["--kind", "orphans"]).await.assert_failure(2, &["must be one of orphan_instance"]);
    run(&["repair", "--all", "--dry-run", "--yes"]).await.assert_failure(2, &["cannot be used with"]);
    let left = leave_data(&deployment, &product, &["ada"]).await.remove(0);
    let folder = deployment.fleet.engine_folder(&left);
    age(&folder);
    let shown = run(&["--kind", "data_without_engine"]).await.assert_success();
    assert!(cells(&shown).contains(&format!("data_without_engine | {left} | PRODUCT | ada | ")), "{shown}");
    assert!(shown.contains("remove_data"), "{shown}");
    assert_eq!(run(&["--kind", "orphan_instance"]).await.assert_success(), "Nothing differs.\n");
    let json = run(&["--json"]).await.assert_success();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["differences"][0]["engine_id"], left);
    let kept = run(&["repair", "--all", "--yes"]).await.assert_success();
    assert!(kept.contains("only with --kind data_without_engine"), "{kept}");
    let data = ["repair", "--kind", "data_without_engine"];
    let dry = run(&[&data[..], &["--dry-run"]].concat()).await.assert_success();
    assert!(dry.contains("would be repaired: remove_data"), "{dry}");
    run(&data).await.assert_failure(2, &["remove_data 1", "lost for good", "no terminal", "--yes"]);
    assert!(folder.exists());
    let done = run(&[&data[..], &["--yes"]].concat()).await.assert_success();
    assert!(done.contains("repaired: remove_data") && !folder.exists(), "{done}");
    assert_eq!(run(&[]).await.assert_success(), "Nothing differs.\n");
}
