//! Isolation between products: while one product's boots hang, its connections stall and its provisions come in a
//! burst, another product's crashed engine is restarted as soon as ever, and its users are admitted.
//!
//! `bench fairness` measures how much slower the other product gets.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use reqwest::Method;
use rustix::process::{Pid, Signal};
use serde_json::json;

use crate::support::{Deployment, Orchestrator, Product, assert_within, eventually, processes};

/// The number of the noisy product's engines: more than may restart at the same time.
const ENGINES: usize = 12;
/// The number of connections that send half a request.
const CONNECTIONS: usize = 1_000;
/// The number of simultaneous provisions.
const PROVISIONS: usize = 40;

/// Sends SIGSTOP to the processes of engines as they are launched, until it is dropped, so that their boots hang.
struct BootFreezer {
    ended: Arc<AtomicBool>,
    frozen: Arc<AtomicUsize>,
    watcher: Option<thread::JoinHandle<Vec<Pid>>>,
}

impl BootFreezer {
    /// Freezes the engines whose data is in these folders.
    fn start(folders: Vec<PathBuf>) -> Self {
        let (ended, frozen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_ended, count) = (Arc::clone(&ended), Arc::clone(&frozen));
        let watcher = thread::spawn(move || {
            let mut frozen_pids: Vec<Pid> = Vec::new();
            while !is_ended.load(Ordering::Relaxed) {
                for pid in folders.iter().flat_map(|folder| processes::engines_in_folder(folder)) {
                    if !frozen_pids.contains(&pid) {
                        processes::signal(pid, Signal::STOP);
                        frozen_pids.push(pid);
                        count.store(frozen_pids.len(), Ordering::Relaxed);
                    }
                }
            }
            frozen_pids
        });
        Self { ended, frozen, watcher: Some(watcher) }
    }

    fn count(&self) -> usize {
        self.frozen.load(Ordering::Relaxed)
    }
}

impl Drop for BootFreezer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(frozen_pids) = self.watcher.take().and_then(|watcher| watcher.join().ok()) {
            frozen_pids.into_iter().filter(|pid| processes::is_alive(*pid)).for_each(processes::kill);
        }
    }
}

fn users() -> impl Iterator<Item = String> {
    (0..ENGINES).map(|number| format!("noisy-{number}"))
}

async fn two_products(deployment: &Deployment) -> (Orchestrator, Product, Product) {
    let orchestrator = deployment.start().await;
    let noisy = orchestrator.register("noisy", json!({})).await;
    let quiet = orchestrator.register("quiet", json!({})).await;
    (orchestrator, noisy, quiet)
}

#[tokio::test]
async fn boots_that_hang_hold_up_no_other_products_restart() {
    let deployment = Deployment::process_and_sqlite().with_env("ORCH_RESTART_BACKOFF_BASE_S", "1");
    let (_orchestrator, noisy, quiet) = two_products(&deployment).await;
    let mut folders = Vec::new();
    for user in users() {
        let engine = noisy.engine(&user).await;
        folders.push(deployment.fleet.engine_folder(&engine.id));
    }
    let engine = quiet.engine("ada").await;
    let first = deployment.process_of(&engine).unwrap();

    for process in folders.iter().flat_map(|folder| processes::engines_in_folder(folder)) {
        processes::kill(process);
    }
    let freezer = BootFreezer::start(folders);
    // 4 is the limit of simultaneous restarts for one product.
    eventually("their boots hang", async || (freezer.count() >= 4).then_some(())).await;

    // The other product's engine crashes, and is restarted after its own back-off; its user's admit waits for it.
    processes::kill(first);
    let start = Instant::now();
    quiet.wait_for_status("ada", "failed").await;
    let restarted = quiet.engine("ada").await;
    assert_within("the engine is restarted", start.elapsed(), 1.0..15.0);
    assert_ne!(deployment.process_of(&restarted), Some(first));
    // A new user is admitted: one product's boots do not use up all operations.
    quiet.engine("bob").await;
    assert_within("a new user is admitted", start.elapsed(), 1.0..20.0);
    assert!(freezer.count() < ENGINES, "not all of them were launched at the same time");
}

#[tokio::test]
async fn connections_and_provisions_of_one_keep_no_user_of_another_waiting() {
    let deployment = Deployment::process_and_sqlite();
    let (orchestrator, noisy, quiet) = two_products(&deployment).await;
    quiet.engine("ada").await;
    let address = orchestrator.base.strip_prefix("http://").unwrap().to_owned();
    let connections: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let mut connection = TcpStream::connect(&address).unwrap();
            connection.write_all(b"GET /engines HTTP/1.1\r\nHost: noisy\r\nX-Filler: ").unwrap();
            connection
        })
        .collect();
    let provisions: Vec<_> = (0..PROVISIONS)
        .map(|number| {
            let body = json!({"user_id": format!("burst-{number}")});
            tokio::spawn(noisy.request(Method::POST, "/engines/provision").json(&body).send())
        })
        .collect();

    let mut slowest = Duration::ZERO;
    let mut admits = 0;
    while admits < 100 || !provisions.iter().all(tokio::task::JoinHandle::is_finished) {
        let start = Instant::now();
        let admission = quiet.admit_existing("ada").await.assert_ok("admitted:bool engine:object");
        assert_eq!(admission["admitted"], true, "{admission}");
        slowest = slowest.max(start.elapsed());
        admits += 1;
    }
    // A generous limit, because the provisions use the CPUs too.
    assert!(slowest < Duration::from_secs(5), "the slowest admit took {slowest:?}");
    for provision in provisions {
        assert_eq!(provision.await.unwrap().unwrap().status(), 200);
    }
    drop(connections);
}
