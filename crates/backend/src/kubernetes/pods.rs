//! What is known of the deployment's Pods: the addresses of running engines, and the exits that were reported.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use api::EngineId;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::label::Role;
use super::pod_state::{Obstacle, PodState, PodView};
use super::saved_logs::SavedLogs;
use crate::InstanceExit;

/// The Pods that were seen in the cluster and are not gone.
pub(super) struct Pods {
    /// By engine, so that the address of an engine is found without a search.
    known: Mutex<HashMap<EngineId, Vec<KnownPod>>>,
    /// Notified at each change.
    changed: Notify,
    exits: mpsc::UnboundedSender<InstanceExit>,
    listener: Mutex<Option<mpsc::UnboundedReceiver<InstanceExit>>>,
}

struct KnownPod {
    pod: PodView,
    /// Whether its exit was reported.
    reported: bool,
}

impl Default for Pods {
    fn default() -> Self {
        let (exits, listener) = mpsc::unbounded_channel();
        Self { known: Mutex::default(), changed: Notify::new(), exits, listener: Mutex::new(Some(listener)) }
    }
}

impl Pods {
    /// Notes the state of a Pod, and reports its exit if it has ended or will not start. What is older than what is
    /// known changes nothing.
    pub(super) fn observe(&self, pod: PodView, logs: &SavedLogs) {
        {
            let mut known = self.known.lock();
            let pods = known.entry(pod.engine_id).or_default();
            match pods.iter_mut().find(|known| known.pod.uid == pod.uid) {
                Some(known) if !known.pod.is_alive() && pod.is_alive() => {}
                Some(known) => known.pod = pod,
                None => pods.push(KnownPod { pod, reported: false }),
            }
            for known in pods {
                self.report(known, logs);
            }
        }
        self.changed.notify_waiters();
    }

    fn report(&self, known: &mut KnownPod, logs: &SavedLogs) {
        let reason = match &known.pod.state {
            PodState::Exited(exit) => exit.reason.clone(),
            PodState::Waiting(Some(Obstacle::NoSuchImage(message))) => {
                format!("its image cannot be pulled: {message}")
            }
            PodState::Waiting(_) | PodState::Running => return,
        };
        if let (Role::Engine, PodState::Exited(exit)) = (known.pod.role, &known.pod.state) {
            logs.save_output(known.pod.engine_id, &exit.output);
        }
        self.send_exit(known, Some(reason));
    }

    fn send_exit(&self, known: &mut KnownPod, reason: Option<String>) {
        if std::mem::replace(&mut known.reported, true) || known.pod.role != Role::Engine {
            return;
        }
        let exit = InstanceExit { engine_id: known.pod.engine_id, instance: known.pod.instance(), reason };
        // The receiver is gone only while the orchestrator shuts down.
        let _ = self.exits.send(exit);
    }

    /// Notes that a Pod does not exist any more, and reports its exit unless that was reported already.
    pub(super) fn note_gone(&self, engine_id: EngineId, uid: &str) {
        {
            let mut known = self.known.lock();
            let Some(pods) = known.get_mut(&engine_id) else { return };
            for gone in pods.extract_if(.., |known| known.pod.uid == uid) {
                let mut gone = gone;
                self.send_exit(&mut gone, Some("its Pod was deleted".to_owned()));
            }
            if pods.is_empty() {
                known.remove(&engine_id);
            }
        }
        self.changed.notify_waiters();
    }

    /// The UIDs of all known Pods, with their engines.
    pub(super) fn all(&self) -> HashSet<(EngineId, String)> {
        let known = self.known.lock();
        known.values().flatten().map(|known| (known.pod.engine_id, known.pod.uid.clone())).collect()
    }

    /// Where the engine is: the address of its Pod of the latest generation.
    pub(super) fn ip(&self, engine_id: EngineId) -> Option<IpAddr> {
        let known = self.known.lock();
        let alive = known.get(&engine_id)?.iter().map(|known| &known.pod);
        let alive = alive.filter(|pod| pod.role == Role::Engine && pod.is_alive());
        alive.max_by_key(|pod| pod.generation)?.ip
    }

    /// The last known state of a Pod.
    pub(super) fn get(&self, engine_id: EngineId, uid: &str) -> Option<PodView> {
        let known = self.known.lock();
        known.get(&engine_id)?.iter().map(|known| &known.pod).find(|pod| pod.uid == uid).cloned()
    }

    /// Is notified at each change from now on.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Returns the exits from now on. Only the first caller gets them.
    pub(super) fn exits(&self) -> BoxStream<'static, InstanceExit> {
        let Some(mut listener) = self.listener.lock().take() else {
            return futures::stream::pending().boxed();
        };
        futures::stream::poll_fn(move |context| listener.poll_recv(context)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::super::pod_state::Exit;
    use super::*;
    use crate::ResourceLimits;

    fn pod(engine_id: EngineId, uid: &str, state: PodState) -> PodView {
        PodView {
            name: "roundhouse-eng".to_owned(),
            uid: uid.to_owned(),
            engine_id,
            generation: 1,
            role: Role::Engine,
            state,
            ip: Some([10, 0, 0, 7].into()),
            node: None,
            deletion_s: None,
            limits: ResourceLimits::default(),
        }
    }

    fn exited(reason: &str) -> PodState {
        let (reason, output) = (reason.to_owned(), "last words".to_owned());
        PodState::Exited(Exit { reason, succeeded: false, output, no_room: false })
    }

    #[test]
    fn regression_k09_a_pod_that_has_ended_has_no_address_and_one_exit() {
        let (pods, logs, engine_id) = (Pods::default(), SavedLogs::default(), EngineId::new());
        let mut exits = pods.exits();
        let mut next = || exits.next().now_or_never().flatten().and_then(|exit| exit.reason);
        pods.observe(pod(engine_id, "a", PodState::Waiting(None)), &logs);
        pods.observe(pod(engine_id, "a", PodState::Running), &logs);
        assert_eq!(pods.ip(engine_id), Some([10, 0, 0, 7].into()));
        assert_eq!(next(), None);
        pods.observe(pod(engine_id, "a", exited("exit code 1")), &logs);
        pods.observe(pod(engine_id, "a", PodState::Running), &logs);
        assert_eq!(pods.ip(engine_id), None);
        pods.note_gone(engine_id, "a");
        assert_eq!(next().as_deref(), Some("exit code 1"));
        assert_eq!(next(), None);
        assert_eq!(logs.tail(engine_id, 9), ["last words"]);
        pods.observe(pod(engine_id, "b", PodState::Running), &logs);
        pods.note_gone(engine_id, "b");
        pods.note_gone(engine_id, "b");
        assert_eq!(next().as_deref(), Some("its Pod was deleted"));
        assert_eq!(next(), None);
        assert!(pods.all().is_empty());
    }

    #[test]
    fn regression_k09_an_engine_is_where_its_latest_pod_is_and_a_copy_is_no_engine() {
        let (pods, logs, engine_id) = (Pods::default(), SavedLogs::default(), EngineId::new());
        let mut exits = pods.exits();
        pods.observe(pod(engine_id, "a", PodState::Running), &logs);
        let later = PodView { generation: 2, ip: None, ..pod(engine_id, "b", PodState::Waiting(None)) };
        pods.observe(later, &logs);
        assert_eq!(pods.ip(engine_id), None);
        let copy = PodView { role: Role::Copy, generation: 3, ..pod(engine_id, "c", PodState::Running) };
        pods.observe(copy, &logs);
        pods.note_gone(engine_id, "b");
        pods.note_gone(engine_id, "c");
        assert_eq!(pods.ip(engine_id), Some([10, 0, 0, 7].into()));
        assert!(
            exits.next().now_or_never().flatten().is_some_and(|exit| exit.instance.as_str().ends_with("/b"))
        );
        assert!(exits.next().now_or_never().is_none());
    }
}
