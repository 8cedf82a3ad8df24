//! One product's trouble is its own: while its boots hang, its connections say nothing and its provisions come by the
//! hundred, a neighbour's engine that dies is back as soon as ever, and its users are admitted.
//!
//! How much slower a neighbour gets is measured by `bench fairness`.

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

/// The noisy product's engines: more than restart at once.
const ENGINES: usize = 12;
/// Connections that say half a sentence.
const CONNECTIONS: usize = 1_000;
/// Provisions that are asked for at once.
const PROVISIONS: usize = 40;

/// Stops the processes of engines as they are launched, until it is dropped: boots that hang.
struct BootFreezer {
    ended: Arc<AtomicBool>,
    frozen: Arc<AtomicUsize>,
    watcher: Option<thread::JoinHandle<Vec<Pid>>>,
}

impl BootFreezer {
    /// For the engines whose data is in these folders.
    fn start(folders: Vec<PathBuf>) -> Self {
        let (ended, frozen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (is_ended, count) = (Arc::clone(&ended), Arc::clone(&frozen));
        let watcher = thread::spawn(move || {
            let mut held: Vec<Pid> = Vec::new();
            while !is_ended.load(Ordering::Relaxed) {
                for pid in folders.iter().flat_map(|folder| processes::engines_in_folder(folder)) {
                    if !held.contains(&pid) {
                        processes::signal(pid, Signal::STOP);
                        held.push(pid);
                        count.store(held.len(), Ordering::Relaxed);
                    }
                }
            }
            held
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
        if let Some(held) = self.watcher.take().and_then(|watcher| watcher.join().ok()) {
            held.into_iter().filter(|pid| processes::is_alive(*pid)).for_each(processes::kill);
        }
    }
}

fn users() -> impl Iterator<Item = String> {
    (0..ENGINES).map(|number| format!("noisy-{number}"))
}

async fn two_products(place: &Deployment) -> (Orchestrator, Product, Product) {
    let orchestrator = place.start().await;
    let noisy = orchestrator.register("noisy", json!({})).await;
    let quiet = orchestrator.register("quiet", json!({})).await;
    (orchestrator, noisy, quiet)
}

#[tokio::test]
async fn boots_that_hang_hold_up_no_other_products_restart() {
    let place = Deployment::process_and_sqlite().with_env("ORCH_RESTART_BACKOFF_BASE_S", "1");
    let (_orchestrator, noisy, quiet) = two_products(&place).await;
    let mut folders = Vec::new();
    for user in users() {
        let engine = noisy.engine(&user).await;
        folders.push(place.fleet.engine_folder(&engine.id));
    }
    let engine = quiet.engine("ada").await;
    let first = place.process_of(&engine).unwrap();

    for process in folders.iter().flat_map(|folder| processes::engines_in_folder(folder)) {
        processes::kill(process);
    }
    let freezer = BootFreezer::start(folders);
    // As many as may be restarted at once for one product.
    eventually("their boots hang", async || (freezer.count() >= 4).then_some(())).await;

    // The neighbour's engine dies, and is back after its own back-off, which its user waits for.
    processes::kill(first);
    let start = Instant::now();
    quiet.wait_for_status("ada", "failed").await;
    let back = quiet.engine("ada").await;
    assert_within("it is back", start.elapsed(), 1.0..15.0);
    assert_ne!(place.process_of(&back), Some(first));
    // New users of both come in: one's boots do not take all that may be under way.
    quiet.engine("bob").await;
    assert_within("somebody new is there", start.elapsed(), 1.0..20.0);
    assert!(freezer.count() < ENGINES, "not all of them were launched at once");
}

#[tokio::test]
async fn connections_and_provisions_of_one_keep_no_user_of_another_waiting() {
    let place = Deployment::process_and_sqlite();
    let (orchestrator, noisy, quiet) = two_products(&place).await;
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
    // Generous: the provisions need the processors too.
    assert!(slowest < Duration::from_secs(5), "{slowest:?} in the worst case");
    for provision in provisions {
        assert_eq!(provision.await.unwrap().unwrap().status(), 200);
    }
    drop(connections);
}
