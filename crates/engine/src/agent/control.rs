//! The orchestrator's control interface: quiesces the engine and reports its activity.

use api::Timestamp;
use api::rpc::{Activity, UNCONFINED};

use super::{Agent, AgentError};

impl Agent {
    /// Refuses to begin or resume turns from now on, unless a turn is running, a tool or skill is being called
    /// outside a turn, an import is running, or a schedule is due soon. Returns whether the engine is quiesced. The
    /// state expires by itself.
    pub fn quiesce(&self) -> bool {
        // A stop would interrupt an import.
        let mut turns = self.registry.lock();
        let quiesced =
            !self.is_importing() && !self.is_due_soon() && turns.quiesce(self.services.clock.monotonic());
        drop(turns);
        if quiesced {
            tracing::info!("The engine is quiesced and refuses new turns for now.");
        }
        quiesced
    }

    /// Refuses to begin or resume turns and to change schedules from now on, whatever is running: the engine is about
    /// to be stopped. The state expires by itself.
    pub fn force_quiesce(&self) {
        self.registry.lock().force_quiesce(self.services.clock.monotonic());
        tracing::info!("The engine is about to be stopped and refuses new turns for now.");
    }

    /// Allows turns to begin and resume again.
    pub fn lift_quiesce(&self) {
        self.registry.lock().lift_quiesce();
        tracing::info!("The engine accepts turns again.");
    }

    /// Returns the engine's current activity.
    pub fn activity(&self) -> Result<Activity, AgentError> {
        let running_turns = u64::try_from(self.registry.lock().active_count()).unwrap_or(u64::MAX);
        Ok(Activity {
            running_turns,
            pending_hitl: self.brain.pending_count()?,
            last_activity_at: self.last_activity_at()?,
            confinement: self
                .services
                .sandbox
                .as_ref()
                .map_or_else(|| UNCONFINED.to_owned(), |sandbox| sandbox.confinement().level.clone()),
        })
    }

    /// When a turn was last active: the time of its latest event, or, before this start of the engine, of its
    /// latest stored change.
    fn last_activity_at(&self) -> Result<Option<Timestamp>, AgentError> {
        Ok(self.event_logs.last_published_at().max(self.brain.last_change_at()?))
    }
}
