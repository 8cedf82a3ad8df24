//! What an orchestrator asks of the engine: to hold still, and what it is at.

use contract::Timestamp;
use contract::rpc::{Activity, UNCONFINED};

use super::{Agent, AgentError};

impl Agent {
    /// From now on no turn begins or goes on, unless one is at work, a tool or a skill is run without one, or an import
    /// is under way; whether that is so. It lapses by itself.
    pub fn quiesce(&self) -> bool {
        // A stop would cut an import off.
        let mut turns = self.registry.lock();
        let quiesced = !self.is_importing() && turns.quiesce(self.services.clock.monotonic());
        drop(turns);
        if quiesced {
            tracing::info!("The engine is quiesced: turns are refused for a while.");
        }
        quiesced
    }

    /// Turns may begin and go on again.
    pub fn lift_quiesce(&self) {
        self.registry.lock().lift_quiesce();
        tracing::info!("The engine is not quiesced any more.");
    }

    /// What the engine is at.
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
                .map_or_else(|| UNCONFINED.to_owned(), |leash| leash.confinement().level.clone()),
        })
    }

    /// When a turn last did something: by its events, or, before this start of the engine, by what it has stored.
    fn last_activity_at(&self) -> Result<Option<Timestamp>, AgentError> {
        Ok(self.event_logs.last_published_at().max(self.brain.last_change_at()?))
    }
}
