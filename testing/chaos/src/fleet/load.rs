//! The clients: each sends requests for its own users and for shared ones, at random, until the orchestrator is
//! gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::context::FleetContext;
use super::tenant_users::{Call, ExpectedState, Op, Outcome, TenantUser, expected_after, text_field};
use crate::client::{CallOutcome, error_code};
use crate::rng::SeededRng;

/// The task whose loss would be noticed.
pub(crate) const PERSISTENT_TASK: &str = "kept";
/// A provision that takes longer is slow, as those of Pods are.
const SLOW_PROVISION: Duration = Duration::from_millis(700);

/// The load of a round.
#[derive(Clone, Debug)]
pub(crate) struct LoadProfile {
    /// The kind of operation to prefer.
    pub(crate) prefer: Option<&'static str>,
    /// Avoid users whose engines sleep soon.
    pub(crate) avoid_sleepy: bool,
    /// Set when the round is over.
    pub(crate) stop: Arc<AtomicBool>,
}

/// Runs one client's part of a round.
pub(crate) async fn run_client(
    context: Arc<FleetContext>,
    load: LoadProfile,
    number: usize,
    mut rng: SeededRng,
) {
    while !load.stop.load(Ordering::Relaxed) {
        let Some((index, op)) = choose_call(&context, &load, number, &mut rng) else { return };
        let sent = Instant::now();
        let Some(response) = send_and_record(&context, index, op).await else { return };
        // Where provisions are slow, there are few.
        let turn_probability = if sent.elapsed() > SLOW_PROVISION { 1.0 } else { 0.2 };
        if let CallOutcome::Response(200, body) = &response
            && op == Op::Provision
            && rng.chance(turn_probability)
            && let (Some(engine_id), Some(url), Some(key)) =
                (text_field(body, "/engine_id"), text_field(body, "/url"), text_field(body, "/api_key"))
        {
            run_persistent_turn(&context, &engine_id, &url, &key).await;
        }
        let pause = rng.millis(0..=3);
        tokio::time::sleep(pause).await;
    }
}

/// Sends `op` for a user and records the outcome. Returns the response, or `None` if there was none.
pub(crate) async fn send_and_record(context: &FleetContext, index: usize, op: Op) -> Option<CallOutcome> {
    let tenant_user = context.users.get(index)?;
    context.trigger.notify(op.name());
    let response = context.send_op(tenant_user, op).await;
    let outcome = classify_response(context, tenant_user, op, &response);
    if tenant_user.client.is_some() {
        let before = tenant_user.expected();
        let expected = expected_after(&before, op, &outcome).unwrap_or_else(|contradiction| {
            context.counters.record_violation(format!("{}: {contradiction}", tenant_user.user));
            ExpectedState::Unknown
        });
        // What a failed provision leaves can be removed only once the cluster answers.
        let may_be_left = context.has_cluster_fault() && matches!(outcome, Outcome::Refused(500.., _));
        tenant_user.set_expected(if may_be_left { ExpectedState::Unknown } else { expected });
    }
    context.counters.count(format!("calls: {}", op.name()));
    let is_gone = matches!(outcome, Outcome::NotSent | Outcome::Unknown);
    context.record_call(Call { user_index: index, op, outcome });
    (!is_gone).then_some(response)
}

/// Chooses one of the client's own users or a shared one, and an operation for them.
fn choose_call(
    context: &FleetContext,
    load: &LoadProfile,
    number: usize,
    rng: &mut SeededRng,
) -> Option<(usize, Op)> {
    let own_users: Vec<(usize, &TenantUser)> = context
        .users
        .iter()
        .enumerate()
        .filter(|(_, tenant_user)| tenant_user.client.is_none_or(|client| client == number))
        .filter(|(_, tenant_user)| {
            !load.avoid_sleepy || context.product_of(tenant_user).is_some_and(|product| !product.sleeps)
        })
        .collect();
    if let Some(kind) = load.prefer.filter(|_| rng.chance(0.6)) {
        let candidates: Vec<_> =
            own_users.iter().filter(|(_, tenant_user)| is_applicable(context, tenant_user, kind)).collect();
        if let (Some((index, _)), Some(op)) = (rng.pick(&candidates), op_for(kind)) {
            return Some((*index, op));
        }
    }
    let ops = [
        (Op::Provision, 14),
        (Op::Admit { provision: true, wake: true }, 14),
        (Op::Admit { provision: false, wake: true }, 8),
        (Op::Admit { provision: false, wake: false }, 5),
        (Op::Start, 14),
        (Op::Stop, 10),
        (Op::Destroy, 6),
        (Op::Rotate, if context.capabilities.supervised { 12 } else { 0 }),
        (Op::Get, 7),
        (Op::List, 4),
    ];
    let all: Vec<Op> = ops.iter().flat_map(|(op, weight)| std::iter::repeat_n(*op, *weight)).collect();
    let (mut index, mut tenant_user) = *rng.pick(&own_users)?;
    let mut op = *rng.pick(&all)?;
    // Mostly operations that change something; now and then one that is refused.
    for _ in 0..4 {
        if is_applicable(context, tenant_user, op.name()) || rng.chance(0.1) {
            break;
        }
        (index, tenant_user) = *rng.pick(&own_users)?;
        op = *rng.pick(&all)?;
    }
    Some((index, op))
}

/// Whether an operation of `kind` is likely to have an effect on `tenant_user`.
fn is_applicable(context: &FleetContext, tenant_user: &TenantUser, kind: &str) -> bool {
    let expect = tenant_user.expected();
    match kind {
        "provision" => expect == ExpectedState::Absent,
        "admit" | "get" | "list" => true,
        "start" => matches!(expect, ExpectedState::Stopped(_)),
        "wake" => context.product_of(tenant_user).is_some_and(|product| product.sleeps),
        _ => matches!(expect, ExpectedState::Up(_)) || tenant_user.client.is_none(),
    }
}

/// The request that causes an operation of `kind`. The others are the orchestrator's own.
fn op_for(kind: &str) -> Option<Op> {
    match kind {
        "provision" => Some(Op::Provision),
        "start" => Some(Op::Start),
        "stop" => Some(Op::Stop),
        "destroy" => Some(Op::Destroy),
        "rotate" => Some(Op::Rotate),
        "wake" => Some(Op::Admit { provision: false, wake: true }),
        _ => None,
    }
}

/// Classifies the outcome of a call. A response outside of the contract is a violation.
fn classify_response(
    context: &FleetContext,
    tenant_user: &TenantUser,
    op: Op,
    response: &CallOutcome,
) -> Outcome {
    let (status, body) = match response {
        CallOutcome::NotSent => return Outcome::NotSent,
        CallOutcome::Unknown => return Outcome::Unknown,
        CallOutcome::Response(status, body) => (*status, body),
    };
    let engine_id = match op {
        Op::Admit { .. } => text_field(body, "/engine/engine_id"),
        Op::Provision | Op::Destroy | Op::Get => text_field(body, "/engine_id"),
        Op::Start | Op::Stop | Op::Rotate | Op::List => None,
    };
    if status == 200 {
        record_keys(context, tenant_user, op, body);
        if let Op::Admit { .. } = op
            && body.get("admitted") != Some(&Value::Bool(true))
        {
            return Outcome::Refused(200, text_field(body, "/reason").unwrap_or_default());
        }
        return Outcome::Acknowledged(engine_id);
    }
    let code = error_code(body);
    let is_injured = context.has_engine_fault() || context.has_cluster_fault();
    let allowed = match (status, code) {
        (409, "ENGINE_ALREADY_EXISTS") => op == Op::Provision,
        (409, "ENGINE_ALREADY_RUNNING") => op == Op::Start,
        (409, "ENGINE_NOT_RUNNING") => matches!(op, Op::Stop | Op::Rotate),
        (404, "ENGINE_NOT_FOUND") => !matches!(op, Op::Admit { .. } | Op::List),
        (429, "QUOTA_EXCEEDED") => {
            context.product_of(tenant_user).is_some_and(|product| product.max_engines.is_some())
        }
        (503, "PORT_EXHAUSTION") => matches!(op, Op::Provision | Op::Admit { .. } | Op::Start),
        (502, "BACKEND_ERROR") | (504, "BOOT_TIMEOUT") => is_injured,
        // What is left of a cluster may have no room for it.
        (503, "CAPACITY_EXHAUSTED") => context.has_cluster_fault(),
        (503, "STARTING_UP") => context.has_database_fault(),
        _ => false,
    };
    context.counters.count(format!("refusals: {code}"));
    if !allowed {
        context.counters.record_violation(format!("{op:?} for {}: {status} {body}", tenant_user.user));
    }
    Outcome::Refused(status, code.to_owned())
}

/// Records the keys in a response.
fn record_keys(context: &FleetContext, tenant_user: &TenantUser, op: Op, body: &Value) {
    let record = if matches!(op, Op::Admit { .. }) { body.get("engine").unwrap_or(body) } else { body };
    if let (Some(engine_id), Some(key)) = (text_field(record, "/engine_id"), text_field(record, "/api_key")) {
        context.keys.record_issued(&engine_id, &key);
    }
    // The owner is known only if no other client uses the user.
    if let (Op::Rotate, Some(key), ExpectedState::Up(Some(engine_id))) =
        (op, text_field(body, "/new_api_key"), tenant_user.expected())
    {
        context.keys.record_rotated(&engine_id, &key);
    }
}

/// Runs a turn that must be found again as long as the engine exists.
pub(crate) async fn run_persistent_turn(context: &FleetContext, engine_id: &str, url: &str, key: &str) {
    if context.run_turn(url, key, PERSISTENT_TASK).await {
        context.counters.count("turns completed");
        context.record_completed_turn(engine_id.to_owned());
    }
}
