//! The clients: each asks for its own users and for shared ones, at random, until the orchestrator is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::seats::{Call, Expect, Op, Outcome, Seat, after, text};
use super::world::World;
use crate::api::{Asked, code};
use crate::dice::Dice;

/// The task whose loss would be noticed.
pub(crate) const KEPT: &str = "kept";

/// What a round's load is made of.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// The kind of change that is wanted most.
    pub(crate) prefer: Option<&'static str>,
    /// Users whose engines sleep soon are left alone.
    pub(crate) spare_sleepy: bool,
    /// Set when the round is over.
    pub(crate) over: Arc<AtomicBool>,
}

/// One client's part of a round.
pub(crate) async fn client(world: Arc<World>, load: Load, number: usize, mut dice: Dice) {
    while !load.over.load(Ordering::Relaxed) {
        let Some((index, op)) = choose(&world, &load, number, &mut dice) else { return };
        let Some(asked) = call(&world, index, op).await else { return };
        if let Asked::Answered(200, body) = &asked
            && op == Op::Provision
            && dice.chance(0.2)
        {
            talk(&world, body).await;
        }
        let pause = dice.millis(0..=3);
        tokio::time::sleep(pause).await;
    }
}

/// Asks `op` for the user of a seat and notes what came of it. Gives the answer; none where nobody gave one.
pub(crate) async fn call(world: &World, index: usize, op: Op) -> Option<Asked> {
    let seat = world.seats.get(index)?;
    world.trap.occurred(op.name());
    let asked = world.ask(seat, op).await;
    let outcome = judge(world, seat, op, &asked);
    if seat.client.is_some() {
        let before = seat.expect();
        seat.know(after(&before, op, &outcome).unwrap_or_else(|lie| {
            world.tally.violation(format!("{}: {lie}", seat.user));
            Expect::Unknown
        }));
    }
    world.tally.count(format!("calls: {}", op.name()));
    let is_gone = matches!(outcome, Outcome::Unsent | Outcome::Unknown);
    world.note(Call { seat: index, op, outcome });
    (!is_gone).then_some(asked)
}

/// One of the client's own users or a shared one, and what to ask for them.
fn choose(world: &World, load: &Load, number: usize, dice: &mut Dice) -> Option<(usize, Op)> {
    let mine: Vec<(usize, &Seat)> = world
        .seats
        .iter()
        .enumerate()
        .filter(|(_, seat)| seat.client.is_none_or(|client| client == number))
        .filter(|(_, seat)| !load.spare_sleepy || world.tenant(seat).is_some_and(|tenant| !tenant.sleeps))
        .collect();
    if let Some(kind) = load.prefer.filter(|_| dice.chance(0.6)) {
        let fit: Vec<_> = mine.iter().filter(|(_, seat)| fits(world, seat, kind)).collect();
        if let (Some((index, _)), Some(op)) = (dice.pick(&fit), op_for(kind)) {
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
        (Op::Rotate, if world.extent.supervised { 12 } else { 0 }),
        (Op::Get, 7),
        (Op::List, 4),
    ];
    let all: Vec<Op> = ops.iter().flat_map(|(op, weight)| std::iter::repeat_n(*op, *weight)).collect();
    let (mut index, mut seat) = *dice.pick(&mine)?;
    let mut op = *dice.pick(&all)?;
    // Mostly what changes something; now and then what is refused.
    for _ in 0..4 {
        if fits(world, seat, op.name()) || dice.chance(0.1) {
            break;
        }
        (index, seat) = *dice.pick(&mine)?;
        op = *dice.pick(&all)?;
    }
    Some((index, op))
}

/// Whether a change of `kind` is likely to be made at `seat`.
fn fits(world: &World, seat: &Seat, kind: &str) -> bool {
    let expect = seat.expect();
    match kind {
        "provision" => expect == Expect::Absent,
        "admit" | "get" | "list" => true,
        "start" => matches!(expect, Expect::Stopped(_)),
        "wake" => world.tenant(seat).is_some_and(|tenant| tenant.sleeps),
        _ => matches!(expect, Expect::Up(_)) || seat.client.is_none(),
    }
}

/// What to ask for a change of `kind`. The others are the orchestrator's own.
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

/// What came of a call. An answer that the contract does not have is a violation.
fn judge(world: &World, seat: &Seat, op: Op, asked: &Asked) -> Outcome {
    let (status, body) = match asked {
        Asked::Unsent => return Outcome::Unsent,
        Asked::Unknown => return Outcome::Unknown,
        Asked::Answered(status, body) => (*status, body),
    };
    let engine_id = match op {
        Op::Admit { .. } => text(body, "/engine/engine_id"),
        Op::Provision | Op::Destroy | Op::Get => text(body, "/engine_id"),
        Op::Start | Op::Stop | Op::Rotate | Op::List => None,
    };
    if status == 200 {
        take_keys(world, seat, op, body);
        if let Op::Admit { .. } = op
            && body.get("admitted") != Some(&Value::Bool(true))
        {
            return Outcome::Refused(200, text(body, "/reason").unwrap_or_default());
        }
        return Outcome::Done(engine_id);
    }
    let code = code(body);
    let disturbed = world.is_disturbed();
    let allowed = match (status, code) {
        (409, "ENGINE_ALREADY_EXISTS") => op == Op::Provision,
        (409, "ENGINE_ALREADY_RUNNING") => op == Op::Start,
        (409, "ENGINE_NOT_RUNNING") => matches!(op, Op::Stop | Op::Rotate),
        (404, "ENGINE_NOT_FOUND") => !matches!(op, Op::Admit { .. } | Op::List),
        (429, "QUOTA_EXCEEDED") => world.tenant(seat).is_some_and(|tenant| tenant.max_engines.is_some()),
        (503, "PORT_EXHAUSTION") => matches!(op, Op::Provision | Op::Admit { .. } | Op::Start),
        (502, "BACKEND_ERROR") | (504, "BOOT_TIMEOUT") => disturbed,
        (503, "STARTING_UP") => world.is_troubled(),
        _ => false,
    };
    world.tally.count(format!("refusals: {code}"));
    if !allowed {
        world.tally.violation(format!("{op:?} for {}: {status} {body}", seat.user));
    }
    Outcome::Refused(status, code.to_owned())
}

/// Keeps the keys that an answer hands out.
fn take_keys(world: &World, seat: &Seat, op: Op, body: &Value) {
    let record = if matches!(op, Op::Admit { .. }) { body.get("engine").unwrap_or(body) } else { body };
    if let (Some(engine_id), Some(key)) = (text(record, "/engine_id"), text(record, "/api_key")) {
        world.keys.seen(&engine_id, &key);
    }
    // Whose it is is known only where nobody else asks for the user.
    if let (Op::Rotate, Some(key), Expect::Up(Some(engine_id))) =
        (op, text(body, "/new_api_key"), seat.expect())
    {
        world.keys.rotated(&engine_id, &key);
    }
}

/// Has a turn done that must be found again as long as the engine exists.
async fn talk(world: &World, provisioned: &Value) {
    let field = |name: &str| text(provisioned, name);
    if let (Some(engine_id), Some(url), Some(key)) = (field("/engine_id"), field("/url"), field("/api_key"))
        && world.do_a_turn(&url, &key, KEPT).await
    {
        world.tally.count("turns completed");
        world.keep(engine_id);
    }
}
