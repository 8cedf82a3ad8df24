//! Prepares engines, so that the operation that a kill aims at can happen.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::context::FleetContext;
use super::load::send_and_record;
use super::tenant_users::{ExpectedState, Op, TenantUser};
use crate::rng::SeededRng;

/// Brings some users' engines into the state in which an operation of `kind` starts. Refusals are checked as in
/// any round.
pub(crate) async fn prepare(context: &Arc<FleetContext>, kind: &str, rng: &mut SeededRng) {
    let mut candidates: Vec<usize> =
        (0..context.users.len()).filter(|index| is_suitable(context, *index, kind)).collect();
    // All engines that sleep soon, so that they go to sleep one shortly after the other; a few of the others.
    while candidates.len() > PREPARED_ENGINES {
        let removed = usize::try_from(rng.between(0..=candidates.len() as u64 - 1)).unwrap_or_default();
        candidates.swap_remove(removed);
    }
    let mut preparations = JoinSet::new();
    for index in candidates {
        let context = Arc::clone(context);
        let steps = context
            .users
            .get(index)
            .map(|tenant_user| setup_ops(kind, &tenant_user.expected()))
            .unwrap_or_default();
        preparations.spawn(async move {
            for op in steps {
                send_and_record(&context, index, op).await;
            }
        });
    }
    while preparations.join_next().await.is_some() {}
}

/// How many engines are prepared.
const PREPARED_ENGINES: usize = 3;

/// Whether the user belongs to one client, so that the state is known, and no quota interferes.
fn is_suitable(context: &FleetContext, index: usize, kind: &str) -> bool {
    let properties = |tenant_user: &TenantUser| {
        Some((
            tenant_user.client?,
            context.product_of(tenant_user)?.max_engines,
            context.product_of(tenant_user)?.sleeps,
        ))
    };
    match context.users.get(index).and_then(properties) {
        Some((_, None, sleeps)) => sleeps == matches!(kind, "sleep" | "wake"),
        _ => false,
    }
}

/// The operations that bring an engine from `known` to the state in which an operation of `kind` starts.
fn setup_ops(kind: &str, known: &ExpectedState) -> Vec<Op> {
    let admit = Op::Admit { provision: true, wake: true };
    match (kind, known) {
        ("provision", ExpectedState::Absent) | ("start", ExpectedState::Stopped(_)) => vec![],
        ("provision", _) => vec![Op::Destroy],
        ("start", ExpectedState::Up(_)) => vec![Op::Stop],
        ("start", _) => vec![admit, Op::Stop],
        (_, ExpectedState::Stopped(_)) => vec![Op::Start],
        _ => vec![admit],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_brought_to_where_the_change_begins() {
        let admit = Op::Admit { provision: true, wake: true };
        let (up, stopped) = (ExpectedState::Up(None), ExpectedState::Stopped(None));
        for (kind, known, expected) in [
            ("provision", &ExpectedState::Absent, vec![]),
            ("provision", &stopped, vec![Op::Destroy]),
            ("start", &up, vec![Op::Stop]),
            ("start", &ExpectedState::Absent, vec![admit, Op::Stop]),
            ("rotate", &stopped, vec![Op::Start]),
            ("sleep", &up, vec![admit]),
            ("wake", &ExpectedState::Unknown, vec![admit]),
        ] {
            assert_eq!(setup_ops(kind, known), expected, "{kind} {known:?}");
        }
    }
}
