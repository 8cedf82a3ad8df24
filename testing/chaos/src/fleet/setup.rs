//! Prepares engines, so that the operation that a kill aims at can happen.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::context::FleetContext;
use super::load::send_and_record;
use super::tenant_users::{ExpectedState, Op, TenantUser};
use crate::rng::SeededRng;

/// Brings some users' engines into the state in which an operation of `kind` starts. Refusals are checked as in
/// any round.
pub(crate) async fn prepare(world: &Arc<FleetContext>, kind: &str, dice: &mut SeededRng) {
    let mut fit: Vec<usize> =
        (0..world.users.len()).filter(|index| is_suitable(world, *index, kind)).collect();
    // All engines that sleep soon, so that they go to sleep one shortly after the other; a few of the others.
    while fit.len() > PREPARED_ENGINES {
        let out = usize::try_from(dice.between(0..=fit.len() as u64 - 1)).unwrap_or_default();
        fit.swap_remove(out);
    }
    let mut asking = JoinSet::new();
    for index in fit {
        let world = Arc::clone(world);
        let steps = world
            .users
            .get(index)
            .map(|user_index| setup_ops(kind, &user_index.expected()))
            .unwrap_or_default();
        asking.spawn(async move {
            for op in steps {
                send_and_record(&world, index, op).await;
            }
        });
    }
    while asking.join_next().await.is_some() {}
}

/// How many engines are prepared.
const PREPARED_ENGINES: usize = 3;

/// Whether the user belongs to one client, so that the state is known, and no quota interferes.
fn is_suitable(world: &FleetContext, index: usize, kind: &str) -> bool {
    let of = |user_index: &TenantUser| {
        Some((
            user_index.client?,
            world.product_of(user_index)?.max_engines,
            world.product_of(user_index)?.sleeps,
        ))
    };
    match world.users.get(index).and_then(of) {
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
