//! What a Pod's status says about its engine, in plain words. It is pure.

use std::net::IpAddr;

use api::EngineId;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus};

use super::label::{Role, engine_of, generation_of, role_of};
use super::quantity::limits_of;
use super::spec::CONTAINER;
use crate::{Instance, ResourceLimits};

/// The exit code of a process that was ended by signal 0; that of a signal is added to it.
const SIGNAL_EXIT_CODE: i32 = 128;

/// A Pod of an engine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodView {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) engine_id: EngineId,
    pub(super) generation: i64,
    pub(super) role: Role,
    pub(super) state: PodState,
    pub(super) ip: Option<IpAddr>,
    pub(super) node: Option<String>,
    /// When its deletion is due, in seconds of Unix time, if it is being deleted.
    pub(super) deletion_s: Option<i64>,
    pub(super) limits: ResourceLimits,
}

/// The state of a Pod's container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    /// It has not started yet, maybe because of an obstacle.
    Waiting(Option<Obstacle>),
    Running,
    /// It has ended, or will never start.
    Exited(Exit),
}

/// What keeps a Pod from starting, as the cluster says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// No node has room for it, or may have it.
    Unschedulable(String),
    /// Its image does not exist, or may not be read.
    NoSuchImage(String),
    /// Its image cannot be pulled at the moment.
    ImageNotPulled(String),
    /// Something that its specification names is missing, or it cannot be started otherwise.
    NotStartable(String),
}

/// The end of a Pod's container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    /// Why it ended, for people.
    pub(super) reason: String,
    /// Whether it succeeded.
    pub(super) succeeded: bool,
    /// The last lines that it wrote, if it failed and its node still had them.
    pub(super) output: String,
    /// Whether its node had no room for it, so that it never started.
    pub(super) no_room: bool,
}

impl PodView {
    /// Reads a Pod; `None` if it does not belong to `deployment_id`.
    pub(super) fn of(deployment_id: &str, pod: &Pod) -> Option<Self> {
        let metadata = &pod.metadata;
        let spec = pod.spec.as_ref();
        let container = spec.and_then(|spec| spec.containers.iter().find(|found| found.name == CONTAINER));
        let resources = container.and_then(|container| container.resources.as_ref());
        Some(Self {
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
            engine_id: engine_of(deployment_id, metadata)?,
            generation: generation_of(metadata),
            role: role_of(metadata),
            state: pod.status.as_ref().map_or(PodState::Waiting(None), state_of),
            ip: pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()?.parse().ok()),
            node: spec.and_then(|spec| spec.node_name.clone()),
            deletion_s: metadata.deletion_timestamp.as_ref().map(|time| time.0.as_second()),
            limits: resources.map(limits_of).unwrap_or_default(),
        })
    }

    /// The identifier of the Pod, which no other Pod has at any time.
    pub(super) fn instance(&self) -> Instance {
        Instance::new(format!("{}/{}", self.name, self.uid))
    }

    /// Whether its container may run now or later.
    pub(super) const fn is_alive(&self) -> bool {
        !matches!(self.state, PodState::Exited(_))
    }
}

/// Reads the name and the UID from a Pod's identifier.
pub(super) fn parse_instance(instance: &Instance) -> Option<(&str, &str)> {
    instance.as_str().split_once('/')
}

fn state_of(status: &PodStatus) -> PodState {
    let phase = status.phase.as_deref().unwrap_or_default();
    let container = status.container_statuses.iter().flatten().find(|container| container.name == CONTAINER);
    let state = container.and_then(|container| container.state.as_ref());
    let terminated = state.and_then(|state| state.terminated.as_ref());
    let is_running = state.is_some_and(|state| state.running.is_some());
    // A node that lost contact may have a Pod whose phase is final and whose container runs.
    if terminated.is_some() || (matches!(phase, "Failed" | "Succeeded") && !is_running) {
        return PodState::Exited(exit_of(status, terminated));
    }
    if is_running {
        return PodState::Running;
    }
    PodState::Waiting(obstacle_of(status, container))
}

fn exit_of(status: &PodStatus, terminated: Option<&ContainerStateTerminated>) -> Exit {
    let message = status.message.as_deref().unwrap_or_default();
    let of_pod = match status.reason.as_deref() {
        Some("Evicted") => Some(with_message("its node evicted it", message)),
        Some("NodeLost") => Some(with_message("its node was lost", message)),
        Some("Preempting") => Some(with_message("its node gave its place to another Pod", message)),
        Some("DeadlineExceeded") => Some(with_message("its Pod's deadline passed", message)),
        Some("Shutdown" | "Terminated" | "NodeShutdown") => {
            Some(with_message("its node was shut down", message))
        }
        Some(reason) => Some(with_message(&format!("its node refused it ({reason})"), message)),
        None => status.conditions.iter().flatten().find_map(disruption),
    };
    let of_container = terminated.map(|terminated| match terminated.reason.as_deref() {
        Some("OOMKilled") => {
            "it was killed because it used more memory than its limit (OOMKilled)".to_owned()
        }
        Some("ContainerCannotRun" | "StartError") => with_message(
            "its container could not be started",
            terminated.message.as_deref().unwrap_or_default(),
        ),
        _ => exit_code(terminated.exit_code),
    });
    let reason = match (of_pod, of_container) {
        (Some(pod), Some(container)) => format!("{container}; {pod}"),
        (Some(reason), None) | (None, Some(reason)) => reason,
        (None, None) => "exit status unknown".to_owned(),
    };
    Exit {
        reason,
        succeeded: terminated
            .map_or(status.phase.as_deref() == Some("Succeeded"), |ended| ended.exit_code == 0),
        output: terminated.and_then(|ended| ended.message.clone()).unwrap_or_default(),
        no_room: terminated.is_none()
            && status.reason.as_deref().is_some_and(|reason| reason.starts_with("OutOf")),
    }
}

fn exit_code(code: i32) -> String {
    match code.checked_sub(SIGNAL_EXIT_CODE) {
        Some(signal @ 1..=64) => format!("exit code {code}, which is signal {signal}"),
        _ => format!("exit code {code}"),
    }
}

/// Returns who ended the Pod, if its condition names someone.
fn disruption(condition: &PodCondition) -> Option<String> {
    if condition.type_ != "DisruptionTarget" || condition.status != "True" {
        return None;
    }
    let who = match condition.reason.as_deref().unwrap_or_default() {
        "PreemptionByScheduler" => "the scheduler gave its place to another Pod",
        "EvictionByEvictionAPI" => "it was evicted, as when a node is drained",
        "DeletionByTaintManager" => "its node was tainted, as when it does not answer",
        "DeletionByPodGC" => "its node is gone",
        "TerminationByKubelet" => "its node ended it",
        _ => "the cluster ended it",
    };
    Some(with_message(who, condition.message.as_deref().unwrap_or_default()))
}

fn obstacle_of(status: &PodStatus, container: Option<&ContainerStatus>) -> Option<Obstacle> {
    let waiting = container.and_then(|container| container.state.as_ref()?.waiting.as_ref());
    let Some(waiting) = waiting else { return unschedulable(status) };
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let message = || with_message(reason, waiting.message.as_deref().unwrap_or_default());
    match reason {
        "InvalidImageName" | "ErrImageNeverPull" => Some(Obstacle::NoSuchImage(message())),
        "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" | "ImageInspectError" => {
            let message = message();
            Some(if is_missing_image(&message) {
                Obstacle::NoSuchImage(message)
            } else {
                Obstacle::ImageNotPulled(message)
            })
        }
        "" | "ContainerCreating" | "PodInitializing" => None,
        _ => Some(Obstacle::NotStartable(message())),
    }
}

fn unschedulable(status: &PodStatus) -> Option<Obstacle> {
    let scheduled = status.conditions.iter().flatten().find(|found| found.type_ == "PodScheduled")?;
    let waits = scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable");
    let message = scheduled.message.as_deref().unwrap_or_default();
    (waits && !is_behind(message)).then(|| Obstacle::Unschedulable(message.to_owned()))
}

/// Whether the scheduler has heard of a Pod before it has heard of the claim, which was created first. It tries again
/// once it has, so this says nothing about room.
fn is_behind(message: &str) -> bool {
    message.contains("persistentvolumeclaim") && message.contains("not found")
}

/// Whether a registry answered that there is no such image for this cluster, so that another attempt cannot help.
fn is_missing_image(message: &str) -> bool {
    let message = message.to_lowercase();
    [
        "not found",
        "notfound",
        "manifest unknown",
        "does not exist",
        "access denied",
        "unauthorized",
        "no match for platform",
    ]
    .iter()
    .any(|phrase| message.contains(phrase))
}

fn with_message(text: &str, message: &str) -> String {
    let message = message.trim();
    if message.is_empty() { text.to_owned() } else { format!("{text}: {message}") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn state(status: Value) -> PodState {
        state_of(&serde_json::from_value(status).unwrap())
    }

    fn container(state: Value) -> Value {
        let status =
            json!({"name": CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0});
        let mut status = status;
        status["state"] = state;
        json!([status])
    }

    fn reason(status: Value) -> String {
        match state(status) {
            PodState::Exited(exit) => exit.reason,
            other => panic!("{other:?}"),
        }
    }

    fn waiting(reason: &str, message: &str) -> PodState {
        let state_json = json!({"waiting": {"reason": reason, "message": message}});
        state(json!({"phase": "Pending", "containerStatuses": container(state_json)}))
    }

    #[test]
    fn a_pod_waits_runs_and_ends() {
        assert_eq!(state(json!({"phase": "Pending"})), PodState::Waiting(None));
        assert_eq!(waiting("ContainerCreating", ""), PodState::Waiting(None));
        let running = container(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
        assert_eq!(state(json!({"phase": "Running", "containerStatuses": running})), PodState::Running);
        // Only the end of the container is the end: a node that lost contact cannot confirm it.
        assert_eq!(state(json!({"phase": "Failed", "containerStatuses": running})), PodState::Running);
        let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        let ended = state(json!({"phase": "Succeeded", "containerStatuses": container(ended)}));
        assert!(matches!(ended, PodState::Exited(Exit { succeeded: true, .. })), "{ended:?}");
    }

    #[test]
    fn an_end_is_told_in_plain_words() {
        let terminated = |ended: Value| json!({"phase": "Failed", "containerStatuses": container(json!({"terminated": ended}))});
        let killed = reason(terminated(json!({"exitCode": 137, "reason": "OOMKilled"})));
        assert!(killed.contains("more memory than its limit"), "{killed}");
        assert_eq!(reason(terminated(json!({"exitCode": 7, "reason": "Error"}))), "exit code 7");
        let signal = reason(terminated(json!({"exitCode": 139, "reason": "Error"})));
        assert_eq!(signal, "exit code 139, which is signal 11");
        let not_run = json!({"exitCode": 128, "reason": "StartError", "message": "exec: no such file"});
        assert_eq!(reason(terminated(not_run)), "its container could not be started: exec: no such file");
        let evicted =
            json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."});
        assert_eq!(reason(evicted), "its node evicted it: The node was low on memory.");
        assert_eq!(reason(json!({"phase": "Failed", "reason": "NodeLost"})), "its node was lost");
        let mut drained = terminated(json!({"exitCode": 0, "reason": "Completed"}));
        drained["conditions"] =
            json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]);
        assert_eq!(reason(drained), "exit code 0; it was evicted, as when a node is drained");
        assert_eq!(reason(json!({"phase": "Failed"})), "exit status unknown");
    }

    #[test]
    fn a_node_without_room_is_told_from_an_engine_that_fails() {
        let refused =
            json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough cpu"});
        let PodState::Exited(exit) = state(refused) else { panic!() };
        assert!(exit.no_room && exit.reason.contains("enough cpu"), "{exit:?}");
    }

    #[test]
    fn what_keeps_a_pod_from_starting_is_told() {
        let pulled = |message: &str| waiting("ErrImagePull", message);
        for message in [
            "rpc error: code = NotFound desc = failed to pull and unpack image \"x\": not found",
            "pull access denied, repository does not exist or may require authorization",
        ] {
            let state = pulled(message);
            assert!(matches!(state, PodState::Waiting(Some(Obstacle::NoSuchImage(_)))), "{state:?}");
        }
        let timeout = pulled("dial tcp 10.0.0.1:443: i/o timeout");
        assert!(matches!(timeout, PodState::Waiting(Some(Obstacle::ImageNotPulled(_)))), "{timeout:?}");
        let name = waiting("InvalidImageName", "couldn't parse image name");
        assert!(matches!(name, PodState::Waiting(Some(Obstacle::NoSuchImage(_)))), "{name:?}");
        let expected = "CreateContainerConfigError: secret \"x\" not found".to_owned();
        let config = waiting("CreateContainerConfigError", "secret \"x\" not found");
        assert_eq!(config, PodState::Waiting(Some(Obstacle::NotStartable(expected))));
        let text = "0/2 nodes are available: 2 Insufficient memory.";
        let condition =
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}]);
        let unschedulable = state(json!({"phase": "Pending", "conditions": condition}));
        assert_eq!(unschedulable, PodState::Waiting(Some(Obstacle::Unschedulable(text.to_owned()))));
        let text = "0/2 nodes are available: persistentvolumeclaim \"roundhouse-eng-1\" not found. not found";
        let condition =
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}]);
        assert_eq!(state(json!({"phase": "Pending", "conditions": condition})), PodState::Waiting(None));
    }

    #[test]
    fn a_pod_is_read_if_it_is_of_the_deployment() {
        let engine_id = EngineId::new();
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "deletionTimestamp": "1970-01-01T00:00:07Z"},
            "spec": {"nodeName": "n", "containers": [{
                "name": CONTAINER, "resources": {"limits": {"memory": "1Gi", "cpu": "500m"}}}]},
            "status": {"phase": "Pending", "podIP": "10.1.2.3"},
        }))
        .unwrap();
        assert_eq!(PodView::of("d", &pod), None);
        let target = crate::Target { engine_id, generation: 4 };
        pod.metadata.labels = Some(super::super::label::pod_labels("d", target, None, Role::Engine));
        let view = PodView::of("d", &pod).unwrap();
        assert_eq!((view.engine_id, view.generation, view.role), (engine_id, 4, Role::Engine));
        assert_eq!(
            (view.deletion_s, view.node.as_deref(), view.ip),
            (Some(7), Some("n"), "10.1.2.3".parse().ok())
        );
        let limits = ResourceLimits { memory_mb: Some(1_024), cpus: Some(0.5), pids: None };
        assert_eq!(view.limits, limits);
        assert_eq!(parse_instance(&view.instance()), Some(("p", "u")));
        assert_eq!(PodView::of("e", &pod), None);
    }
}
