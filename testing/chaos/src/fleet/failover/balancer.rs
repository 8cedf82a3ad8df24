//! What a load balancer knows: which of the orchestrators says that it is ready. It also sees whether two do at once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Client;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::counters::Counters;

/// How often each orchestrator is asked, and how long it may take to answer.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const POLL_TIMEOUT: Duration = Duration::from_millis(500);
/// How long an orchestrator may take to notice that the server has dropped the connection with its lock. Until then it
/// may still say that it is ready; it can neither write nor be told anything that is not so.
const NOTICE_TIME: Duration = Duration::from_millis(500);

/// Asks the orchestrators for their health.
#[derive(Debug)]
pub(super) struct Balancer {
    active: watch::Receiver<Option<usize>>,
    _polls: Vec<AbortOnDropHandle<()>>,
}

/// An answer by which an orchestrator said that it was ready.
#[derive(Clone, Copy, Debug)]
struct Ready {
    replica: usize,
    asked_at: Instant,
    answered_at: Instant,
}

/// Who was ready when.
#[derive(Debug, Default)]
struct ReadyHistory {
    /// Who was replaced, and when its successor was first known to be ready.
    replaced: Option<(usize, Instant)>,
    last: Option<Ready>,
}

impl ReadyHistory {
    /// Takes in an answer. Returns whether it proves that two were active at once: the same orchestrator was ready
    /// before another one was, and still after [`NOTICE_TIME`].
    fn add(&mut self, ready: Ready) -> bool {
        if let Some((replaced, since)) = self.replaced
            && replaced == ready.replica
        {
            return ready.asked_at > since + NOTICE_TIME;
        }
        if let Some(last) = self.last
            && last.replica != ready.replica
        {
            self.replaced = Some((last.replica, ready.answered_at));
        }
        self.last = Some(ready);
        false
    }

    /// Whoever listens at the address of this orchestrator is another process from now on.
    fn forget(&mut self, replica: usize) {
        self.replaced = self.replaced.filter(|(replaced, _)| *replaced != replica);
        self.last = self.last.filter(|ready| ready.replica != replica);
    }
}

/// What the polls find.
#[derive(Debug)]
pub(super) struct Found {
    active: watch::Sender<Option<usize>>,
    history: Mutex<ReadyHistory>,
    counters: Arc<Counters>,
}

impl Found {
    /// Whoever listens at the address of this orchestrator is another process from now on.
    pub(super) fn forget(&self, replica: usize) {
        self.history.lock().forget(replica);
    }

    fn add(&self, ready: Ready) {
        if self.history.lock().add(ready) {
            self.counters.record_violation("two orchestrators were active at once");
        }
        self.active.send_if_modified(|active| active.replace(ready.replica) != Some(ready.replica));
    }

    fn not_ready(&self, replica: usize) {
        self.active.send_if_modified(|active| active.take_if(|active| *active == replica).is_some());
    }
}

impl Balancer {
    /// Begins to poll the orchestrators at these addresses.
    pub(super) fn start(bases: &[String], http: &Client, counters: &Arc<Counters>) -> (Self, Arc<Found>) {
        let (active, receiver) = watch::channel(None);
        let found = Arc::new(Found { active, history: Mutex::default(), counters: Arc::clone(counters) });
        let poll = |(replica, base): (usize, &String)| {
            let poll = poll(replica, format!("{base}/health"), http.clone(), Arc::clone(&found));
            AbortOnDropHandle::new(tokio::spawn(poll))
        };
        let polls = bases.iter().enumerate().map(poll).collect();
        (Self { active: receiver, _polls: polls }, found)
    }

    /// The orchestrator that calls go to, as soon as there is one.
    pub(super) async fn active(&self) -> usize {
        let mut active = self.active.clone();
        loop {
            if let Some(replica) = *active.borrow_and_update() {
                return replica;
            }
            // Only a run that ends has no sender.
            if active.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until this orchestrator is the active one.
    pub(super) async fn wait_active(&self, replica: usize, limit: Duration) -> bool {
        let mut active = self.active.clone();
        tokio::time::timeout(limit, active.wait_for(|active| *active == Some(replica))).await.is_ok()
    }
}

async fn poll(replica: usize, url: String, http: Client, found: Arc<Found>) {
    loop {
        let asked_at = Instant::now();
        let answer = tokio::time::timeout(POLL_TIMEOUT, http.get(&url).send()).await;
        if answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status() == 200)) {
            found.add(Ready { replica, asked_at, answered_at: Instant::now() });
        } else {
            found.not_ready(replica);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_stays_ready_beside_its_successor_is_found() {
        let start = Instant::now();
        let ready = |replica, ms| {
            let asked_at = start + Duration::from_millis(ms);
            Ready { replica, asked_at, answered_at: asked_at + Duration::from_millis(5) }
        };
        let mut history = ReadyHistory::default();
        for (replica, ms) in [(0, 0), (0, 10), (1, 20), (0, 25), (1, 30), (0, 500)] {
            assert!(!history.add(ready(replica, ms)), "{ms}");
        }
        assert!(history.add(ready(0, 550)));
        // A new process at the same address has been nothing before.
        history.forget(0);
        assert!(!history.add(ready(1, 560)));
        assert!(!history.add(ready(0, 5_000)));
    }
}
