//! Compares the registry with what exists of engines. Reconciliation repairs what is found here, and the operator
//! reads it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use api::drift::{DriftKind, DriftRepair};
use api::orchestrator::EngineStatus;
use api::{EngineId, Timestamp};
use backend::{DataListing, EngineListing, Instance};

use super::EngineOwner;

/// How long data must not have changed before it is removed: somebody may be at work on it.
pub(crate) const MIN_DATA_AGE: Duration = Duration::from_hours(24);

/// What the registry has of an engine.
#[derive(Clone, Debug)]
pub(crate) enum Registered {
    /// An engine that is compared.
    Engine(KnownEngine),
    /// One that is left alone, whatever exists of it: a warm engine, one that this version cannot read, or one that has
    /// changed since the registry was read.
    LeftAlone,
}

/// An engine as the registry has it.
#[derive(Clone, Debug)]
pub(crate) struct KnownEngine {
    pub(crate) owner: EngineOwner,
    pub(crate) status: EngineStatus,
    /// Whether an operation has claimed it.
    pub(crate) is_claimed: bool,
    /// Whether this orchestrator has an operation on it.
    pub(crate) is_attended: bool,
    /// The instance that is to run.
    pub(crate) instance: Option<Instance>,
    pub(crate) generation: i64,
}

/// What is compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) engines: HashMap<EngineId, Registered>,
    pub(crate) instances: Vec<EngineListing>,
    /// The engines' data; `None` if it is not compared.
    pub(crate) data: Option<BTreeMap<EngineId, DataListing>>,
}

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) kind: DriftKind,
    pub(crate) engine_id: EngineId,
    /// The instance, if it is about one.
    pub(crate) instance: Option<EngineListing>,
    /// The generation of the engine's row; `None` without a row. As long as it is the same, the row is the same.
    pub(crate) generation: Option<i64>,
}

/// The instances that run.
type Running<'a> = HashMap<(EngineId, &'a Instance), i64>;

impl Observed {
    /// Returns the differences, sorted by kind and engine. An engine that an operation is at has none.
    pub(crate) fn compare(&self) -> Vec<Finding> {
        let running = self.instances.iter().filter(|listed| listed.running);
        let running =
            running.map(|listed| ((listed.engine_id, &listed.instance), listed.generation)).collect();
        let latest = self.latest_generations();
        let mut findings: Vec<_> = self
            .instances
            .iter()
            .filter_map(|listed| {
                let kind = self.judge_instance(listed, &running)?;
                Some(self.finding(kind, listed.engine_id, Some(listed)))
            })
            .collect();
        for (engine_id, registered) in &self.engines {
            let Registered::Engine(engine) = registered else { continue };
            let kind = judge_engine(*engine_id, engine, &running, latest.get(engine_id).copied());
            findings.extend(kind.map(|kind| self.finding(kind, *engine_id, None)));
        }
        findings.extend(self.compare_data());
        findings.sort_by_key(|found| (found.kind, found.engine_id));
        findings
    }

    fn finding(&self, kind: DriftKind, engine_id: EngineId, instance: Option<&EngineListing>) -> Finding {
        let generation = match self.engines.get(&engine_id) {
            Some(Registered::Engine(engine)) => Some(engine.generation),
            Some(Registered::LeftAlone) | None => None,
        };
        Finding { kind, engine_id, instance: instance.cloned(), generation }
    }

    /// The latest generation for which each engine was launched.
    pub(crate) fn latest_generations(&self) -> HashMap<EngineId, i64> {
        let mut latest = HashMap::new();
        for listed in &self.instances {
            let known: &mut i64 = latest.entry(listed.engine_id).or_default();
            *known = listed.generation.max(*known);
        }
        latest
    }

    fn judge_instance(&self, listed: &EngineListing, running: &Running<'_>) -> Option<DriftKind> {
        let engine = match self.engines.get(&listed.engine_id) {
            None => return Some(DriftKind::OrphanInstance),
            Some(Registered::LeftAlone) => return None,
            Some(Registered::Engine(engine)) => engine,
        };
        if engine.is_claimed || engine.is_attended {
            return None;
        }
        match engine.status {
            EngineStatus::Running => {
                let current = running.get(&(listed.engine_id, engine.instance.as_ref()?))?;
                (listed.running && listed.generation < *current).then_some(DriftKind::SupersededInstance)
            }
            // The remains of a failed engine are kept for their log.
            EngineStatus::Failed if !listed.running => None,
            EngineStatus::Failed
            | EngineStatus::Sleeping
            | EngineStatus::Stopped
            | EngineStatus::Provisioning
            | EngineStatus::Destroying => Some(DriftKind::UnexpectedInstance),
        }
    }

    fn compare_data(&self) -> Vec<Finding> {
        let Some(data) = &self.data else { return Vec::new() };
        let unknown = data.keys().filter(|engine_id| !self.engines.contains_key(engine_id));
        let unknown = unknown.map(|engine_id| self.finding(DriftKind::DataWithoutEngine, *engine_id, None));
        let without = self.engines.iter().filter(|(engine_id, registered)| {
            let Registered::Engine(engine) = registered else { return false };
            let has_data = data.get(engine_id).is_some_and(|data| data.has_brain);
            !engine.is_claimed && !engine.is_attended && !has_data
        });
        let without = without.map(|(id, _)| self.finding(DriftKind::EngineWithoutData, *id, None));
        unknown.chain(without).collect()
    }

    /// The engines of which instances were found.
    pub(crate) fn engines_with_instances(&self) -> BTreeSet<EngineId> {
        self.instances.iter().map(|listed| listed.engine_id).collect()
    }
}

fn judge_engine(
    engine_id: EngineId,
    engine: &KnownEngine,
    running: &Running<'_>,
    latest: Option<i64>,
) -> Option<DriftKind> {
    if engine.is_attended {
        return None;
    }
    if engine.is_claimed {
        return Some(DriftKind::AbandonedOperation);
    }
    if engine.status != EngineStatus::Running {
        return None;
    }
    let runs = engine.instance.as_ref().is_some_and(|instance| running.contains_key(&(engine_id, instance)));
    if !runs {
        return Some(DriftKind::MissingInstance);
    }
    latest.is_some_and(|latest| latest > engine.generation).then_some(DriftKind::RegistryBehind)
}

/// What is known of data that no engine of the registry has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostData {
    /// Whether the audit log says that its engine was destroyed.
    pub(crate) was_destroyed: bool,
    /// Whether an instance uses it.
    pub(crate) has_instance: bool,
    pub(crate) changed_at: Timestamp,
}

/// Why data is not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataKept {
    /// The registry has never had its engine, as far as its audit log says: it may be older than the data.
    Unknown,
    /// An instance uses it.
    InUse,
    /// It was changed less than [`MIN_DATA_AGE`] ago.
    Recent,
}

impl LostData {
    /// Whether it may be removed at `now`.
    pub(crate) fn check(self, now: Timestamp) -> Result<(), DataKept> {
        let age_ms = now.unix_ms().saturating_sub(self.changed_at.unix_ms());
        let is_old = u128::try_from(age_ms).is_ok_and(|age_ms| age_ms >= MIN_DATA_AGE.as_millis());
        if !self.was_destroyed {
            Err(DataKept::Unknown)
        } else if self.has_instance {
            Err(DataKept::InUse)
        } else if is_old {
            Ok(())
        } else {
            Err(DataKept::Recent)
        }
    }
}

impl DataKept {
    /// What a person is to do.
    pub(crate) const fn advice(self) -> &'static str {
        match self {
            Self::Unknown => {
                "the audit log does not know this engine: the registry may have been restored from a backup that is \
                 older than the engine, and this may be a user's data. Restore a later backup of the registry, or \
                 move the folder away by hand"
            }
            Self::InUse => "an instance of this engine exists: repair that first, then look again",
            Self::Recent => {
                "it was changed less than 24 hours ago, so somebody may be at work on it: look again later"
            }
        }
    }
}

/// What the repair of a difference does. `data` is about the data of an engine that the registry does not have.
pub(crate) fn repair_of(
    kind: DriftKind,
    data: Option<Result<(), DataKept>>,
) -> Result<DriftRepair, &'static str> {
    match kind {
        DriftKind::OrphanInstance | DriftKind::SupersededInstance | DriftKind::UnexpectedInstance => {
            Ok(DriftRepair::RemoveInstance)
        }
        DriftKind::MissingInstance => Ok(DriftRepair::MarkFailed),
        DriftKind::AbandonedOperation => Ok(DriftRepair::EndOperation),
        DriftKind::RegistryBehind => Ok(DriftRepair::AdoptGeneration),
        DriftKind::DataWithoutEngine => match data.unwrap_or(Err(DataKept::Unknown)) {
            Ok(()) => Ok(DriftRepair::RemoveData),
            Err(kept) => Err(kept.advice()),
        },
        DriftKind::EngineWithoutData => Err(
            "restore the engine's data, from a backup or by mounting what is missing; or delete the engine, which \
             gives its data up",
        ),
    }
}

#[cfg(test)]
#[path = "../../tests/unit/domain/drift.rs"]
mod tests;
