//! The rules that must hold after each start: rows, instances, ports and folders match; keys are accepted;
//! acknowledged changes are there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;

use super::aftermath::{FleetSnapshot, accepts_key, capture};
use super::context::FleetContext;
use super::deployment::Deployment;
use super::engine_host::EngineInstance;
use super::load::{PERSISTENT_TASK, run_persistent_turn};
use super::registry::{AuditCursor, AuditRow, EngineRow};
use super::tenant_users::{Call, ExpectedState, Op, Outcome, TenantUser, text_field};
use crate::client::CallOutcome;

/// How long an inconsistency may last after a start. Longer than the reconciliation interval of the orchestrator.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_mins(1);
/// The interval between two checks, with processes.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// From this duration on, settling is counted as slow.
const SLOW_SETTLE_THRESHOLD: Duration = Duration::from_secs(5);

/// Waits at most `timeout` until everything matches, and returns the snapshot; each remaining mismatch is a
/// violation. Exited containers may be left unless all must be `tidy`: the orchestrator removes them gradually
/// after a kill.
pub(crate) async fn settle(
    context: &Arc<FleetContext>,
    deployment: &Arc<Deployment>,
    cursor: &AuditCursor,
    (timeout, tidy): (Duration, bool),
) -> anyhow::Result<FleetSnapshot> {
    let begin = Instant::now();
    let mut last = Vec::new();
    loop {
        let snapshot = capture(deployment, cursor).await?;
        let mut faults = check_consistency(&snapshot, tidy);
        if faults.is_empty() {
            faults = check_users(context, &snapshot).await?;
        }
        if faults.is_empty() {
            if begin.elapsed() > SLOW_SETTLE_THRESHOLD {
                context.counters.count("starts that took long to settle");
                // The kind of fault, without the engine's id.
                let about = |fault: &String| fault.split(':').next().map(str::to_owned).unwrap_or_default();
                for about in last.iter().map(about).collect::<BTreeSet<_>>() {
                    context.counters.count(format!("took long to settle: {about}"));
                }
            }
            return Ok(snapshot);
        }
        if begin.elapsed() > timeout {
            for fault in faults {
                context
                    .counters
                    .record_violation(format!("still not settled {timeout:?} after a start: {fault}"));
            }
            return Ok(snapshot);
        }
        last = faults;
        tokio::time::sleep(POLL_INTERVAL * context.time_scale).await;
    }
}

/// Returns the mismatches among rows, instances, ports and folders.
fn check_consistency(snapshot: &FleetSnapshot, tidy: bool) -> Vec<String> {
    let FleetSnapshot { instances: running, folders, registry } = snapshot;
    let mut faults = Vec::new();
    let mut ports = BTreeSet::new();
    for row in &registry.engines {
        let instances: Vec<_> = running.iter().filter(|running| running.engine_id == row.engine_id).collect();
        let alive = instances.iter().filter(|running| running.is_alive).count();
        let is_running = row.status == "running";
        // The remains of a failed engine are kept for its log.
        let may_be_left = row.status == "failed" || !tidy;
        if row.claim.is_some() || matches!(row.status.as_str(), "provisioning" | "destroying") {
            faults.push(format!("an operation is under way: {row:?}"));
        } else if row.restart_at.is_some() {
            faults.push(format!("a restart is due: {row:?}"));
        } else if alive != usize::from(is_running) {
            faults.push(format!("it has {alive} instances: {row:?}"));
        } else if instances.len() > alive && !may_be_left {
            faults.push(format!("an instance is left: {row:?}, {instances:?}"));
        } else if instances.iter().any(|running| running.is_alive && !is_where_row_says(running, row)) {
            faults.push(format!("its instance listens elsewhere: {row:?}, {instances:?}"));
        }
        if row.port.is_some_and(|port| !ports.insert(port)) {
            faults.push(format!("another engine has the same port: {row:?}"));
        }
        if !folders.contains(&row.engine_id) {
            faults.push(format!("it has no folder: {row:?}"));
        }
    }
    let has_row = |engine_id: &String| registry.engines.iter().any(|row| row.engine_id == *engine_id);
    faults.extend(
        running
            .iter()
            .filter(|running| !has_row(&running.engine_id))
            .map(|running| format!("an instance without a row: {running:?}")),
    );
    faults.extend(
        folders
            .iter()
            .filter(|folder| !has_row(folder))
            .map(|folder| format!("a folder without a row: {folder}")),
    );
    faults
}

/// Whether an instance listens on its row's port of this machine. The rows of Pods, which have addresses of their
/// own, have no port.
fn is_where_row_says(instance: &EngineInstance, row: &EngineRow) -> bool {
    match row.port {
        Some(port) => instance.address == Some((Ipv4Addr::LOCALHOST, port).into()),
        None => instance.address.is_none_or(|address| !address.ip().is_loopback()),
    }
}

/// Returns the violations in the engines as their users see them.
async fn check_users(context: &Arc<FleetContext>, snapshot: &FleetSnapshot) -> anyhow::Result<Vec<String>> {
    let mut checks = JoinSet::new();
    for index in 0..context.users.len() {
        let Some(tenant_user) = context.users.get(index) else { continue };
        let row = find_row(context, tenant_user, &snapshot.registry.engines).cloned();
        let context = Arc::clone(context);
        checks.spawn(async move {
            let tenant_user = context.users.get(index)?;
            check_user(&context, tenant_user, row.as_ref()).await.err()
        });
    }
    let mut faults = Vec::new();
    while let Some(fault) = checks.join_next().await {
        faults.extend(fault?);
    }
    Ok(faults)
}

/// Looks a user up and, if their engine runs, calls it with their current and previous keys.
async fn check_user(
    context: &FleetContext,
    tenant_user: &TenantUser,
    row: Option<&EngineRow>,
) -> Result<(), String> {
    let outcome = context.send_op(tenant_user, Op::Get).await;
    let (body, row) = match (&outcome, row) {
        (CallOutcome::Response(200, body), Some(row)) => (body, row),
        (CallOutcome::Response(404, _), None) => return Ok(()),
        (outcome, row) => return Err(format!("the lookup returned {outcome:?}, the row is {row:?}")),
    };
    let url = context.urls.url(row);
    let reported = [text_field(body, "/engine_id"), text_field(body, "/status"), text_field(body, "/url")];
    if reported != [Some(row.engine_id.clone()), Some(row.status.clone()), url.clone()] {
        return Err(format!("the lookup returned {reported:?}, the row is {row:?}"));
    }
    let Some(key) = text_field(body, "/api_key") else {
        return Err(format!("the lookup returned no key: {row:?}"));
    };
    context.keys.record_issued(&row.engine_id, &key);
    let engine_keys = context.keys.for_engine(&row.engine_id);
    if engine_keys.get(&key) == Some(&true) {
        context.counters.record_violation(format!("the lookup returned a key that was rotated out: {row:?}"));
    }
    if row.status != "running" {
        return Ok(());
    }
    let Some(url) = url else { return Err(format!("it is running but has no address: {row:?}")) };
    match context.call_engine(&url, "/health", &key).await {
        CallOutcome::Response(200, _) => {}
        other => return Err(format!("its health check returned {other:?}: {row:?}")),
    }
    if accepts_key(context, &url, &key).await != Some(true) {
        return Err(format!("the engine does not accept its key: {row:?}"));
    }
    for (old, ended) in engine_keys.iter().filter(|(old, _)| **old != key) {
        match (accepts_key(context, &url, old).await, ended) {
            (Some(false), _) => context.counters.count("old keys refused"),
            (Some(true), true) => {
                context
                    .counters
                    .record_violation(format!("the engine accepts a key that was rotated out: {row:?}"));
            }
            _ => return Err(format!("the engine accepts an old key: {row:?}")),
        }
    }
    check_persistent_task(context, row, &url, &key).await
}

/// Checks that an engine still has the turn that has completed on it. One without a turn is given one: most engines do
/// not live long enough to be found by a client that runs a turn, and then by a check.
async fn check_persistent_task(
    context: &FleetContext,
    row: &EngineRow,
    url: &str,
    key: &str,
) -> Result<(), String> {
    if !context.has_completed_turn(&row.engine_id) {
        run_persistent_turn(context, &row.engine_id, url, key).await;
        return Ok(());
    }
    match context.call_engine(url, "/tasks", key).await {
        CallOutcome::Response(200, body) if has_task(&body) => {
            context.counters.count("tasks found again");
            Ok(())
        }
        other => Err(format!("its task is lost: {other:?}: {row:?}")),
    }
}

fn has_task(body: &Value) -> bool {
    let tasks = body.get("tasks").and_then(Value::as_array);
    tasks.is_some_and(|tasks| {
        tasks.iter().any(|task| text_field(task, "/task_id").as_deref() == Some(PERSISTENT_TASK))
    })
}

/// The row of a user.
fn find_row<'a>(
    context: &FleetContext,
    tenant_user: &TenantUser,
    rows: &'a [EngineRow],
) -> Option<&'a EngineRow> {
    let product = &context.product_of(tenant_user)?.product_id;
    rows.iter().find(|row| row.product_id == *product && row.user_id == tenant_user.user)
}

/// Checks the quotas, which hold at every moment.
pub(crate) fn check_quotas(context: &FleetContext, rows: &[EngineRow]) -> Vec<String> {
    let exceeded = context.products.iter().filter_map(|product| {
        let max = product.max_engines?;
        let count = rows.iter().filter(|row| row.product_id == product.product_id).count() as u64;
        (count > max).then(|| format!("{count} engines exceed the quota of {max}"))
    });
    exceeded.collect()
}

/// Returns the changes acknowledged in the round that were lost, and changes that nobody requested.
pub(crate) fn check_acknowledged(
    context: &FleetContext,
    calls: &[Call],
    audit: &[AuditRow],
    rows: &[EngineRow],
) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, tenant_user) in context.users.iter().enumerate() {
        let Some(product) = context.product_of(tenant_user) else { continue };
        let row = find_row(context, tenant_user, rows);
        if tenant_user.client.is_some() {
            let expect = tenant_user.expected();
            if !is_satisfied(&expect, row) {
                faults.push(format!("{}: expected was {expect:?}, but the row is {row:?}", tenant_user.user));
            }
            tenant_user.set_expected(match row {
                None => ExpectedState::Absent,
                Some(row) if row.status == "stopped" => ExpectedState::Stopped(Some(row.engine_id.clone())),
                Some(row) => ExpectedState::Up(Some(row.engine_id.clone())),
            });
        }
        let calls: Vec<_> = calls.iter().filter(|call| call.user_index == index).collect();
        let written: Vec<_> = audit
            .iter()
            .filter(|row| {
                row.product_id == product.product_id
                    && row.user_id.as_deref() == Some(tenant_user.user.as_str())
            })
            .collect();
        let wrong = check_audit_rows(&calls, &written, tenant_user.client.is_some());
        faults.extend(
            wrong.into_iter().map(|wrong| format!("{}: {wrong}: {calls:?}, {written:?}", tenant_user.user)),
        );
    }
    faults
}

fn is_satisfied(expect: &ExpectedState, row: Option<&EngineRow>) -> bool {
    let is = |id: &Option<String>, row: &EngineRow| id.as_ref().is_none_or(|id| *id == row.engine_id);
    match (expect, row) {
        (ExpectedState::Unknown, _) | (ExpectedState::Absent, None) => true,
        (ExpectedState::Up(id), Some(row)) => row.status != "stopped" && is(id, row),
        (ExpectedState::Stopped(id), Some(row)) => row.status == "stopped" && is(id, row),
        (ExpectedState::Absent, Some(_)) | (ExpectedState::Up(_) | ExpectedState::Stopped(_), None) => false,
    }
}

/// Compares a user's calls with the audit log's rows about them.
fn check_audit_rows(calls: &[&Call], written: &[&AuditRow], is_exclusive: bool) -> Vec<String> {
    let mut faults = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    // Nobody calls for a scheduled wake; when there may be one, the checker of the audit log says.
    for row in written.iter().filter(|row| !row.is_scheduled_wake()) {
        *counts.entry(row.event.as_str()).or_default() += 1;
    }
    for event in ["provision", "provision_failed", "start", "stop", "wake", "rotate_key", "destroy"] {
        let rows = counts.get(event).copied().unwrap_or_default();
        let max_rows =
            calls.iter().filter(|call| call.op.may_write(event) && call.outcome.may_have_acted()).count();
        if rows > max_rows {
            faults.push(format!("{rows} rows {event} for at most {max_rows} calls"));
        }
        // A shared operation writes no row of its own.
        let own = matches!(event, "stop" | "rotate_key" | "destroy") || (is_exclusive && event == "start");
        let min_rows = calls
            .iter()
            .filter(|call| call.op.may_write(event) && matches!(call.outcome, Outcome::Acknowledged(_)))
            .count();
        if own && rows < min_rows {
            faults.push(format!("{rows} rows {event} for {min_rows} acknowledged calls"));
        }
    }
    for call in calls {
        let (event, id) = match (call.op, &call.outcome) {
            (Op::Provision, Outcome::Acknowledged(id)) => ("provision", id),
            (Op::Destroy, Outcome::Acknowledged(id)) => ("destroy", id),
            _ => continue,
        };
        let rows = written.iter().filter(|row| row.event == event && row.engine_id == *id).count();
        if rows != 1 {
            faults.push(format!("{rows} rows {event} of {id:?}"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: Op, outcome: Outcome) -> Call {
        Call { user_index: 0, op, outcome }
    }

    fn row(event: &str, engine_id: &str) -> AuditRow {
        AuditRow {
            product_id: "prod_1".into(),
            id: 1,
            at: 0,
            engine_id: Some(engine_id.into()),
            user_id: Some("ada".into()),
            event: event.into(),
            duration_ms: None,
            detail: "{}".into(),
            hash: String::new(),
        }
    }

    fn wrong(calls: &[Call], written: &[AuditRow]) -> usize {
        check_audit_rows(&calls.iter().collect::<Vec<_>>(), &written.iter().collect::<Vec<_>>(), true).len()
    }

    #[test]
    fn each_acknowledged_call_has_its_one_row() {
        let acknowledged = |op, id: &str| call(op, Outcome::Acknowledged(Some(id.into())));
        let calls = [
            acknowledged(Op::Provision, "eng_1"),
            acknowledged(Op::Destroy, "eng_1"),
            acknowledged(Op::Provision, "eng_2"),
        ];
        let rows = [row("provision", "eng_1"), row("destroy", "eng_1"), row("provision", "eng_2")];
        assert_eq!(wrong(&calls, &rows), 0);
        for missing in 0..rows.len() {
            let mut rows = rows.to_vec();
            rows.remove(missing);
            assert_ne!(wrong(&calls, &rows), 0, "without row {missing}");
        }
        assert_ne!(wrong(&[call(Op::Stop, Outcome::Acknowledged(None))], &[]), 0);
    }

    #[test]
    fn what_was_cut_off_may_be_done_once_and_what_was_not_asked_for_may_not() {
        let rows = [row("stop", "eng_1")];
        for (outcome, wrongs) in [
            (Outcome::Unknown, 0),
            (Outcome::Acknowledged(None), 0),
            (Outcome::NotSent, 1),
            (Outcome::Refused(409, "ENGINE_NOT_RUNNING".into()), 1),
        ] {
            assert_eq!(wrong(&[call(Op::Stop, outcome.clone())], &rows), wrongs, "{outcome:?}");
        }
        assert_eq!(wrong(&[call(Op::Stop, Outcome::Unknown)], &[]), 0);
        assert_eq!(wrong(&[], &rows), 1);
        assert_eq!(wrong(&[], &[row("crash", "eng_1"), row("restart", "eng_1")]), 0);
    }
}
