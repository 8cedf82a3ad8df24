//! The engines' data is missing, for instance because a disk is not mounted: no user gets an empty engine, and
//! nothing is lost.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Deployment, Engine, HttpResponse, Product, eventually, is_installed, skip};

fn engines_folder(deployment: &Deployment) -> PathBuf {
    deployment.fleet.folder().join("engines")
}

/// A user's engine, in which a task was run.
async fn engine_with_task(product: &Product, user: &str) -> Engine {
    let engine = product.engine(user).await;
    engine.run_turn("task", "Remember this.").await;
    engine
}

async fn task_count(product: &Product, user: &str) -> u64 {
    let listed = product.engine(user).await.get("/tasks").await.assert_ok("tasks:array total:int");
    listed["total"].as_u64().unwrap()
}

async fn doctor(deployment: &Deployment) -> String {
    deployment.fleet.test_env.run(&["doctor"], &deployment.fleet.variables).wait().await.output
}

#[track_caller]
fn assert_refused(answer: &HttpResponse) {
    let message = answer.assert_error(502, "BACKEND_ERROR");
    assert!(message.contains("data is unavailable"), "{message}");
}

/// A host has rebooted: the engines are gone, and their disk is not mounted yet.
#[tokio::test]
async fn after_a_reboot_without_the_disk_nothing_is_made_and_with_it_all_is_as_it_was() {
    let deployment = Deployment::process_and_sqlite().with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.2");
    let (orchestrator, product) = deployment.start_with_product().await;
    let ada = engine_with_task(&product, "ada").await;
    engine_with_task(&product, "bob").await;
    product.stop("bob").await.assert_ok("status:text");
    orchestrator.signal_and_wait(Signal::KILL).await;
    deployment.kill_engine(&ada);
    let (root, aside) = (engines_folder(&deployment), deployment.fleet.folder().join("aside"));
    fs::rename(&root, &aside).unwrap();
    for registry_exists in [false, true] {
        if registry_exists {
            fs::create_dir(&root).unwrap();
        }
        let orchestrator = deployment.start().await;
        assert_refused(&product.start("bob").await);
        assert_refused(&product.provision("new").await);
        assert_refused(&product.delete("bob").await);
        assert_eq!(product.status("bob").await, "stopped");
        let explained = product.explain("bob").await;
        assert!(explained["awake_because"][0].as_str().unwrap().contains("disk mounted?"), "{explained}");
        let output = doctor(&deployment).await;
        assert!(output.contains("does not hold the data of the registry's engines"), "{output}");
        eventually("many failed checks", async || {
            let checks = orchestrator.program.output().matches("failed a health check").count();
            (checks > 6).then_some(())
        })
        .await;
        assert_eq!(product.status("ada").await, "running");
        assert_eq!(root.exists(), registry_exists, "the root was created");
        assert_eq!(fs::read_dir(&root).map_or(0, Iterator::count), 0, "something was created");
        orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
    }
    let orchestrator = deployment.start().await;
    // The disk is mounted.
    fs::remove_dir(&root).unwrap();
    fs::rename(&aside, &root).unwrap();
    product.start("bob").await.assert_ok("status:text url:text");
    assert_eq!(task_count(&product, "bob").await, 1);
    // The exit of the engine that ran is noticed, and it is restarted.
    eventually("ada's engine runs", async || deployment.process_of(&ada)).await;
    product.wait_for_status("ada", "running").await;
    assert_eq!(task_count(&product, "ada").await, 1);
    let output = doctor(&deployment).await;
    assert!(output.contains("all is well"), "{output}");
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
}

/// A workspace with read-only folders, as Go's module cache leaves them, under an unprivileged orchestrator.
#[tokio::test]
async fn an_ordinary_users_orchestrator_deletes_folders_that_may_not_be_written_to() {
    if !rustix::process::getuid().is_root() {
        skip("root's rights, to become an ordinary user");
        return;
    }
    if !is_installed("setpriv") || !is_installed("chown") {
        return;
    }
    let deployment = Deployment::process_and_sqlite();
    let home = deployment.fleet.test_env.path();
    // A copy of the binary that an ordinary user may run.
    let binary = home.join("roundhouse");
    fs::copy(crate::support::test_env::BINARY, &binary).unwrap();
    let command = format!(
        "chown -R 65534:65534 '{home}' && exec setpriv --reuid=65534 --regid=65534 --clear-groups '{binary}' orchestrator",
        home = home.display(),
        binary = binary.display()
    );
    let mut orchestrator = deployment.launch_program(&["sh", "-c", &command]);
    orchestrator.wait_ready().await;
    let product = orchestrator.register("shop", json!({})).await;
    let engine = product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    let folder = engines_folder(&deployment).join(&engine.id);
    let prepare = format!(
        "umask 022; cd '{}' && mkdir -p workspace/go/pkg/mod/x@v1/y && touch workspace/go/pkg/mod/x@v1/y/z && \
         chmod 0 workspace/go/pkg/mod/x@v1/y && chmod -R a-w workspace/go",
        folder.display()
    );
    let by_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &prepare];
    deployment.fleet.test_env.run_program(&by_user, &deployment.fleet.variables).wait().await;
    assert!(folder.join("workspace/go/pkg/mod/x@v1").is_dir());
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert!(!folder.exists());
    product.get("ada").await.assert_error(404, "ENGINE_NOT_FOUND");
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn a_standby_on_another_host_refuses_and_buries_nobody() {
    if !rustix::process::getuid().is_root() || fs::read("/etc/machine-id").map_or(true, |id| id.len() < 32) {
        skip("root's rights and a machine id, to be another host");
        return;
    }
    if !is_installed("unshare") {
        return;
    }
    let Some(deployment) = Deployment::postgres() else { return };
    let machine_id = deployment.fleet.test_env.path().join("machine-id");
    fs::write(&machine_id, "0123456789abcdef0123456789abcdef\n").unwrap();
    // Runs in its own mount namespace, in which the machine has another identity.
    let launch_on_other_host = |prefix: &str| {
        let line = format!(
            "mount --bind '{}' /etc/machine-id && {prefix} exec '{}' orchestrator",
            machine_id.display(),
            crate::support::test_env::BINARY
        );
        deployment.launch_program(&["unshare", "--mount", "--propagation", "private", "sh", "-c", &line])
    };
    let (orchestrator, product) = deployment.start_with_product().await;
    let ada = engine_with_task(&product, "ada").await;
    let process = deployment.process_of(&ada);
    orchestrator.signal_and_wait(Signal::KILL).await;

    // It refuses to start, and says what would make that safe.
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let expected = [format!("on the host {host}"), format!("ORCH_TAKE_OVER_FROM={host}")];
    let refused = launch_on_other_host("").program.wait().await;
    let _ = refused.assert_failure(2, &expected.each_ref().map(String::as_str));
    assert_eq!(deployment.process_of(&ada), process);

    // When told to, it takes over; without the data it marks no engine as failed and creates nothing.
    let root = engines_folder(&deployment);
    let without_data = format!(
        "mount -t tmpfs none '{}' && ORCH_TAKE_OVER_FROM='{host}' ORCH_HEALTH_CHECK_INTERVAL_S=0.2",
        root.display()
    );
    let mut second = launch_on_other_host(&without_data);
    second.wait_ready().await;
    assert_refused(&product.provision("new").await);
    assert_eq!(product.status("ada").await, "running");
    second.signal_and_wait(Signal::TERM).await.assert_success();
    assert_eq!(deployment.process_of(&ada), process);

    // For the registry the first host is now the other one. It still has the engine.
    let first = deployment.launch().program.wait().await;
    first.assert_failure(2, &["ORCH_TAKE_OVER_FROM"]);
    let mut first = deployment.launch_with("ORCH_TAKE_OVER_FROM", &host);
    first.wait_ready().await;
    assert_eq!(deployment.process_of(&ada), process);
    assert_eq!(task_count(&product, "ada").await, 1);
    first.signal_and_wait(Signal::TERM).await.assert_success();
}

/// A registry was copied, for instance for a trial on the same host: both copies list the same engines.
#[tokio::test]
async fn the_orchestrator_of_a_copied_registry_leaves_the_engines_of_the_first_alone() {
    let deployment = Deployment::process_and_sqlite();
    let (_orchestrator, product) = deployment.start_with_product().await;
    let ada = engine_with_task(&product, "ada").await;
    let process = deployment.process_of(&ada);
    let copy = deployment.fleet.folder().join("copy.sqlite");
    let registry = rusqlite::Connection::open(deployment.fleet.folder().join("registry.sqlite")).unwrap();
    registry.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let port = deployment.fleet.test_env.ports.first() + 1;
    let command = format!(
        "ORCH_PORT={port} ORCH_DATABASE_URL='sqlite:{}' ORCH_IDLE_SLEEP_THRESHOLD_S=0.2 ORCH_HEALTH_CHECK_INTERVAL_S=0.2 exec '{}' orchestrator",
        copy.display(),
        crate::support::test_env::BINARY
    );
    let mut second = deployment.launch_program(&["sh", "-c", &command]);
    second.base = format!("http://127.0.0.1:{port}");
    second.wait_ready().await;
    let trial = Product::new(&second.base, &product.key);
    for answer in [trial.stop("ada").await, trial.rotate_key("ada").await, trial.delete("ada").await] {
        assert_refused(&answer);
    }
    let explained = trial.explain("ada").await;
    assert!(explained["awake_because"][0].as_str().unwrap().contains("another registry"), "{explained}");
    // By then the engine would have been put to sleep many times.
    assert!(
        second.program.wait_for_output("is in use by an orchestrator with another registry").await.is_ok()
    );
    second.signal_and_wait(Signal::TERM).await.assert_success();
    assert_eq!(deployment.process_of(&ada), process);
    assert_eq!(task_count(&product, "ada").await, 1);
    product.stop("ada").await.assert_ok("status:text");
}
