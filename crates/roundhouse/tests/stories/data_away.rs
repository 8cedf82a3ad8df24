//! The engines' data is not where it should be, on the real binary: nobody is given an empty engine, nothing is lost.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Answer, Deployment, Engine, Product, eventually, has, skip};

fn root(place: &Deployment) -> PathBuf {
    place.fleet.folder().join("engines")
}

/// A user's engine that has a task.
async fn with_a_task(product: &Product, user: &str) -> Engine {
    let engine = product.engine(user).await;
    engine.tell("task", "Remember this.").await;
    engine
}

async fn tasks(product: &Product, user: &str) -> u64 {
    let listed = product.engine(user).await.get("/tasks").await.ok("tasks:array total:int");
    listed["total"].as_u64().unwrap()
}

async fn doctor(place: &Deployment) -> String {
    place.fleet.home.run(&["doctor"], &place.fleet.variables).ended().await.output
}

#[track_caller]
fn assert_refused(answer: &Answer) {
    let message = answer.refused(502, "BACKEND_ERROR");
    assert!(message.contains("data is not there"), "{message}");
}

/// A host that has rebooted: the engines are gone, and their disk is not mounted yet.
#[tokio::test]
async fn after_a_reboot_without_the_disk_nothing_is_made_and_with_it_all_is_as_it_was() {
    let place = Deployment::plain().with("ORCH_HEALTH_CHECK_INTERVAL_S", "0.2");
    let (orchestrator, product) = place.start_with_product().await;
    let ada = with_a_task(&product, "ada").await;
    with_a_task(&product, "bob").await;
    product.stop("bob").await.ok("status:text");
    orchestrator.end(Signal::KILL).await;
    place.kill_engine(&ada);
    let (root, aside) = (root(&place), place.fleet.folder().join("aside"));
    fs::rename(&root, &aside).unwrap();
    for is_there in [false, true] {
        if is_there {
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
        assert_eq!(root.exists(), is_there, "the root was made");
        assert_eq!(fs::read_dir(&root).map_or(0, Iterator::count), 0, "something was made");
        orchestrator.end(Signal::TERM).await.well();
    }
    let orchestrator = place.start().await;
    // The disk is mounted.
    fs::remove_dir(&root).unwrap();
    fs::rename(&aside, &root).unwrap();
    product.start("bob").await.ok("status:text url:text");
    assert_eq!(tasks(&product, "bob").await, 1);
    // The one that ran is noticed to have ended, and comes back by itself.
    eventually("ada's engine runs", async || place.process_of(&ada)).await;
    product.becomes("ada", "running").await;
    assert_eq!(tasks(&product, "ada").await, 1);
    let said = doctor(&place).await;
    assert!(said.contains("all is well"), "{said}");
    orchestrator.end(Signal::TERM).await.well();
}

/// A workspace as Go's module cache leaves it, under an orchestrator that is an ordinary user.
#[tokio::test]
async fn an_ordinary_users_orchestrator_deletes_folders_that_may_not_be_written_to() {
    if !rustix::process::getuid().is_root() {
        skip("root's rights, to become an ordinary user");
        return;
    }
    if !has("setpriv") || !has("chown") {
        return;
    }
    let place = Deployment::plain();
    let home = place.fleet.home.path();
    // Where an ordinary user may run it.
    let binary = home.join("roundhouse");
    fs::copy(crate::support::home::BINARY, &binary).unwrap();
    let line = format!(
        "chown -R 65534:65534 '{home}' && exec setpriv --reuid=65534 --regid=65534 --clear-groups '{binary}' orchestrator",
        home = home.display(),
        binary = binary.display()
    );
    let mut orchestrator = place.launch_by(&["sh", "-c", &line]);
    orchestrator.is_ready().await;
    let product = orchestrator.register("shop", json!({})).await;
    let engine = product.engine("ada").await;
    product.stop("ada").await.ok("status:text");
    let folder = root(&place).join(&engine.id);
    let prepare = format!(
        "umask 022; cd '{}' && mkdir -p workspace/go/pkg/mod/x@v1/y && touch workspace/go/pkg/mod/x@v1/y/z && \
         chmod 0 workspace/go/pkg/mod/x@v1/y && chmod -R a-w workspace/go",
        folder.display()
    );
    let by_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &prepare];
    place.fleet.home.run_program(&by_user, &place.fleet.variables).ended().await;
    assert!(folder.join("workspace/go/pkg/mod/x@v1").is_dir());
    product.delete("ada").await.ok("status:text engine_id:engine");
    assert!(!folder.exists());
    product.get("ada").await.refused(404, "ENGINE_NOT_FOUND");
    orchestrator.end(Signal::TERM).await.well();
}

#[tokio::test]
async fn a_standby_on_another_host_refuses_and_buries_nobody() {
    if !rustix::process::getuid().is_root() || fs::read("/etc/machine-id").map_or(true, |id| id.len() < 32) {
        skip("root's rights and a machine id, to be another host");
        return;
    }
    if !has("unshare") {
        return;
    }
    let Some(place) = Deployment::postgres() else { return };
    let machine_id = place.fleet.home.path().join("machine-id");
    fs::write(&machine_id, "0123456789abcdef0123456789abcdef\n").unwrap();
    // With a mount namespace of its own, in which the machine has another identity.
    let there = |more: &str| {
        let line = format!(
            "mount --bind '{}' /etc/machine-id && {more} exec '{}' orchestrator",
            machine_id.display(),
            crate::support::home::BINARY
        );
        place.launch_by(&["unshare", "--mount", "--propagation", "private", "sh", "-c", &line])
    };
    let (orchestrator, product) = place.start_with_product().await;
    let ada = with_a_task(&product, "ada").await;
    let process = place.process_of(&ada);
    orchestrator.end(Signal::KILL).await;

    // It refuses, and says what would make it safe.
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let words = [format!("on the host {host}"), format!("ORCH_TAKE_OVER_FROM={host}")];
    let refused = there("").program.ended().await;
    let _ = refused.refused(2, &words.each_ref().map(String::as_str));
    assert_eq!(place.process_of(&ada), process);

    // Told to, it takes over; without the data it buries nobody and makes nothing.
    let root = root(&place);
    let without_data = format!(
        "mount -t tmpfs none '{}' && ORCH_TAKE_OVER_FROM='{host}' ORCH_HEALTH_CHECK_INTERVAL_S=0.2",
        root.display()
    );
    let mut second = there(&without_data);
    second.is_ready().await;
    assert_refused(&product.provision("new").await);
    assert_eq!(product.status("ada").await, "running");
    second.end(Signal::TERM).await.well();
    assert_eq!(place.process_of(&ada), process);

    // The first host is another one now, and has the engine still.
    let first = place.launch().program.ended().await;
    first.refused(2, &["ORCH_TAKE_OVER_FROM"]);
    let mut first = place.launch_with("ORCH_TAKE_OVER_FROM", &host);
    first.is_ready().await;
    assert_eq!(place.process_of(&ada), process);
    assert_eq!(tasks(&product, "ada").await, 1);
    first.end(Signal::TERM).await.well();
}

/// A registry that was copied, for a trial on the same host say: it has the same deployment's engines in it.
#[tokio::test]
async fn the_orchestrator_of_a_copied_registry_leaves_the_engines_of_the_first_alone() {
    let place = Deployment::plain();
    let (_orchestrator, product) = place.start_with_product().await;
    let ada = with_a_task(&product, "ada").await;
    let process = place.process_of(&ada);
    let copy = place.fleet.folder().join("copy.sqlite");
    let registry = rusqlite::Connection::open(place.fleet.folder().join("registry.sqlite")).unwrap();
    registry.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let port = place.fleet.home.ports.first() + 1;
    let second = format!(
        "ORCH_PORT={port} ORCH_DATABASE_URL='sqlite:{}' ORCH_IDLE_SLEEP_THRESHOLD_S=0.2 ORCH_HEALTH_CHECK_INTERVAL_S=0.2 exec '{}' orchestrator",
        copy.display(),
        crate::support::home::BINARY
    );
    let mut second = place.launch_by(&["sh", "-c", &second]);
    second.base = format!("http://127.0.0.1:{port}");
    second.is_ready().await;
    let trial = Product::new(&second.base, &product.key);
    for answer in [trial.stop("ada").await, trial.rotate("ada").await, trial.delete("ada").await] {
        assert_refused(&answer);
    }
    let explained = trial.explain("ada").await;
    assert!(explained["awake_because"][0].as_str().unwrap().contains("another registry"), "{explained}");
    // Time enough for it to fall asleep many times over.
    assert!(second.program.says("is in use by an orchestrator with another registry").await.is_ok());
    second.end(Signal::TERM).await.well();
    assert_eq!(place.process_of(&ada), process);
    assert_eq!(tasks(&product, "ada").await, 1);
    product.stop("ada").await.ok("status:text");
}
