//! The one table that decides every transition of an engine: current state × trigger → decision.
//!
//! It is pure: it reads nothing and has no effects. An engine that is being changed keeps its settled state and
//! carries a [`Change`]; `provisioning` and `destroying` are the only states that show a change themselves.

use api::orchestrator::{DenialReason, EngineStatus};

/// A change of an engine, as the claim in its row names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The first boot.
    Provision,
    /// A boot that the product requested.
    Start,
    /// A boot because the user was admitted.
    Wake,
    /// A stop that the product requested.
    Stop,
    /// A stop until the user is admitted again.
    Sleep,
    /// A boot that the supervisor attempts after a failure.
    Restart,
    /// A replacement of the key of a running engine.
    Rotate,
    /// A removal of the engine and its data.
    Destroy,
}

impl Change {
    /// Whether an engine runs after it that did not run before.
    pub(crate) const fn starts_engine(self) -> bool {
        match self {
            Self::Provision | Self::Start | Self::Wake | Self::Restart => true,
            Self::Stop | Self::Sleep | Self::Rotate | Self::Destroy => false,
        }
    }

    /// All changes.
    pub(crate) const ALL: [Self; 8] = [
        Self::Provision,
        Self::Start,
        Self::Wake,
        Self::Stop,
        Self::Sleep,
        Self::Restart,
        Self::Rotate,
        Self::Destroy,
    ];

    /// The name of the change in the registry.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Provision => "provision",
            Self::Start => "start",
            Self::Wake => "wake",
            Self::Stop => "stop",
            Self::Sleep => "sleep",
            Self::Restart => "restart",
            Self::Rotate => "rotate",
            Self::Destroy => "destroy",
        }
    }

    /// Parses what [`Change::as_str`] returns.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|change| change.as_str() == name)
    }
}

/// The inputs of the table about an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineView {
    pub(crate) status: EngineStatus,
    /// The change under way.
    pub(crate) change: Option<Change>,
    /// Whether a restart is due so soon that a caller may wait for it.
    pub(crate) restart_due: bool,
}

/// What triggers a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// `POST /engines/provision`.
    Provision,
    /// `POST /engines/{user_id}/admit`.
    Admit {
        /// Provision an engine if there is none.
        provision: bool,
        /// Wake the engine if it sleeps.
        wake: bool,
    },
    /// `POST /engines/{user_id}/start`.
    Start,
    /// `POST /engines/{user_id}/stop`.
    Stop,
    /// `POST /engines/{user_id}/rotate-key`.
    Rotate,
    /// The orchestrator puts the engine to sleep.
    Sleep {
        /// Only if nobody needs the engine; otherwise the sleep takes precedence over callers.
        if_idle: bool,
    },
    /// The supervisor restarts the engine.
    Restart,
    /// `DELETE /engines/{user_id}`.
    Destroy,
    /// `GET /engines/{user_id}`.
    Get,
    /// A call proxied to the engine, which has to run.
    Proxy,
    /// `PUT /engines/{user_id}/version`.
    ChangeVersion,
    /// The engine is started for maintenance: to be backed up although it does not run, or to be restored.
    Maintain,
}

/// What to do about a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The engine already is as requested.
    Pass,
    /// The user is not admitted, and nothing changes.
    Deny(DenialReason),
    /// The request is refused, and nothing changes.
    Refuse(Refusal),
    /// Claim the engine and perform this change.
    Perform(Change),
    /// Wait for the change under way and share its outcome.
    Share,
    /// Wait for the change under way, then decide again.
    Wait,
    /// Wait for the restart that is due, then decide again.
    AwaitRestart,
}

/// Why a trigger is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The user has no engine.
    NotFound,
    /// The user has an engine already.
    AlreadyExists,
    /// The engine runs, or is about to.
    AlreadyRunning,
    /// The engine does not run.
    NotRunning,
}

/// Decides what to do about `trigger` for the engine, if there is one.
pub(crate) fn decide(engine: Option<EngineView>, trigger: Trigger) -> Decision {
    let Some(view) = engine else { return without_engine(trigger) };
    let EngineView { status, change, .. } = view;
    match trigger {
        Trigger::Provision => Decision::Refuse(Refusal::AlreadyExists),
        Trigger::Admit { wake, .. } => admit(view, wake),
        Trigger::Start => start(status, change),
        Trigger::Stop => while_running(status, change, Change::Stop),
        Trigger::Rotate => while_running(status, change, Change::Rotate),
        Trigger::Sleep { .. } => while_running(status, change, Change::Sleep),
        Trigger::Restart => match (status, change) {
            (EngineStatus::Failed, None) => Decision::Perform(Change::Restart),
            _ => Decision::Refuse(Refusal::NotRunning),
        },
        Trigger::Destroy => match status {
            EngineStatus::Destroying => Decision::Refuse(Refusal::NotFound),
            EngineStatus::Provisioning
            | EngineStatus::Running
            | EngineStatus::Sleeping
            | EngineStatus::Stopped
            | EngineStatus::Failed => Decision::Perform(Change::Destroy),
        },
        Trigger::ChangeVersion | Trigger::Maintain => match (status, change) {
            (EngineStatus::Destroying, _) => Decision::Refuse(Refusal::NotFound),
            (
                EngineStatus::Running | EngineStatus::Sleeping | EngineStatus::Stopped | EngineStatus::Failed,
                None,
            ) => Decision::Perform(Change::Start),
            (
                EngineStatus::Provisioning
                | EngineStatus::Running
                | EngineStatus::Sleeping
                | EngineStatus::Stopped
                | EngineStatus::Failed,
                _,
            ) => Decision::Wait,
        },
        Trigger::Get if change == Some(Change::Rotate) => Decision::Wait,
        Trigger::Get => Decision::Pass,
        Trigger::Proxy => match while_running(status, change, Change::Stop) {
            Decision::Perform(_) => Decision::Pass,
            decision => decision,
        },
    }
}

/// Whether a caller with `trigger`, who would have made a change of their own, shares the outcome of `change`,
/// which another caller is just claiming.
pub(crate) const fn can_share(trigger: Trigger, change: Change) -> bool {
    match trigger {
        Trigger::Admit { .. } => {
            matches!(change, Change::Provision | Change::Start | Change::Wake | Change::Restart)
        }
        Trigger::Start => matches!(change, Change::Start | Change::Wake | Change::Restart),
        Trigger::Provision
        | Trigger::Stop
        | Trigger::Rotate
        | Trigger::Sleep { .. }
        | Trigger::Restart
        | Trigger::Destroy
        | Trigger::Get
        | Trigger::Proxy
        | Trigger::ChangeVersion
        | Trigger::Maintain => false,
    }
}

const fn without_engine(trigger: Trigger) -> Decision {
    match trigger {
        Trigger::Provision | Trigger::Admit { provision: true, .. } => Decision::Perform(Change::Provision),
        Trigger::Admit { provision: false, .. } => Decision::Deny(DenialReason::EngineNotFound),
        Trigger::Start
        | Trigger::Stop
        | Trigger::Rotate
        | Trigger::Sleep { .. }
        | Trigger::Restart
        | Trigger::Destroy
        | Trigger::Get
        | Trigger::Proxy
        | Trigger::ChangeVersion
        | Trigger::Maintain => Decision::Refuse(Refusal::NotFound),
    }
}

const fn admit(view: EngineView, wake: bool) -> Decision {
    match view.change {
        Some(Change::Provision | Change::Start | Change::Wake | Change::Restart) => return Decision::Share,
        Some(Change::Stop | Change::Sleep | Change::Rotate | Change::Destroy) => return Decision::Wait,
        None => {}
    }
    match view.status {
        EngineStatus::Running => Decision::Pass,
        EngineStatus::Sleeping if wake => Decision::Perform(Change::Wake),
        EngineStatus::Sleeping => Decision::Deny(DenialReason::EngineSleeping),
        EngineStatus::Stopped => Decision::Deny(DenialReason::EngineStopped),
        EngineStatus::Failed if view.restart_due => Decision::AwaitRestart,
        EngineStatus::Failed => Decision::Deny(DenialReason::EngineUnhealthy),
        // Without a claim nobody finishes these; the waiting caller starts the repair.
        EngineStatus::Provisioning | EngineStatus::Destroying => Decision::Wait,
    }
}

const fn start(status: EngineStatus, change: Option<Change>) -> Decision {
    match (status, change) {
        (EngineStatus::Provisioning, _) | (EngineStatus::Running, None | Some(Change::Rotate)) => {
            Decision::Refuse(Refusal::AlreadyRunning)
        }
        (EngineStatus::Destroying, _) => Decision::Refuse(Refusal::NotFound),
        (_, Some(Change::Start | Change::Wake | Change::Restart)) => Decision::Share,
        (_, Some(Change::Provision | Change::Stop | Change::Sleep | Change::Rotate | Change::Destroy)) => {
            Decision::Wait
        }
        (EngineStatus::Sleeping | EngineStatus::Stopped | EngineStatus::Failed, None) => {
            Decision::Perform(Change::Start)
        }
    }
}

/// The decision for a change that only a running engine can undergo: `make`.
const fn while_running(status: EngineStatus, change: Option<Change>, make: Change) -> Decision {
    match (status, change) {
        (EngineStatus::Destroying, _) => Decision::Refuse(Refusal::NotFound),
        (_, Some(Change::Stop | Change::Sleep | Change::Rotate)) => Decision::Wait,
        (EngineStatus::Running, None) => Decision::Perform(make),
        (
            EngineStatus::Provisioning
            | EngineStatus::Running
            | EngineStatus::Sleeping
            | EngineStatus::Stopped
            | EngineStatus::Failed,
            _,
        ) => Decision::Refuse(Refusal::NotRunning),
    }
}

#[cfg(test)]
#[path = "../../tests/unit/domain/lifecycle.rs"]
mod tests;
