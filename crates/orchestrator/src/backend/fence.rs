//! The fence around everything that acts on an engine: what a later change of its row launched is never touched.
//!
//! An orchestrator can lose its registry without noticing, frozen or cut off, and carry out a call afterwards that it
//! had begun before. The registry refuses what it writes then; this refuses what it does to processes and containers.

use api::EngineId;

use super::BackendError;
use crate::fault_injection::{self, Mutation};

/// The engine that a call acts on, and the generation of its row that the caller acts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) engine_id: EngineId,
    pub(crate) generation: i64,
}

/// What there is of an engine, as a target's caller may see it.
pub(super) struct Fenced<T> {
    /// Launched for the target's generation or an earlier one: the caller's to act on.
    pub(super) own: Vec<T>,
    /// The highest generation above the target's for which anything was launched.
    later: Option<i64>,
}

impl Target {
    /// Splits what there is of the engine, each with the generation that it was launched for.
    pub(super) fn fence<T>(self, found: impl IntoIterator<Item = (i64, T)>) -> Fenced<T> {
        let mut fenced = Fenced { own: Vec::new(), later: None };
        for (generation, what) in found {
            if generation > self.generation && !fault_injection::active(Mutation::IgnoreGenerations) {
                fenced.later = fenced.later.max(Some(generation));
            } else {
                fenced.own.push(what);
            }
        }
        fenced
    }
}

impl<T> Fenced<T> {
    /// Fails if anything was launched for a later generation.
    pub(super) fn reject_superseded(&self) -> Result<(), BackendError> {
        self.later.map_or(Ok(()), |generation| Err(BackendError::Superseded { generation }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_later_is_out_of_reach_and_said() {
        let target = Target { engine_id: EngineId::new(), generation: 5 };
        let fenced =
            target.fence([(0, "of an earlier version"), (5, "its own"), (7, "later"), (9, "latest")]);
        assert_eq!(fenced.own, ["of an earlier version", "its own"]);
        assert_eq!(fenced.reject_superseded(), Err(BackendError::Superseded { generation: 9 }));
        assert_eq!(target.fence([(4, "earlier")]).reject_superseded(), Ok(()));
    }
}
