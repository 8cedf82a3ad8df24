//! The engines' data is not where it should be, on the real binary: nobody is given an empty engine, nothing is lost.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Deployment, Engine, HttpResponse, Product, eventually, is_installed, skip};

fn engines_folder(place: &Deployment) -> PathBuf {
    place.fleet.folder().join("engines")
}

/// A user's engine that has a task.
async fn engine_with_task(product: &Product, user: &str) -> Engine {
    let engine = product.engine(user).await;
    engine.run_turn("task", "Remember this.").await;
    engine
}

async fn task_count(product: &Product, user: &str) -> u64 {
    let listed = product.engine(user).await.get("/tasks").await.assert_ok("tasks:array total:int");
    listed["total"].as_u64().unwrap()
}

async fn doctor(place: &Deployment) -> String {
    place.fleet.test_env.run(&["doctor"], &place.fleet.variables).wait().await.output
}

#[track_caller]
fn assert_refused(answer: &HttpResponse) {
    let message = answer.assert_error(502, "BACKEND_ERROR");
    assert!(message.contains("data is not there"), "{message}");
}

/// A host that has rebooted: the engines are gone, and their disk is not mounted yet.
#[tokio::test]
async fn after_a_reboot_without_the_disk_nothing_is_made_and_with_it_all_is_as_it_was() {
    let place = Deployment::process_and_sqlite().with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.2");
    let (orchestrator, product) = place.start_with_product().await;
    let ada = engine_with_task(&product, "ada").await;
    engine_with_task(&product, "bob").await;
    product.stop("bob").await.assert_ok("status:text");
    orchestrator.signal_and_wait(Signal::KILL).await;
    place.kill_engine(&ada);
    let (root, aside) = (engines_folder(&place), place.fleet.folder().join("aside"));
    fs::rename(&root, &aside).unwrap();
    for registry_exists in [false, true] {
        if registry_exists {
            fs::create_dir(&root).unwrap();
        }
        let orchestrator = place.start().await;
        assert_refused(&product.start("bob").await);
        assert_refused(&product.provision("new").await);
        assert_refused(&product.delete("bob").await);
        assert_eq!(product.status("bob").await, "stopped");
        let explained = product.explain("bob").await;
        assert!(explained["awake_because"][0].as_str().unwrap().contains("disk mounted?"), "{explained}");
        let said = doctor(&place).await;
        assert!(said.contains("does not hold the data of the registry's engines"), "{said}");
        eventually("many failed checks", async || {
            let checks = orchestrator.program.output().matches("failed a health check").count();
            (checks > 6).then_some(())
        })
        .await;
        assert_eq!(product.status("ada").await, "running");
        assert_eq!(root.exists(), registry_exists, "the root was made");
        assert_eq!(fs::read_dir(&root).map_or(0, Iterator::count), 0, "something was made");
        orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
    }
    let orchestrator = place.start().await;
    // The disk is mounted.
    fs::remove_dir(&root).unwrap();
    fs::rename(&aside, &root).unwrap();
    product.start("bob").await.assert_ok("status:text url:text");
    assert_eq!(task_count(&product, "bob").await, 1);
    // The one that ran is noticed to have ended, and comes back by itself.
    eventually("ada's engine runs", async || place.process_of(&ada)).await;
    product.wait_for_status("ada", "running").await;
    assert_eq!(task_count(&product, "ada").await, 1);
    let said = doctor(&place).await;
    assert!(said.contains("all is well"), "{said}");
    orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
}

/// A workspace as Go's module cache leaves it, under an orchestrator that is an ordinary user.
#[tokio::test]
async fn an_ordinary_users_orchestrator_deletes_folders_that_may_not_be_written_to() {
    if !rustix::process::getuid().is_root() {
        skip("root's rights, to become an ordinary user");
        return;
    }
    if !is_installed("setpriv") || !is_installed("chown") {
        return;
    }
    let place = Deployment::process_and_sqlite();
    let home = place.fleet.test_env.path();
    // Where an ordinary user may run it.
    let binary = home.join("roundhouse");
    fs::copy(crate::support::test_env::BINARY, &binary).unwrap();
    let line = format!(
        "chown -R 65534:65534 '{home}' && exec setpriv --reuid=65534 --regid=65534 --clear-groups '{binary}' orchestrator",
        home = home.display(),
        binary = binary.display()
    );
    let mut orchestrator = place.launch_program(&["sh", "-c", &line]);
    orchestrator.wait_ready().await;
    let product = orchestrator.register("shop", json!({})).await;
    let engine = product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    let folder = engines_folder(&place).join(&engine.id);
    let prepare = format!(
        "umask 022; cd '{}' && mkdir -p workspace/go/pkg/mod/x@v1/y && touch workspace/go/pkg/mod/x@v1/y/z && \
         chmod 0 workspace/go/pkg/mod/x@v1/y && chmod -R a-w workspace/go",
        folder.display()
    );
    let by_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &prepare];
    place.fleet.test_env.run_program(&by_user, &place.fleet.variables).wait().await;
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
    let Some(place) = Deployment::postgres() else { return };
    let machine_id = place.fleet.test_env.path().join("machine-id");
    fs::write(&machine_id, "0123456789abcdef0123456789abcdef\n").unwrap();
    // With a mount namespace of its own, in which the machine has another identity.
    let there = |more: &str| {
        let line = format!(
            "mount --bind '{}' /etc/machine-id && {more} exec '{}' orchestrator",
            machine_id.display(),
            crate::support::test_env::BINARY
        );
        place.launch_program(&["unshare", "--mount", "--propagation", "private", "sh", "-c", &line])
    };
    let (orchestrator, product) = place.start_with_product().await;
    let ada = engine_with_task(&product, "ada").await;
    let process = place.process_of(&ada);
    orchestrator.signal_and_wait(Signal::KILL).await;

    // It refuses, and says what would make it safe.
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let words = [format!("on the host {host}"), format!("ORCH_TAKE_OVER_FROM={host}")];
    let refused = there("").program.wait().await;
    let _ = refused.assert_failure(2, &words.each_ref().map(String::as_str));
    assert_eq!(place.process_of(&ada), process);

    // Told to, it takes over; without the data it buries nobody and makes nothing.
    let root = engines_folder(&place);
    let without_data = format!(
        "mount -t tmpfs none '{}' && ORCH_TAKE_OVER_FROM='{host}' ORCH_HEALTH_CHECK_INTERVAL_S=0.2",
        root.display()
    );
    let mut second = there(&without_data);
    second.wait_ready().await;
    assert_refused(&product.provision("new").await);
    assert_eq!(product.status("ada").await, "running");
    second.signal_and_wait(Signal::TERM).await.assert_success();
    assert_eq!(place.process_of(&ada), process);

    // The first host is another one now, and has the engine still.
    let first = place.launch().program.wait().await;
    first.assert_failure(2, &["ORCH_TAKE_OVER_FROM"]);
    let mut first = place.launch_with("ORCH_TAKE_OVER_FROM", &host);
    first.wait_ready().await;
    assert_eq!(place.process_of(&ada), process);
    assert_eq!(task_count(&product, "ada").await, 1);
    first.signal_and_wait(Signal::TERM).await.assert_success();
}

/// A registry that was copied, for a trial on the same host say: it has the same deployment's engines in it.
#[tokio::test]
async fn the_orchestrator_of_a_copied_registry_leaves_the_engines_of_the_first_alone() {
    let place = Deployment::process_and_sqlite();
    let (_orchestrator, product) = place.start_with_product().await;
    let ada = engine_with_task(&product, "ada").await;
    let process = place.process_of(&ada);
    let copy = place.fleet.folder().join("copy.sqlite");
    let registry = rusqlite::Connection::open(place.fleet.folder().join("registry.sqlite")).unwrap();
    registry.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let port = place.fleet.test_env.ports.first() + 1;
    let second = format!(
        "ORCH_PORT={port} ORCH_DATABASE_URL='sqlite:{}' ORCH_IDLE_SLEEP_THRESHOLD_S=0.2 ORCH_HEALTH_CHECK_INTERVAL_S=0.2 exec '{}' orchestrator",
        copy.display(),
        crate::support::test_env::BINARY
    );
    let mut second = place.launch_program(&["sh", "-c", &second]);
    second.base = format!("http://127.0.0.1:{port}");
    second.wait_ready().await;
    let trial = Product::new(&second.base, &product.key);
    for answer in [trial.stop("ada").await, trial.rotate_key("ada").await, trial.delete("ada").await] {
        assert_refused(&answer);
    }
    let explained = trial.explain("ada").await;
    assert!(explained["awake_because"][0].as_str().unwrap().contains("another registry"), "{explained}");
    // Time enough for it to fall asleep many times over.
    assert!(
        second.program.wait_for_output("is in use by an orchestrator with another registry").await.is_ok()
    );
    second.signal_and_wait(Signal::TERM).await.assert_success();
    assert_eq!(place.process_of(&ada), process);
    assert_eq!(task_count(&product, "ada").await, 1);
    product.stop("ada").await.assert_ok("status:text");
}
