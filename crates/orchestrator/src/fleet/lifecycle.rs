//! The one table that decides every move of an engine: what is there × what is asked → what to do.
//!
//! Pure: it reads nothing and does nothing. An engine that is being changed keeps its settled state and
//! carries a [`Change`]; `provisioning` and `destroying` are the only states that show one.

use contract::orchestrator::{DenialReason, EngineStatus};

/// A change of an engine, as its row's claim names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Its first boot.
    Provision,
    /// A boot that the product asked for.
    Start,
    /// A boot because its user was admitted.
    Wake,
    /// To rest, because the product asked for it.
    Stop,
    /// To rest, until its user is admitted again.
    Sleep,
    /// A boot that the supervisor attempts after a failure.
    Restart,
    /// To another key, while it runs.
    Rotate,
    /// Out of existence.
    Destroy,
}

impl Change {
    const ALL: [Self; 8] = [
        Self::Provision,
        Self::Start,
        Self::Wake,
        Self::Stop,
        Self::Sleep,
        Self::Restart,
        Self::Rotate,
        Self::Destroy,
    ];

    /// The change as the registry writes it.
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

    /// Reads what [`Change::as_str`] writes.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|change| change.as_str() == name)
    }
}

/// An engine as the table sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineView {
    pub(crate) status: EngineStatus,
    /// The change under way.
    pub(crate) change: Option<Change>,
    /// Whether a restart is due so soon that a caller may wait for it.
    pub(crate) restart_due: bool,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// `POST /engines/provision`.
    Provision,
    /// `POST /engines/{user_id}/admit`.
    Admit {
        /// Provision if there is no engine.
        provision: bool,
        /// Wake if it sleeps.
        wake: bool,
    },
    /// `POST /engines/{user_id}/start`.
    Start,
    /// `POST /engines/{user_id}/stop`.
    Stop,
    /// `POST /engines/{user_id}/rotate-key`.
    Rotate,
    /// Put to sleep by the orchestrator itself.
    Sleep {
        /// Only if nobody needs it; else whoever does has to do without.
        if_idle: bool,
    },
    /// Restarted by the supervisor.
    Restart,
    /// `DELETE /engines/{user_id}`.
    Destroy,
    /// `GET /engines/{user_id}`.
    Get,
    /// A call to the engine itself, passed on: only to one that runs.
    Proxy,
    /// `PUT /engines/{user_id}/version`.
    ChangeVersion,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The engine as it is, is what was asked for.
    Pass,
    /// Not admitted, and nothing changes.
    Deny(DenialReason),
    /// Refused, and nothing changes.
    Refuse(Refusal),
    /// Claim the engine and make this change.
    Perform(Change),
    /// Wait for the change under way and share its outcome.
    Share,
    /// Wait for the change under way, then decide anew.
    Wait,
    /// Wait for the restart that is due, then decide anew.
    AwaitRestart,
}

/// Why a trigger is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is none.
    NotFound,
    /// There is one.
    AlreadyExists,
    /// It runs, or is about to.
    AlreadyRunning,
    /// It does not run.
    NotRunning,
}

/// Decides what to do about `trigger`, given the engine, if there is one.
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
        Trigger::ChangeVersion => match (status, change) {
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

/// Whether a caller with `trigger`, who would have made a change of their own, shares the outcome of
/// `change`, which someone else is just claiming.
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
        | Trigger::ChangeVersion => false,
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
        | Trigger::ChangeVersion => Decision::Refuse(Refusal::NotFound),
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
        // Without a claim nobody finishes these; the caller who waits sees to it.
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

/// What only a running engine can do: `make`.
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
#[path = "lifecycle_tests.rs"]
mod tests;
