//! Watches the engines' Pods during the whole run: an engine never has two Pods that may run, and no engine ever
//! finds its brain opened by another one.

use std::collections::{HashMap, HashSet};
use std::io::BufRead as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

use super::pods::{PodView, parse_pod};
use super::tenant_users::text_field;
use crate::unix_http::UnixHttpClient;

/// What an engine says that finds its brain locked.
const BRAIN_IN_USE: &str = "is in use by another engine";
/// How long to wait before a watch that ended is started again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// How often somebody who waits for the end of a Pod looks.
const GONE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A running watch. Dropped, it is ended.
#[derive(Debug)]
pub(crate) struct PodWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    /// What the watch reads from, so that it can be ended.
    connection: Mutex<Option<UnixStream>>,
    violations: Mutex<Vec<String>>,
    seen: Mutex<SeenPods>,
}

impl PodWatch {
    /// Watches what `path` of `api` lists.
    pub(crate) fn start(api: UnixHttpClient, path: String) -> Self {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                while !shared.is_over.load(Ordering::Relaxed) {
                    // It ends with the API server, and after a time without a change.
                    let _ = follow(&api, &path, &shared);
                    std::thread::park_timeout(RETRY_INTERVAL);
                }
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Waits until a Pod disappears, at most for `limit`.
    pub(crate) fn wait_gone(&self, limit: Duration) {
        let (begin, before) = (Instant::now(), self.shared.seen.lock().gone);
        while begin.elapsed() < limit && self.shared.seen.lock().gone == before {
            std::thread::park_timeout(GONE_POLL_INTERVAL);
        }
    }

    /// How many Pods were seen.
    pub(crate) fn seen_count(&self) -> usize {
        self.shared.seen.lock().all.len()
    }

    /// Removes and returns the violations that were found.
    pub(crate) fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.violations.lock())
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(connection) = &*self.shared.connection.lock() {
            // One that was closed by the server is as good.
            let _ = connection.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Reads one watch until it ends. A new one begins with all Pods that there are.
fn follow(api: &UnixHttpClient, path: &str, shared: &Shared) -> anyhow::Result<()> {
    let stream = api.stream(&format!("{path}?watch=true"))?;
    *shared.connection.lock() = Some(stream.get_ref().try_clone()?);
    // Looked at after the connection is known, so that either this or the shutdown ends the watch.
    if shared.is_over.load(Ordering::Relaxed) {
        return Ok(());
    }
    shared.seen.lock().alive.clear();
    for line in stream.lines() {
        let violations = shared.seen.lock().observe(&serde_json::from_str(&line?)?);
        shared.violations.lock().extend(violations);
    }
    Ok(())
}

/// The Pods that were seen.
#[derive(Debug, Default)]
struct SeenPods {
    all: HashSet<String>,
    /// How many have disappeared.
    gone: u64,
    /// By engine, the Pods that may run.
    alive: HashMap<String, HashSet<String>>,
    /// The Pods whose engine found its brain locked.
    locked_out: HashSet<String>,
}

impl SeenPods {
    /// Takes an event of the watch, and returns the violations that it shows.
    fn observe(&mut self, event: &Value) -> Vec<String> {
        let Some(pod) = event.get("object").and_then(parse_pod) else { return Vec::new() };
        let is_there = text_field(event, "/type").as_deref() != Some("DELETED");
        self.gone += u64::from(!is_there);
        let mut violations = Vec::new();
        let PodView { engine_id, uid, .. } = &pod;
        self.all.insert(uid.clone());
        let alive = self.alive.entry(engine_id.clone()).or_default();
        if is_there && pod.is_alive {
            let is_new = alive.insert(uid.clone());
            if is_new && alive.len() > 1 {
                violations.push(format!("two Pods of one engine may run: {engine_id}: {alive:?}"));
            }
        } else {
            alive.remove(uid);
        }
        if pod.last_words.contains(BRAIN_IN_USE) && self.locked_out.insert(uid.clone()) {
            violations.push(format!("two engines opened one brain: {engine_id}: {}", pod.last_words));
        }
        violations
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, uid: &str, status: &Value) -> Value {
        let labels = json!({"roundhouse/engine": "eng_1", "roundhouse/role": "engine"});
        json!({"type": kind, "object": {"metadata": {"uid": uid, "labels": labels}, "status": status}})
    }

    #[test]
    fn a_second_pod_of_an_engine_is_a_violation_unless_the_first_has_ended() {
        let (running, failed) = (json!({"phase": "Running"}), json!({"phase": "Failed"}));
        let mut seen = SeenPods::default();
        assert_eq!(seen.observe(&event("ADDED", "a", &running)), Vec::<String>::new());
        assert_eq!(seen.observe(&event("MODIFIED", "a", &failed)), Vec::<String>::new());
        assert_eq!(seen.observe(&event("ADDED", "b", &running)), Vec::<String>::new());
        assert_eq!(seen.observe(&event("DELETED", "b", &running)), Vec::<String>::new());
        assert_eq!(seen.observe(&event("ADDED", "c", &running)), Vec::<String>::new());
        assert_eq!(seen.observe(&event("ADDED", "d", &running)).len(), 1);
        assert_eq!(seen.observe(&event("MODIFIED", "d", &running)), Vec::<String>::new());
    }

    #[test]
    fn an_engine_that_finds_its_brain_locked_is_a_violation_once() {
        let message =
            "Error: the brain /data/brain.sqlite is in use by another engine (process 7): stop that one";
        let terminated = json!({"state": {"terminated": {"exitCode": 1, "message": message}}});
        let status = json!({"phase": "Failed", "containerStatuses": [terminated]});
        let mut seen = SeenPods::default();
        assert_eq!(seen.observe(&event("ADDED", "a", &status)).len(), 1);
        assert_eq!(seen.observe(&event("MODIFIED", "a", &status)), Vec::<String>::new());
    }
}
