//! Checks the audit log independently, from its description: each product's rows are chained by hashes and
//! numbered without a gap, and replaying them gives exactly the settled states.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::registry::{AuditCursor, AuditRow, Snapshot};

/// What all rows so far come to.
#[derive(Debug, Default)]
pub(crate) struct AuditLogChecker {
    products: BTreeMap<String, ProductState>,
    /// Every engine that ever was provisioned.
    ever_provisioned: HashSet<String>,
}

#[derive(Debug, Default)]
struct ProductState {
    id: i64,
    hash: String,
    provisions: i64,
    destroys: i64,
    /// Each engine with its user and state.
    engines: BTreeMap<String, (String, String)>,
    /// The engines whose last sleep was interrupted: nobody may know when their schedules are due.
    interrupted_sleeps: HashSet<String>,
}

impl AuditLogChecker {
    /// How far it has been read.
    pub(crate) fn cursor(&self) -> AuditCursor {
        self.products.iter().map(|(product, product_state)| (product.clone(), product_state.id)).collect()
    }

    /// Reads the new rows of `snapshot`. Returns what is wrong with them, and what does not fit the engines.
    pub(crate) fn check_snapshot(&mut self, snapshot: &Snapshot) -> Vec<String> {
        let mut faults = Vec::new();
        for row in &snapshot.audit {
            let product_state = self.products.entry(row.product_id.clone()).or_default();
            if row.id != product_state.id + 1 {
                faults.push(format!("the audit log has row {} after row {}", row.id, product_state.id));
            }
            if row.hash != row_hash(row, &product_state.hash) {
                faults.push(format!("row {} of the audit log has a wrong hash: {row:?}", row.id));
            }
            (product_state.id, product_state.hash) = (row.id, row.hash.clone());
            if let Err(fault) = product_state.apply_row(row, &mut self.ever_provisioned) {
                faults.push(format!("row {} of the audit log is impossible: {fault}: {row:?}", row.id));
            }
        }
        self.check_engines(snapshot, &mut faults);
        faults
    }

    fn check_engines(&self, snapshot: &Snapshot, faults: &mut Vec<String>) {
        for product in &snapshot.products {
            let Some(product_state) = self.products.get(&product.product_id) else {
                faults.push(format!("{} has no audit log", product.product_id));
                continue;
            };
            if (product_state.id, &product_state.hash) != (product.audit_seq, &product.audit_hash) {
                faults.push(format!("the audit log ends at row {}, unlike {product:?}", product_state.id));
            }
            if (product_state.provisions, product_state.destroys) != (product.provisions, product.destroys) {
                let (provisions, destroys) = (product_state.provisions, product_state.destroys);
                faults.push(format!(
                    "the audit log has {provisions} provisions and {destroys} destroys: {product:?}"
                ));
            }
            let rows: BTreeMap<_, _> = snapshot
                .engines
                .iter()
                .filter(|engine| engine.product_id == product.product_id)
                .filter_map(|engine| {
                    let state = (engine.user_id.clone(), engine.settled_status()?.to_owned());
                    Some((engine.engine_id.clone(), state))
                })
                .collect();
            for (engine_id, state) in &rows {
                let replayed = product_state.engines.get(engine_id);
                if replayed != Some(state) {
                    faults.push(format!(
                        "{engine_id} is {state:?}, but {replayed:?} according to the audit log"
                    ));
                }
            }
            for (engine_id, state) in product_state.engines.iter().filter(|(id, _)| !rows.contains_key(*id)) {
                faults.push(format!("{engine_id} is gone, but {state:?} according to the audit log"));
            }
        }
    }
}

impl ProductState {
    fn apply_row(&mut self, row: &AuditRow, ever_provisioned: &mut HashSet<String>) -> Result<(), String> {
        let (Some(engine_id), Some(user_id)) = (&row.engine_id, &row.user_id) else {
            let ours = matches!(row.event.as_str(), "register" | "policy_update");
            return if ours { Ok(()) } else { Err("it names no engine".to_owned()) };
        };
        let detail: Value = serde_json::from_str(&row.detail).map_err(|error| error.to_string())?;
        let state = |name: &str| detail.get(name).and_then(Value::as_str);
        let before = self.engines.get(engine_id).map(|(_, state)| state.as_str());
        let (from, to) = (state("from"), state("to"));
        let event = row.event.as_str();
        if event == "rotate_key" {
            return if before == Some("running") { Ok(()) } else { Err(format!("it was {before:?}")) };
        }
        if from != before {
            return Err(format!("it was {before:?}"));
        }
        if !is_legal_transition(event, from, to) {
            return Err(format!("{event} cannot lead from {from:?} to {to:?}"));
        }
        if row.is_scheduled_wake() && !self.interrupted_sleeps.contains(engine_id) {
            return Err("no schedule is due, and the sleep before was not interrupted".to_owned());
        }
        if event == "sleep" && state("reason") == Some("interrupted") {
            self.interrupted_sleeps.insert(engine_id.clone());
        } else {
            self.interrupted_sleeps.remove(engine_id);
        }
        if event == "provision" {
            if !ever_provisioned.insert(engine_id.clone()) {
                return Err("the engine was provisioned before".to_owned());
            }
            if self.engines.values().any(|(user, _)| user == user_id) {
                return Err("the user has an engine already".to_owned());
            }
        }
        self.provisions += i64::from(event == "provision");
        self.destroys += i64::from(event == "destroy");
        match to {
            Some(to) => self.engines.insert(engine_id.clone(), (user_id.clone(), to.to_owned())),
            None => self.engines.remove(engine_id),
        };
        Ok(())
    }
}

/// The contract's transition table, as far as the audit log shows it.
fn is_legal_transition(event: &str, from: Option<&str>, to: Option<&str>) -> bool {
    match event {
        "provision" => from.is_none() && to == Some("running"),
        "provision_failed" => from.is_none() && to.is_none(),
        "start" => matches!(from, Some("stopped" | "sleeping" | "failed")) && to == Some("running"),
        "wake" => from == Some("sleeping") && to == Some("running"),
        "stop" => from == Some("running") && to == Some("stopped"),
        "sleep" => from == Some("running") && to == Some("sleeping"),
        "crash" => from.is_some_and(|from| from != "failed") && to == Some("failed"),
        "restart" => from == Some("failed") && matches!(to, Some("failed" | "running")),
        "destroy" => to.is_none(),
        _ => false,
    }
}

/// SHA-256 over the fields of a row and the hash of the row before it, each with its length before it, in 64
/// bits; a null is the largest length and nothing else.
fn row_hash(row: &AuditRow, before: &str) -> String {
    let fields = [
        Some("roundhouse audit 1".to_owned()),
        Some(before.to_owned()),
        Some(row.product_id.clone()),
        Some(row.id.to_string()),
        Some(row.at.to_string()),
        row.engine_id.clone(),
        row.user_id.clone(),
        Some(row.event.clone()),
        row.duration_ms.map(|duration| duration.to_string()),
        Some(row.detail.clone()),
    ];
    let mut hasher = Sha256::new();
    for field in fields {
        let length = field.as_ref().map_or(u64::MAX, |field| field.len() as u64);
        hasher.update(length.to_be_bytes());
        hasher.update(field.unwrap_or_default());
    }
    hex::encode(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::registry::{EngineRow, ProductRow};
    use super::*;

    /// A ledger of these events, states and engines, and the registry that it leads to.
    fn registry(events: &[(&str, Value, &str)]) -> Snapshot {
        let mut audit = Vec::new();
        let mut before = String::new();
        let mut product_state = ProductState::default();
        for (id, (event, detail, engine_id)) in (1..).zip(events) {
            let mut row = AuditRow {
                product_id: "prod_1".into(),
                id,
                at: id,
                engine_id: Some((*engine_id).into()),
                user_id: Some("ada".into()),
                event: (*event).into(),
                duration_ms: None,
                detail: detail.to_string(),
                hash: String::new(),
            };
            row.hash = row_hash(&row, &before);
            before.clone_from(&row.hash);
            let _ = product_state.apply_row(&row, &mut HashSet::new());
            audit.push(row);
        }
        let engines = product_state.engines.iter().map(|(engine_id, (user_id, status))| EngineRow {
            engine_id: engine_id.clone(),
            product_id: "prod_1".into(),
            user_id: user_id.clone(),
            status: status.clone(),
            prior_status: None,
            port: None,
            claim: None,
            key_hash: String::new(),
            restart_at: None,
            wake_at: None,
        });
        let product = ProductRow {
            product_id: "prod_1".into(),
            audit_seq: audit.len().try_into().unwrap(),
            audit_hash: before,
            provisions: product_state.provisions,
            destroys: product_state.destroys,
        };
        Snapshot { engines: engines.collect(), products: vec![product], audit }
    }

    fn provision() -> (&'static str, Value, &'static str) {
        ("provision", json!({"from": null, "to": "running"}), "eng_1")
    }

    fn valid_snapshot() -> Snapshot {
        registry(&[
            provision(),
            ("rotate_key", json!({"reason": "requested"}), "eng_1"),
            ("stop", json!({"from": "running", "to": "stopped"}), "eng_1"),
        ])
    }

    fn faults(snapshot: &Snapshot) -> usize {
        AuditLogChecker::default().check_snapshot(snapshot).len()
    }

    #[test]
    fn a_ledger_that_is_whole_is_right_however_it_is_read() {
        assert_eq!(AuditLogChecker::default().check_snapshot(&valid_snapshot()), Vec::<String>::new());
        let (mut checker, mut later) = (AuditLogChecker::default(), valid_snapshot());
        let mut early = registry(&[provision()]);
        assert_eq!(checker.check_snapshot(&early), Vec::<String>::new());
        assert_eq!(checker.cursor(), AuditCursor::from([("prod_1".to_owned(), 1)]));
        later.audit.remove(0);
        assert_eq!(checker.check_snapshot(&later), Vec::<String>::new());
        early.audit.clear();
        assert_ne!(checker.check_snapshot(&early), Vec::<String>::new(), "the registry went back");
    }

    #[test]
    fn every_change_of_a_row_is_seen() {
        let changes: [fn(&mut Snapshot); 9] = [
            |registry| registry.audit[1].at += 1,
            |registry| registry.audit[1].user_id = None,
            |registry| registry.audit[2].detail = json!({"from": "running", "to": "failed"}).to_string(),
            |registry| registry.audit[2].duration_ms = Some(0),
            |registry| drop(registry.audit.remove(1)),
            |registry| drop(registry.audit.pop()),
            |registry| registry.products[0].provisions += 1,
            |registry| registry.engines[0].status = "running".into(),
            |registry| registry.engines.clear(),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut registry = valid_snapshot();
            change(&mut registry);
            assert_ne!(faults(&registry), 0, "change {number}");
        }
    }

    #[test]
    fn an_engine_without_schedules_is_woken_only_after_an_interrupted_sleep() {
        let sleep =
            |reason| ("sleep", json!({"from": "running", "to": "sleeping", "reason": reason}), "eng_1");
        let wake = |reason| ("wake", json!({"from": "sleeping", "to": "running", "reason": reason}), "eng_1");
        for (moves, wrong) in [
            (vec![provision(), sleep("interrupted"), wake("schedule")], false),
            (vec![provision(), sleep("idle"), wake("admit")], false),
            (vec![provision(), sleep("idle"), wake("schedule")], true),
            (
                vec![provision(), sleep("interrupted"), wake("schedule"), sleep("idle"), wake("schedule")],
                true,
            ),
        ] {
            assert_eq!(faults(&registry(&moves)) > 0, wrong, "{moves:?}");
        }
    }

    #[test]
    fn a_move_that_the_contract_does_not_have_is_seen() {
        let wake = ("wake", json!({"from": "running", "to": "running"}), "eng_1");
        let stop = ("stop", json!({"from": "sleeping", "to": "stopped"}), "eng_1");
        let again = ("destroy", json!({"from": "running", "to": null}), "eng_1");
        assert_eq!(faults(&registry(&[provision(), again.clone()])), 0);
        for moves in [vec![provision(), wake], vec![provision(), stop], vec![provision(), again, provision()]]
        {
            assert_ne!(faults(&registry(&moves)), 0, "{moves:?}");
        }
    }
}
