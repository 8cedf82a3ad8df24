//! Fencing by generation: a call never touches an instance that was launched for a later generation of the engine.
//!
//! An orchestrator that was frozen or disconnected may be replaced without noticing, and then finish a call
//! that it had begun before. The registry refuses its writes; the fence refuses its actions on processes and
//! containers.

use api::EngineId;

use super::BackendError;

/// The engine that a call acts on, and the generation of the engine's row for which the caller acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The engine.
    pub engine_id: EngineId,
    /// The generation for which the caller acts.
    pub generation: i64,
}

/// The processes or containers of an engine, separated by whether a call may touch them.
pub(super) struct Fenced<T> {
    /// Launched for the target's generation or an earlier one: the caller may act on them.
    pub(super) own: Vec<T>,
    /// The highest generation above the target's for which anything was launched.
    later: Option<i64>,
}

impl Target {
    /// Separates the engine's processes or containers, each given with the generation it was launched for.
    pub(super) fn fence<T>(self, found: impl IntoIterator<Item = (i64, T)>) -> Fenced<T> {
        let mut fenced = Fenced { own: Vec::new(), later: None };
        for (generation, item) in found {
            if generation > self.generation {
                fenced.later = fenced.later.max(Some(generation));
            } else {
                fenced.own.push(item);
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
