//! Drift: lists what differs between the registry and what exists of engines, and repairs it when the operator asks.
//!
//! What is a difference and how it is repaired is decided as in reconciliation, which repairs most of it by itself; here
//! it is seen before, together with what is never repaired unasked.
//!
//! A difference is reported only if two comparisons in a row find it in the same state of the engine's row. Each
//! comparison lists what exists and then reads the registry, so the second listing lies between two readings of the same
//! row: nothing changed the engine meanwhile, and what was listed is what the row says, or it is a difference.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::drift::{
    Difference, Drift, DriftKind, DriftRepair, DriftRepairs, ListDrift, MAX_DIFFERENCES, RepairDrift,
    RepairOutcome, RepairResult,
};
use api::{EngineId, ErrorDetail};
use backend::{EngineListing, Target};
use futures::StreamExt as _;
use serde_json::json;

use super::FleetError;
use super::reconcile::{MAX_CONCURRENT_REPAIRS, Reconciler};
use super::supervisor::EXIT_CONFIRM_DELAY;
use crate::domain::drift::{DataKept, Finding, LostData, Observed, Registered, repair_of};
use crate::domain::{Actor, EngineOwner};
use crate::registry::{AuditEntry, EngineRow, Event, RegistryError};

/// The time between the two comparisons: whoever handles an exit waits for half of it, and has recorded it then.
const CONFIRM_DELAY: Duration = EXIT_CONFIRM_DELAY.saturating_mul(2);

/// Lists and repairs differences.
pub(crate) struct Drifts {
    reconciler: Arc<Reconciler>,
    /// Held during a comparison: it reads all engines, so there is one at a time.
    comparing: tokio::sync::Mutex<()>,
}

/// What was compared last, and the differences that both comparisons have found.
struct Compared {
    observed: Observed,
    findings: Vec<Finding>,
    /// The engines that have an instance, and the latest generation for which one was launched.
    latest_generations: HashMap<EngineId, i64>,
    /// The owners of engines that were destroyed, as far as they are about a difference.
    ended: HashMap<EngineId, EngineOwner>,
}

/// A difference that is to be repaired.
struct Order {
    finding: Finding,
    difference: Difference,
    /// The latest generation for which an instance of its engine was launched; 0 without one.
    latest_generation: i64,
    /// Whether its kind was named, so that data may be removed.
    removes_data: bool,
    dry_run: bool,
}

/// What a repair acts on, read right before.
enum Verified {
    Row(Box<EngineRow>),
    Instance(EngineListing),
    Data,
}

impl Drifts {
    pub(super) fn new(reconciler: &Arc<Reconciler>) -> Self {
        Self { reconciler: Arc::clone(reconciler), comparing: tokio::sync::Mutex::default() }
    }

    /// Lists the differences.
    pub(crate) async fn list(&self, query: ListDrift) -> Result<Drift, FleetError> {
        let ListDrift { kind, product_id } = query;
        let compared = self.compare().await?;
        let is_wanted = |difference: &Difference| {
            kind.is_none_or(|kind| difference.kind == kind)
                && (product_id.is_none() || difference.product_id == product_id)
        };
        let differences = compared.findings.iter().map(|finding| self.describe(&compared, finding));
        let mut differences: Vec<_> = differences.filter(is_wanted).collect();
        let (total, truncated) = bounds(differences.len());
        differences.truncate(MAX_DIFFERENCES);
        Ok(Drift { differences, total, truncated, data_compared: compared.observed.data.is_some() })
    }

    /// Repairs differences, or says what would be repaired.
    pub(crate) async fn repair(&self, request: RepairDrift) -> Result<DriftRepairs, FleetError> {
        let RepairDrift { dry_run, kinds, engine_id } = request;
        let dry_run = dry_run.unwrap_or(true);
        let compared = self.compare().await?;
        let is_wanted = |finding: &&Finding| {
            kinds.as_ref().is_none_or(|kinds| kinds.contains(&finding.kind))
                && engine_id.is_none_or(|engine_id| finding.engine_id == engine_id)
        };
        let wanted: Vec<_> = compared.findings.iter().filter(is_wanted).collect();
        let (total, truncated) = bounds(wanted.len());
        let orders = wanted.into_iter().take(MAX_DIFFERENCES).map(|finding| Order {
            finding: finding.clone(),
            difference: self.describe(&compared, finding),
            latest_generation: compared
                .latest_generations
                .get(&finding.engine_id)
                .copied()
                .unwrap_or_default(),
            removes_data: kinds.is_some(),
            dry_run,
        });
        let repairs: Vec<_> = orders.map(|order| self.perform(order)).collect();
        let results = futures::stream::iter(repairs).buffered(MAX_CONCURRENT_REPAIRS).collect().await;
        Ok(DriftRepairs { dry_run, results, total, truncated })
    }

    /// Compares twice, and returns what both comparisons find.
    async fn compare(&self) -> Result<Compared, FleetError> {
        let _comparing = self.comparing.lock().await;
        let first = self.observe().await?.compare();
        if !first.is_empty() {
            self.reconciler.shared.clock.sleep(CONFIRM_DELAY).await;
        }
        let observed = self.observe().await?;
        let mut findings = observed.compare();
        // Both are sorted, but an engine may have several of a kind.
        let mut known: HashMap<_, Vec<_>> = HashMap::new();
        for finding in first {
            known.entry((finding.kind, finding.engine_id)).or_default().push(finding);
        }
        findings.retain(|finding| {
            known.get(&(finding.kind, finding.engine_id)).is_some_and(|known| known.contains(finding))
        });
        let unknown = findings.iter().filter(|finding| finding.generation.is_none());
        let mut unknown: Vec<_> = unknown.map(|finding| finding.engine_id).collect();
        unknown.sort_unstable();
        unknown.dedup();
        let ended = self.reconciler.shared.registry.ended_engines(&unknown).await?;
        let latest_generations = observed.latest_generations();
        Ok(Compared { observed, findings, latest_generations, ended })
    }

    /// Lists what exists, and then reads the registry: an engine has its row before anything else of it exists.
    async fn observe(&self) -> Result<Observed, FleetError> {
        let shared = &self.reconciler.shared;
        let data = shared.backend.list_data(None).await?;
        let marks = if data.is_some() { shared.backend.warm_marks().await? } else { Vec::new() };
        let instances = shared.backend.list().await?;
        let mut engines = shared.registry.registered_engines().await?;
        for registered in engines.values_mut() {
            if let Registered::Engine(engine) = registered {
                engine.is_attended = self.reconciler.is_attended(&engine.owner);
            }
        }
        let data = data.map(|listed| {
            let mut data: BTreeMap<_, _> = listed.into_iter().map(|data| (data.engine_id, data)).collect();
            // What is left of warm engines is nobody's data, and the warm pool's work.
            for warm in marks.iter().filter(|warm| !engines.contains_key(warm)) {
                data.remove(warm);
            }
            data
        });
        Ok(Observed { engines, instances, data })
    }

    fn describe(&self, compared: &Compared, finding: &Finding) -> Difference {
        let Finding { kind, engine_id, instance, .. } = finding;
        let registered = match compared.observed.engines.get(engine_id) {
            Some(Registered::Engine(engine)) => Some(engine),
            Some(Registered::LeftAlone) | None => None,
        };
        let owner = registered.map(|engine| &engine.owner).or_else(|| compared.ended.get(engine_id));
        let repair = repair_of(*kind, self.data_check(compared, finding));
        let named = instance.as_ref().map(|listed| &listed.instance);
        let named = named.or_else(|| registered.filter(|_| concerns_instance(*kind))?.instance.as_ref());
        let status = registered.map_or("unknown", |engine| engine.status.as_str());
        let seen = match kind {
            DriftKind::OrphanInstance => {
                "an instance of an engine that the registry does not have".to_owned()
            }
            DriftKind::SupersededInstance => "an instance that runs beside a later one".to_owned(),
            DriftKind::UnexpectedInstance => {
                let runs =
                    if instance.as_ref().is_some_and(|listed| listed.running) { "runs" } else { "is left" };
                format!("the engine is {status}, and an instance of it {runs}")
            }
            DriftKind::MissingInstance => {
                "the registry says that the engine runs, and it does not".to_owned()
            }
            DriftKind::AbandonedOperation => {
                format!("an operation has claimed the engine, which is {status}, and nobody works on it")
            }
            DriftKind::RegistryBehind => {
                "the instance was launched for a change that the registry does not have".to_owned()
            }
            DriftKind::DataWithoutEngine => {
                let data = compared.observed.data.as_ref().and_then(|data| data.get(engine_id));
                let changed = data.map(|data| format!(", last changed at {}", data.changed_at));
                let was = if owner.is_some() { "was destroyed" } else { "the registry does not have" };
                format!("data of an engine that {was}{}", changed.unwrap_or_default())
            }
            DriftKind::EngineWithoutData => format!("the engine is {status}, and its brain is not there"),
        };
        Difference {
            kind: *kind,
            engine_id: *engine_id,
            product_id: owner.map(|owner| owner.product_id),
            user_id: owner.map(|owner| owner.user_id.clone()),
            instance: named.map(|instance| instance.as_str().to_owned()),
            seen,
            repair: repair.ok(),
            advice: repair.err().map(str::to_owned),
        }
    }

    /// Whether the data that a difference is about may be removed.
    fn data_check(&self, compared: &Compared, finding: &Finding) -> Option<Result<(), DataKept>> {
        let engine_id = finding.engine_id;
        let data = compared.observed.data.as_ref()?.get(&engine_id)?;
        let lost = LostData {
            was_destroyed: compared.ended.contains_key(&engine_id),
            has_instance: compared.latest_generations.contains_key(&engine_id),
            changed_at: data.changed_at,
        };
        Some(lost.check(self.reconciler.shared.clock.now()))
    }
}

impl Drifts {
    /// Repairs a difference, or says what would be done.
    async fn perform(&self, order: Order) -> RepairResult {
        let (outcome, error) = match order.difference.repair {
            None => (RepairOutcome::NoRepair, None),
            Some(DriftRepair::RemoveData) if !order.removes_data => (RepairOutcome::NeedsKind, None),
            Some(_) if order.dry_run => (RepairOutcome::WouldRepair, None),
            Some(repair) => match self.repair_one(&order, repair).await {
                Ok(true) => (RepairOutcome::Repaired, None),
                Ok(false) => (RepairOutcome::Gone, None),
                Err(error) => {
                    let error = ErrorDetail { code: error.code(), message: error.to_string() };
                    (RepairOutcome::Failed, Some(error))
                }
            },
        };
        RepairResult { difference: order.difference, outcome, error }
    }

    /// Repairs a difference if it is still there. Returns whether it was.
    async fn repair_one(&self, order: &Order, repair: DriftRepair) -> Result<bool, FleetError> {
        let Order { finding, difference, latest_generation, .. } = order;
        let reconciler = &self.reconciler;
        // If another orchestrator has taken over, the engines are its own.
        reconciler.shared.registry.check_leadership().await?;
        let Some(verified) = self.verify(finding).await? else { return Ok(false) };
        self.audit(difference, repair).await?;
        match (repair, verified) {
            (DriftRepair::RemoveInstance, Verified::Row(row)) => {
                let row = reconciler.adopt_generation(*row, *latest_generation).await?;
                reconciler.repair(&row).await?;
            }
            (DriftRepair::RemoveInstance, Verified::Instance(orphan)) => {
                reconciler.remove_orphan(&orphan).await?;
            }
            (DriftRepair::MarkFailed, Verified::Row(row)) => {
                let row = reconciler.adopt_generation(*row, *latest_generation).await?;
                reconciler.mark_failed(vec![row]).await?;
            }
            (DriftRepair::EndOperation, Verified::Row(row)) => reconciler.repair(&row).await?,
            (DriftRepair::AdoptGeneration, Verified::Row(row)) => {
                reconciler.adopt_generation(*row, *latest_generation).await?;
            }
            (DriftRepair::RemoveData, Verified::Data) => {
                // An instance that was launched meanwhile has a later generation, and keeps its data.
                let target = Target { engine_id: finding.engine_id, generation: 0 };
                reconciler.shared.backend.remove_with_data(target).await?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads again what a repair is about: `None` if the difference is gone, or something has begun to work on the engine.
    async fn verify(&self, finding: &Finding) -> Result<Option<Verified>, FleetError> {
        let shared = &self.reconciler.shared;
        let (kind, engine_id) = (finding.kind, finding.engine_id);
        if shared.registry.is_warm_engine(engine_id).await? {
            return Ok(None);
        }
        let row = shared.registry.engine_by_id(engine_id).await?;
        let is_same = match &row {
            Some(row) => {
                Some(row.generation) == finding.generation && !self.reconciler.is_attended(&row.owner)
            }
            None => finding.generation.is_none(),
        };
        if !is_same {
            return Ok(None);
        }
        // What is left of an instance that does not run stays until it is removed.
        if let Some(listed) = finding.instance.as_ref().filter(|listed| listed.running)
            && !shared.backend.is_running(&listed.instance).await?
        {
            return Ok(None);
        }
        Ok(match (kind, row) {
            (DriftKind::OrphanInstance, None) | (DriftKind::SupersededInstance, Some(_)) => {
                finding.instance.clone().map(Verified::Instance)
            }
            (DriftKind::MissingInstance, Some(row)) => {
                let runs = match &row.instance {
                    Some(instance) => shared.backend.is_running(instance).await?,
                    None => false,
                };
                (!runs).then_some(Verified::Row(Box::new(row)))
            }
            (
                DriftKind::UnexpectedInstance | DriftKind::AbandonedOperation | DriftKind::RegistryBehind,
                Some(row),
            ) => Some(Verified::Row(Box::new(row))),
            (DriftKind::DataWithoutEngine, None) => self.verify_data(engine_id).await?,
            _ => None,
        })
    }

    /// Whether data that may be removed is still there, and has not been changed since. Its engine was destroyed, which
    /// nothing undoes, and nothing can launch it again.
    async fn verify_data(&self, engine_id: EngineId) -> Result<Option<Verified>, FleetError> {
        let shared = &self.reconciler.shared;
        let listed = shared.backend.list_data(Some(engine_id)).await?.unwrap_or_default();
        let lost = listed.first().map(|data| LostData {
            was_destroyed: true,
            has_instance: false,
            changed_at: data.changed_at,
        });
        Ok(lost.filter(|lost| lost.check(shared.clock.now()).is_ok()).map(|_| Verified::Data))
    }

    /// Records in the product's audit log that the operator has a difference repaired, before anything is done: whatever
    /// dies then, it is known who asked for it. Without a product there is only the orchestrator's log.
    async fn audit(&self, difference: &Difference, repair: DriftRepair) -> Result<(), FleetError> {
        let Difference { kind, engine_id, product_id, user_id, .. } = difference;
        tracing::warn!(
            %engine_id,
            kind = kind.as_str(),
            repair = repair.as_str(),
            "An operator has a difference between the registry and what exists repaired."
        );
        let (Some(product_id), Some(user_id)) = (product_id, user_id) else { return Ok(()) };
        let entry = AuditEntry {
            at: self.reconciler.shared.clock.now(),
            event: Event::Repair,
            engine: Some((*engine_id, user_id.clone())),
            duration_ms: None,
            detail: json!({"kind": kind, "repair": repair, "reason": "requested"}),
            call: None,
        };
        match self.reconciler.shared.registry.append_audit(*product_id, &entry.by(Actor::Operator)).await {
            // Its product is gone with all that it had.
            Ok(()) | Err(RegistryError::ProductGone) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether a difference is about the instance that the row names.
const fn concerns_instance(kind: DriftKind) -> bool {
    matches!(kind, DriftKind::MissingInstance | DriftKind::RegistryBehind)
}

/// The number of differences, and whether that is more than an answer lists.
fn bounds(count: usize) -> (u64, bool) {
    (u64::try_from(count).unwrap_or(u64::MAX), count > MAX_DIFFERENCES)
}
