//! Sets the scene: what a kill aims at must be there to be met.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::load::call;
use super::seats::{Expect, Op, Seat};
use super::world::World;
use crate::dice::Dice;

/// Brings some users' engines into the state that a change of `kind` begins in. Whatever is refused is judged as
/// in any round.
pub(crate) async fn set(world: &Arc<World>, kind: &str, dice: &mut Dice) {
    let mut fit: Vec<usize> = (0..world.seats.len()).filter(|index| suits(world, *index, kind)).collect();
    // All that sleep soon, so that they go to sleep one close after the other; of the others a few.
    while fit.len() > ENGINES {
        let out = usize::try_from(dice.between(0..=fit.len() as u64 - 1)).unwrap_or_default();
        fit.swap_remove(out);
    }
    let mut asking = JoinSet::new();
    for index in fit {
        let world = Arc::clone(world);
        let steps = world.seats.get(index).map(|seat| steps(kind, &seat.expect())).unwrap_or_default();
        asking.spawn(async move {
            for op in steps {
                call(&world, index, op).await;
            }
        });
    }
    while asking.join_next().await.is_some() {}
}

/// How many engines are prepared.
const ENGINES: usize = 3;

/// Whether the user is one client's own, so that it is known what there is, and no quota is in the way.
fn suits(world: &World, index: usize, kind: &str) -> bool {
    let of = |seat: &Seat| Some((seat.client?, world.tenant(seat)?.max_engines, world.tenant(seat)?.sleeps));
    match world.seats.get(index).and_then(of) {
        Some((_, None, sleeps)) => sleeps == matches!(kind, "sleep" | "wake"),
        _ => false,
    }
}

/// What brings an engine of which `known` is known to where a change of `kind` begins.
fn steps(kind: &str, known: &Expect) -> Vec<Op> {
    let admit = Op::Admit { provision: true, wake: true };
    match (kind, known) {
        ("provision", Expect::Absent) | ("start", Expect::Stopped(_)) => vec![],
        ("provision", _) => vec![Op::Destroy],
        ("start", Expect::Up(_)) => vec![Op::Stop],
        ("start", _) => vec![admit, Op::Stop],
        (_, Expect::Stopped(_)) => vec![Op::Start],
        _ => vec![admit],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_brought_to_where_the_change_begins() {
        let admit = Op::Admit { provision: true, wake: true };
        let (up, stopped) = (Expect::Up(None), Expect::Stopped(None));
        for (kind, known, expected) in [
            ("provision", &Expect::Absent, vec![]),
            ("provision", &stopped, vec![Op::Destroy]),
            ("start", &up, vec![Op::Stop]),
            ("start", &Expect::Absent, vec![admit, Op::Stop]),
            ("rotate", &stopped, vec![Op::Start]),
            ("sleep", &up, vec![admit]),
            ("wake", &Expect::Unknown, vec![admit]),
        ] {
            assert_eq!(steps(kind, known), expected, "{kind} {known:?}");
        }
    }
}
