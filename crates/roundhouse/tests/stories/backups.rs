//! Backups: what a user's engine has is saved while the fleet runs, and restored: to the same engine, and on a host that
//! has nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use futures::future::join_all;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::http::{client, send};
use crate::support::{
    Backend, Deployment, Engine, Fleet, HttpResponse, Orchestrator, Product, env_number, eventually,
};

const STATUS: &str = "target:text interval_s:int|null keep_last:int keep_days:int next_at:time|null \
     current:object|null recent:array";
const JOB: &str = "action:text started_at:time ended_at:time|null total:int done:int unchanged:int failed:int bytes:int \
     stored_bytes:int error:object|null failures:array";

/// A deployment that keeps backups in a folder beside its own, without a schedule.
fn deployment_with_backups(store: &Path) -> Deployment {
    deployment(Deployment::new(), store)
}

pub(crate) fn deployment(deployment: Deployment, store: &Path) -> Deployment {
    deployment
        .with_env("ORCH_BACKUP_URL", format!("file://{}", store.display()))
        .with_env("ORCH_BACKUP_INTERVAL", "off")
}

impl Orchestrator {
    async fn backups(&self, method: Method, path: &str, body: Option<Value>) -> HttpResponse {
        let request = client().request(method, format!("{}/fleet/backups{path}", self.base));
        let request = request.header("x-admin-key", &self.admin_key);
        send(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
    }

    /// Starts a job, and returns when it began.
    pub(crate) async fn begin_job(&self, job: Value) -> Value {
        let begun = self.backups(Method::POST, "", Some(job)).await.assert_ok(STATUS);
        let begun = if begun["current"].is_null() { &begun["recent"][0] } else { &begun["current"] };
        begun["started_at"].clone()
    }

    /// Whether a job is under way.
    pub(crate) async fn has_job(&self) -> bool {
        !self.backups(Method::GET, "", None).await.assert_ok(STATUS)["current"].is_null()
    }

    /// Starts a job and waits until it has ended, as long as it goes on.
    pub(crate) async fn job(&self, job: Value) -> Value {
        let started_at = self.begin_job(job).await;
        let mut done = Value::Null;
        loop {
            let (ended, now) = eventually("the job goes on, or has ended", async || {
                let status = self.backups(Method::GET, "", None).await.assert_ok(STATUS);
                let recent = status["recent"].as_array().unwrap().clone();
                let ended = recent.into_iter().find(|job| job["started_at"] == started_at);
                let now = status["current"]["done"].clone();
                (ended.is_some() || now != done).then_some((ended, now))
            })
            .await;
            match ended {
                Some(ended) => return ended,
                None => done = now,
            }
        }
    }

    /// Starts a job that must succeed, and returns it when it has ended.
    async fn successful_job(&self, job: Value) -> Value {
        let ended = self.job(job).await;
        crate::support::assert_fields(&ended, JOB);
        assert_eq!((&ended["failed"], &ended["error"]), (&json!(0), &Value::Null), "{ended}");
        ended
    }

    async fn backup_ids(&self, product: &Value, user: &str) -> Vec<Value> {
        let path = format!("/list?product_id={}&user_id={user}", product.as_str().unwrap());
        let list = self.backups(Method::GET, &path, None).await.assert_ok("backups:array");
        list["backups"].as_array().unwrap().iter().map(|backup| backup["backup_id"].clone()).collect()
    }
}

pub(crate) async fn product_id(orchestrator: &Orchestrator) -> Value {
    let request = client().get(format!("{}/products", orchestrator.base));
    let list = send(request.header("x-admin-key", &orchestrator.admin_key)).await;
    assert_eq!(list.status, 200, "{}", list.body);
    list.body["products"][0]["product_id"].clone()
}

pub(crate) async fn recent_jobs(orchestrator: &Orchestrator) -> Vec<Value> {
    let status = orchestrator.backups(Method::GET, "", None).await.assert_ok(STATUS);
    status["recent"].as_array().unwrap().clone()
}

pub(crate) async fn backups_of(orchestrator: &Orchestrator, product: &Value, user: &str) -> Vec<Value> {
    orchestrator.backup_ids(product, user).await
}

pub(crate) async fn put(engine: &Engine, path: &str, content: &str) {
    let request = engine.request(Method::PUT, &format!("/workspace/{path}")).body(content.to_owned());
    let answer = send(request).await;
    assert!(answer.status < 300, "{}", answer.body);
}

pub(crate) async fn content(engine: &Engine, path: &str) -> Option<String> {
    let response = engine.request(Method::GET, &format!("/workspace/{path}")).send().await.unwrap();
    (response.status() == 200).then_some(())?;
    Some(response.text().await.unwrap())
}

/// The names and the contents of all files in a folder.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(&current).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
    }
    found
}

#[tokio::test]
async fn an_engine_is_backed_up_while_it_works_and_restored_to_what_it_was() {
    let store = tempfile::tempdir().unwrap();
    let deployment = deployment_with_backups(store.path());
    let (orchestrator, product) = deployment.start_with_product().await;
    let product_id = product_id(&orchestrator).await;
    let engine = product.engine("ada").await;
    engine.run_turn("first", "My secret is FOXGLOVE.").await;
    put(&engine, "diary.txt", "Today I saw a FOXGLOVE.").await;
    put(&engine, "deep/er/script", "#!/bin/sh").await;
    let messages = engine.messages("first").await;
    let job = orchestrator.successful_job(json!({"action": "back_up"})).await;
    // The engine and the registry.
    assert_eq!((&job["total"], &job["done"], &job["unchanged"]), (&json!(2), &json!(2), &json!(0)), "{job}");

    // Nothing in the store says whose it is, or what.
    for (name, bytes) in files(store.path()) {
        for word in ["FOXGLOVE", "diary", "ada", "shop", "workspace", "brain", engine.id.as_str()] {
            let found = bytes.windows(word.len()).any(|part| part == word.as_bytes());
            let short = word.len() < 4;
            assert!(
                (short || !found) && !name.to_str().unwrap().contains(engine.id.as_str()),
                "{word} in {}",
                name.display()
            );
        }
    }

    // What comes later goes, and what was lost comes back.
    engine.run_turn("second", "Forget the first.").await;
    put(&engine, "later.txt", "later").await;
    engine.delete("/workspace/diary.txt").await.assert_ok("status:text");
    let verified = orchestrator.successful_job(json!({"action": "verify"})).await;
    assert!(verified["bytes"].as_u64().unwrap() > 50_000, "{verified}");
    let backup = &orchestrator.backup_ids(&product_id, "ada").await[0];
    let restore = json!({
        "action": "restore", "product_id": product_id, "user_id": "ada", "backup_id": backup,
    });
    orchestrator.successful_job(restore).await;
    let again = product.engine("ada").await;
    // It keeps its id and its key.
    assert_eq!((&again.id, &again.key), (&engine.id, &engine.key));
    assert_eq!(again.messages("first").await, messages);
    again.get("/tasks/second").await.assert_error(404, "TASK_NOT_FOUND");
    assert_eq!(content(&again, "diary.txt").await.unwrap(), "Today I saw a FOXGLOVE.");
    assert_eq!(content(&again, "deep/er/script").await.unwrap(), "#!/bin/sh");
    assert_eq!(content(&again, "later.txt").await, None);
    again.run_turn("third", "Go on.").await;
    assert!(product.audit_rows("start").await.iter().any(|(_, detail)| detail["reason"] == "restore"));

    // Before it replaced anything, the restore has saved what was there.
    let backups = orchestrator.backup_ids(&product_id, "ada").await;
    assert_eq!(backups.len(), 2, "{backups:?}");
    let undo = json!({
        "action": "restore", "product_id": product_id, "user_id": "ada", "backup_id": backups[0],
    });
    orchestrator.successful_job(undo).await;
    let undone = product.engine("ada").await;
    assert_eq!(content(&undone, "later.txt").await.unwrap(), "later");
    assert_eq!(content(&undone, "diary.txt").await, None);
}

#[tokio::test]
async fn an_engine_that_sleeps_is_saved_before_and_not_touched_again() {
    let store = tempfile::tempdir().unwrap();
    let seconds = 1.0 * Backend::from_env().slowness();
    let deployment =
        deployment_with_backups(store.path()).with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", seconds.to_string());
    let (orchestrator, product) = deployment.start_with_product().await;
    let product_id = product_id(&orchestrator).await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    product.wait_for_status("ada", "sleeping").await;
    assert_eq!(orchestrator.backup_ids(&product_id, "ada").await.len(), 1);
    for _ in 0..2 {
        let job = orchestrator.successful_job(json!({"action": "back_up"})).await;
        assert_eq!((&job["done"], &job["unchanged"]), (&json!(2), &json!(1)), "{job}");
    }
    assert_eq!((product.status("ada").await.as_str(), deployment.process_of(&engine)), ("sleeping", None));
    assert_eq!(orchestrator.backup_ids(&product_id, "ada").await.len(), 1);

    // A full backup is made although it sleeps, and leaves it asleep.
    let full = json!({"action": "back_up", "product_id": product_id, "full": true});
    let job = orchestrator.successful_job(full).await;
    assert_eq!((&job["total"], &job["unchanged"]), (&json!(1), &json!(0)), "{job}");
    assert_eq!((product.status("ada").await.as_str(), deployment.process_of(&engine)), ("sleeping", None));
    assert!(product.audit_rows("wake").await.is_empty() && product.audit_rows("start").await.is_empty());
    // So is a restore; the next admit wakes what was restored.
    let restore = json!({"action": "restore", "product_id": product_id, "user_id": "ada"});
    orchestrator.successful_job(restore).await;
    assert_eq!((product.status("ada").await.as_str(), deployment.process_of(&engine)), ("sleeping", None));
    let again = product.engine("ada").await;
    assert!(!again.messages("task").await.is_empty());
    again.run_turn("task", "Hello again!").await;
}

/// What a job did, for runs with `--nocapture`.
#[expect(clippy::print_stdout, reason = "it is printed for runs with --nocapture")]
fn print_figures(job: &Value) {
    let at = |field: &str| serde_json::from_value::<api::Timestamp>(job[field].clone()).unwrap().unix_ms();
    let took_ms = at("ended_at") - at("started_at");
    println!(
        "{}: {} engines in {took_ms} ms, {} bytes read, {} stored",
        job["action"], job["total"], job["bytes"], job["stored_bytes"]
    );
}

/// The engines that run at the same time while a deployment is filled and checked.
const AT_ONCE: usize = 20;

/// `ROUNDHOUSE_TEST_BACKUP_ENGINES` sets how many engines it has.
#[tokio::test]
async fn a_deployment_is_restored_on_a_host_that_has_nothing() {
    let count = env_number("ROUNDHOUSE_TEST_BACKUP_ENGINES", 3);
    let store = tempfile::tempdir().unwrap();
    let first = deployment_with_backups(store.path());
    let (orchestrator, product) = first.start_with_product().await;
    let mut engines = Vec::new();
    let users: Vec<_> = (0..count).map(|index| format!("user{index}")).collect();
    for users in users.chunks(AT_ONCE) {
        engines.extend(
            join_all(users.iter().map(async |user| {
                let engine = product.engine(user).await;
                engine.run_turn("task", &format!("I am {user}.")).await;
                put(&engine, "name", user).await;
                (user, engine.id.clone(), engine.key.clone(), engine.messages("task").await)
            }))
            .await,
        );
        // The last ones go on working.
        if engines.len() < count {
            stop_all(&product, users).await;
        }
    }
    let stopped = users.last().unwrap();
    product.stop(stopped).await.assert_ok("status:text");
    print_figures(&orchestrator.successful_job(json!({"action": "back_up"})).await);
    print_figures(&orchestrator.successful_job(json!({"action": "back_up"})).await);
    let key = product.key.clone();
    orchestrator.signal_and_wait(Signal::TERM).await;
    let (master_key, admin_key) = (first.master_key.clone(), first.admin_key.clone());
    drop(first);

    // Nothing but the keys, the configuration and the store.
    let second = deployment_with_backups(store.path())
        .with_env("ORCH_MASTER_KEY", master_key)
        .with_env("ORCH_ADMIN_KEY", admin_key.clone());
    let restore = || second.fleet.test_env.run(&["restore", "registry"], &second.fleet.variables).wait();
    let restored = restore().await.assert_success();
    assert!(restored.contains(&format!("1 products, {count} engines")), "{restored}");
    restore().await.assert_failure(2, &["not empty"]);
    let mut orchestrator = second.launch();
    orchestrator.admin_key = admin_key;
    orchestrator.wait_ready().await;
    let product = Product::new(&orchestrator.base, &key);
    // Its data is not there yet, and nobody gets an empty engine.
    let missing = product.admit(&users[0]).await;
    assert!(missing.status >= 500 || missing.body["admitted"] == false, "{}", missing.body);
    let job = orchestrator.successful_job(json!({"action": "restore"})).await;
    assert_eq!((&job["total"], &job["done"]), (&json!(count), &json!(count)), "{job}");
    print_figures(&job);
    assert_eq!(product.status(stopped).await, "stopped");
    for engines in engines.chunks(AT_ONCE) {
        join_all(engines.iter().map(async |(user, id, key, messages)| {
            if product.status(user).await == "stopped" {
                product.start(user).await.assert_ok("status:text url:url");
            }
            let engine = product.engine(user).await;
            assert_eq!((&engine.id, &engine.key), (id, key));
            assert_eq!(engine.messages("task").await, *messages);
            assert_eq!(content(&engine, "name").await.unwrap(), **user);
            engine.run_turn("task", "And now?").await;
        }))
        .await;
        stop_all(&product, engines.iter().map(|(user, ..)| *user)).await;
    }
    assert!(product.audit_rows("provision").await.len() == count.min(1_000));
    let verified = second.fleet.test_env.run(&["audit", "verify"], &second.fleet.variables).wait().await;
    verified.assert_success();
    orchestrator.successful_job(json!({"action": "back_up"})).await;
}

async fn stop_all(product: &Product, users: impl IntoIterator<Item = &String>) {
    let stops = users.into_iter().map(async |user| product.stop(user).await.assert_ok("status:text"));
    join_all(stops).await;
}

#[tokio::test]
async fn a_damaged_or_missing_piece_is_an_error_and_the_engine_stays_as_it_is() {
    let store = tempfile::tempdir().unwrap();
    let deployment = deployment_with_backups(store.path());
    let (orchestrator, product) = deployment.start_with_product().await;
    let product_id = product_id(&orchestrator).await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    put(&engine, "file", "old").await;
    orchestrator.successful_job(json!({"action": "back_up", "product_id": product_id})).await;
    put(&engine, "file", "new").await;
    let messages = engine.messages("task").await;
    let backup = orchestrator.backup_ids(&product_id, "ada").await[0].clone();
    let pieces: Vec<_> = files(store.path())
        .into_iter()
        .filter(|(path, _)| path.starts_with(store.path().join("p")))
        .collect();
    assert!(pieces.len() > 2);
    let restore =
        json!({"action": "restore", "product_id": product_id, "user_id": "ada", "backup_id": backup});
    let verify = json!({"action": "verify", "product_id": product_id, "user_id": "ada", "backup_id": backup});
    for (path, bytes) in pieces {
        let mut flipped = bytes.clone();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        for damaged in [Some(flipped), None] {
            match &damaged {
                Some(damaged) => fs::write(&path, damaged).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let expected = if damaged.is_some() { "damaged" } else { "missing" };
            for job in [&verify, &restore] {
                let ended = orchestrator.job(job.clone()).await;
                let message = ended["failures"][0]["error"]["message"].as_str().unwrap().to_owned();
                assert!(ended["failed"] == 1 && message.contains(expected), "{ended}");
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(message.contains(name), "{message} does not name {name}");
            }
            fs::write(&path, &bytes).unwrap();
        }
        let same = product.engine("ada").await;
        assert_eq!(same.messages("task").await, messages);
        assert_eq!(content(&same, "file").await.unwrap(), "new");
    }
    orchestrator.successful_job(restore).await;
    assert_eq!(content(&product.engine("ada").await, "file").await.unwrap(), "old");
}

#[tokio::test]
async fn a_destroyed_engine_leaves_no_backup() {
    let store = tempfile::tempdir().unwrap();
    let deployment = deployment_with_backups(store.path());
    let (orchestrator, product) = deployment.start_with_product().await;
    let product_id = product_id(&orchestrator).await;
    for user in ["ada", "bob"] {
        product.engine(user).await.run_turn("task", "Hello!").await;
    }
    orchestrator.successful_job(json!({"action": "back_up"})).await;
    let keys = || fs::read_dir(store.path().join("k")).unwrap().count();
    // Each engine's, and the registry's.
    assert_eq!(keys(), 3);
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    eventually("its key is gone", async || (keys() == 2).then_some(())).await;
    let of_manifests = || {
        let folders = fs::read_dir(store.path().join("m")).unwrap();
        folders.filter(|folder| fs::read_dir(folder.as_ref().unwrap().path()).unwrap().count() > 0).count()
    };
    eventually("its backups are gone", async || (of_manifests() == 2).then_some(())).await;
    let verify = json!({"action": "verify", "product_id": product_id, "user_id": "bob"});
    orchestrator.successful_job(verify).await;
    // The user comes back with a new engine, which has no backup yet.
    product.engine("ada").await;
    assert_eq!(orchestrator.backup_ids(&product_id, "ada").await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_brain_that_is_damaged_is_replaced() {
    let store = tempfile::tempdir().unwrap();
    let deployment = deployment_with_backups(store.path()).with_env("ORCH_RESTART_MAX_ATTEMPTS", "0");
    let (orchestrator, product) = deployment.start_with_product().await;
    let product_id = product_id(&orchestrator).await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    orchestrator.successful_job(json!({"action": "back_up"})).await;
    product.stop("ada").await.assert_ok("status:text");
    let Some(folder) = deployment.data_folder(&engine.id) else { return };
    let brain = folder.join("brain.sqlite");
    fs::set_permissions(&brain, fs::Permissions::from_mode(0o666)).unwrap();
    fs::write(&brain, vec![0x55; 200_000]).unwrap();
    let failed = product.start("ada").await;
    assert!(failed.status >= 500, "{}", failed.body);
    let restore = json!({"action": "restore", "product_id": product_id, "user_id": "ada"});
    orchestrator.successful_job(restore).await;
    assert_eq!(product.status("ada").await, "running");
    assert_eq!(product.engine("ada").await.messages("task").await, messages);
}

#[tokio::test]
async fn the_schedule_makes_backups_and_commands_show_them() {
    let store = tempfile::tempdir().unwrap();
    let deployment = deployment(Deployment::new(), store.path()).with_env("ORCH_BACKUP_INTERVAL", "1m");
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    // The first one is due at once.
    eventually("the schedule has made a backup", async || {
        let status = orchestrator.backups(Method::GET, "", None).await.assert_ok(STATUS);
        (status["recent"][0]["action"] == "back_up" && !status["next_at"].is_null()).then_some(())
    })
    .await;
    let product_id = product_id(&orchestrator).await;
    let product_id = product_id.as_str().unwrap();
    let mut variables = deployment.fleet.variables.clone();
    variables.insert("ROUNDHOUSE_URL".to_owned(), orchestrator.base.clone());
    variables.insert("ROUNDHOUSE_ADMIN_KEY".to_owned(), orchestrator.admin_key.clone());
    let run = async |words: &[&str]| deployment.fleet.test_env.run(words, &variables).wait().await;
    let of_ada = ["--product", product_id, "--user", "ada"];
    let status = run(&["backup", "status"]).await.assert_success();
    assert!(status.contains("every 60 s") && status.contains("backed up"), "{status}");
    let started = run(&["backup", "start", "--full"]).await.assert_success();
    assert!(started.contains("2 backed up, 0 unchanged, 0 failed"), "{started}");
    let list = run(&[&["backup", "list"][..], &of_ada].concat()).await.assert_success();
    assert!(list.contains("-l") && list.contains(env!("CARGO_PKG_VERSION")), "{list}");
    let registry = run(&["backup", "list"]).await.assert_success();
    assert!(registry.contains("BACKUP"), "{registry}");
    run(&[&["backup", "verify"][..], &of_ada].concat()).await.assert_success();
    run(&["backup", "collect"]).await.assert_success();
    let unasked = run(&[&["restore", "engine"][..], &of_ada].concat()).await;
    unasked.assert_failure(2, &["--yes"]);
    let restored = run(&[&["restore", "engine", "--yes"][..], &of_ada].concat()).await.assert_success();
    assert!(restored.contains("1 restored, 0 unchanged, 0 failed"), "{restored}");
    let unknown = ["restore", "engine", "--yes", "--product", product_id, "--user", "nobody"];
    run(&unknown).await.assert_failure(3, &["ENGINE_NOT_FOUND"]);
    let later = ["restore", "engine", "--yes", "--backup", "000000000000-00000000-r"];
    run(&[&later[..], &of_ada].concat()).await.assert_failure(1, &["1 of 1 failed"]);
}

#[tokio::test]
async fn backups_that_are_not_configured_say_so() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, product) = deployment.start_with_product().await;
    let refused = orchestrator.backups(Method::POST, "", Some(json!({"action": "back_up"}))).await;
    assert!(refused.assert_error(400, "INVALID_REQUEST").contains("ORCH_BACKUP_URL"));
    orchestrator.backups(Method::GET, "/list", None).await.assert_error(400, "INVALID_REQUEST");
    let status = orchestrator.backups(Method::GET, "", None).await;
    assert_eq!((status.status, &status.body["target"]), (200, &Value::Null));
    drop((product, deployment));
}

/// What the engine's own port gives to whoever has its key, as the product does: no backup.
#[tokio::test]
async fn a_product_cannot_ask_an_engine_for_its_backup() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    for path in ["/internal/backup", "/internal/restore"] {
        engine.get(path).await.assert_error(404, "NOT_FOUND");
        let request = engine.request(Method::GET, path).header("x-backup-key", engine.key.as_str());
        send(request).await.assert_error(404, "NOT_FOUND");
    }
}
