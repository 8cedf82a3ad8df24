//! What must hold after each start: rows, processes or containers, ports and folders match; keys open; what was
//! acknowledged is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;

use super::deployment::Deployment;
use super::load::KEPT;
use super::registry::{Audit, Engine, Seen};
use super::seats::{Call, Expect, Op, Outcome, Seat, text};
use super::world::World;
use super::wreck::{Scene, look, takes};
use crate::api::Asked;

/// How long a wrong state may last after a start. Longer than the period at which the orchestrator compares
/// the registry with what runs.
pub(crate) const SETTLE: Duration = Duration::from_mins(1);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);
/// From when on settling is said to have taken long.
const LONG: Duration = Duration::from_secs(5);

/// Waits until everything matches, for `patience` at most, and gives what is there then; what does not match
/// is a violation. Containers that have ended may be left, unless all must be `tidy`: the orchestrator removes what
/// a kill left of them by and by.
pub(crate) async fn settle(
    world: &Arc<World>,
    deployment: &Arc<Deployment>,
    seen: &Seen,
    (patience, tidy): (Duration, bool),
) -> anyhow::Result<Scene> {
    let begin = Instant::now();
    let mut last = Vec::new();
    loop {
        let scene = look(deployment, seen).await?;
        let mut faults = disorder(&scene, tidy);
        if faults.is_empty() {
            faults = strangers(world, &scene).await?;
        }
        if faults.is_empty() {
            if begin.elapsed() > LONG {
                world.tally.count("starts that took long to settle");
                // What it was about, without the engine that it was.
                let about = |fault: &String| fault.split(':').next().map(str::to_owned).unwrap_or_default();
                for about in last.iter().map(about).collect::<BTreeSet<_>>() {
                    world.tally.count(format!("took long to settle: {about}"));
                }
            }
            return Ok(scene);
        }
        if begin.elapsed() > patience {
            for fault in faults {
                world.tally.violation(format!("still, {patience:?} after a start: {fault}"));
            }
            return Ok(scene);
        }
        last = faults;
        tokio::time::sleep(PAUSE).await;
    }
}

/// What does not match among rows, processes or containers, ports and folders.
fn disorder(scene: &Scene, tidy: bool) -> Vec<String> {
    let Scene { running, folders, registry } = scene;
    let mut faults = Vec::new();
    let mut ports = BTreeSet::new();
    for row in &registry.engines {
        let of_it: Vec<_> = running.iter().filter(|running| running.engine_id == row.engine_id).collect();
        let alive = of_it.iter().filter(|running| running.is_alive).count();
        let is_running = row.status == "running";
        // What is left of an engine that failed is kept for its log.
        let may_be_left = row.status == "failed" || !tidy;
        if row.claim.is_some() || matches!(row.status.as_str(), "provisioning" | "destroying") {
            faults.push(format!("a change is under way: {row:?}"));
        } else if row.restart_at.is_some() {
            faults.push(format!("a restart is due: {row:?}"));
        } else if alive != usize::from(is_running) {
            faults.push(format!("it has {alive} processes or containers: {row:?}"));
        } else if of_it.len() > alive && !may_be_left {
            faults.push(format!("something is left of it: {row:?}, {of_it:?}"));
        } else if of_it.iter().any(|running| running.is_alive && running.port != row.port) {
            faults.push(format!("it was told to listen elsewhere: {row:?}, {of_it:?}"));
        }
        if row.port.is_some_and(|port| !ports.insert(port)) {
            faults.push(format!("its port is another engine's too: {row:?}"));
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
            .map(|running| format!("a process or container without a row: {running:?}")),
    );
    faults.extend(
        folders
            .iter()
            .filter(|folder| !has_row(folder))
            .map(|folder| format!("a folder without a row: {folder}")),
    );
    faults
}

/// What is wrong with the engines as their users see them.
async fn strangers(world: &Arc<World>, scene: &Scene) -> anyhow::Result<Vec<String>> {
    let mut checks = JoinSet::new();
    for index in 0..world.seats.len() {
        let Some(seat) = world.seats.get(index) else { continue };
        let row = row_of(world, seat, &scene.registry.engines).cloned();
        let world = Arc::clone(world);
        checks.spawn(async move {
            let seat = world.seats.get(index)?;
            meet(&world, seat, row.as_ref()).await.err()
        });
    }
    let mut faults = Vec::new();
    while let Some(fault) = checks.join_next().await {
        faults.extend(fault?);
    }
    Ok(faults)
}

/// Looks a user up and, if their engine runs, asks it with their key and with those that they had before.
async fn meet(world: &World, seat: &Seat, row: Option<&Engine>) -> Result<(), String> {
    let asked = world.ask(seat, Op::Get).await;
    let (body, row) = match (&asked, row) {
        (Asked::Answered(200, body), Some(row)) => (body, row),
        (Asked::Answered(404, _), None) => return Ok(()),
        (asked, row) => return Err(format!("the lookup says {asked:?}, the row is {row:?}")),
    };
    let url = row.port.map(|port| format!("http://127.0.0.1:{port}"));
    let shown = [text(body, "/engine_id"), text(body, "/status"), text(body, "/url")];
    if shown != [Some(row.engine_id.clone()), Some(row.status.clone()), url.clone()] {
        return Err(format!("the lookup shows {shown:?}, the row is {row:?}"));
    }
    let Some(key) = text(body, "/api_key") else { return Err(format!("the lookup shows no key: {row:?}")) };
    world.keys.seen(&row.engine_id, &key);
    let ring = world.keys.of(&row.engine_id);
    if ring.get(&key) == Some(&true) {
        world.tally.violation(format!("the key is one that a rotation had ended: {row:?}"));
    }
    if row.status != "running" {
        return Ok(());
    }
    let Some(url) = url else { return Err(format!("it runs and has no address: {row:?}")) };
    match world.ask_engine(&url, "/health", &key).await {
        Asked::Answered(200, _) => {}
        other => return Err(format!("its health is {other:?}: {row:?}")),
    }
    if takes(world, &url, &key).await != Some(true) {
        return Err(format!("the engine does not take its key: {row:?}"));
    }
    for (old, ended) in ring.iter().filter(|(old, _)| **old != key) {
        match (takes(world, &url, old).await, ended) {
            (Some(false), _) => world.tally.count("old keys refused"),
            (Some(true), true) => {
                world.tally.violation(format!("the engine takes a key that a rotation had ended: {row:?}"));
            }
            _ => return Err(format!("the engine takes an old key: {row:?}")),
        }
    }
    if world.is_kept(&row.engine_id) {
        match world.ask_engine(&url, "/tasks", &key).await {
            Asked::Answered(200, body) if has_task(&body) => world.tally.count("tasks found again"),
            other => return Err(format!("its task is lost: {other:?}: {row:?}")),
        }
    }
    Ok(())
}

fn has_task(body: &Value) -> bool {
    let tasks = body.get("tasks").and_then(Value::as_array);
    tasks.is_some_and(|tasks| tasks.iter().any(|task| text(task, "/task_id").as_deref() == Some(KEPT)))
}

/// The row of a user.
fn row_of<'a>(world: &World, seat: &Seat, rows: &'a [Engine]) -> Option<&'a Engine> {
    let product = &world.tenant(seat)?.product_id;
    rows.iter().find(|row| row.product_id == *product && row.user_id == seat.user)
}

/// Quotas, which hold at every moment.
pub(crate) fn quotas(world: &World, rows: &[Engine]) -> Vec<String> {
    let over = world.tenants.iter().filter_map(|tenant| {
        let max = tenant.max_engines?;
        let count = rows.iter().filter(|row| row.product_id == tenant.product_id).count() as u64;
        (count > max).then(|| format!("{count} engines, and the quota is {max}"))
    });
    over.collect()
}

/// What was acknowledged in the round and is not so, and what is so without having been asked for.
pub(crate) fn promises(world: &World, calls: &[Call], audit: &[Audit], rows: &[Engine]) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, seat) in world.seats.iter().enumerate() {
        let Some(tenant) = world.tenant(seat) else { continue };
        let row = row_of(world, seat, rows);
        if seat.client.is_some() {
            let expect = seat.expect();
            if !is_kept(&expect, row) {
                faults.push(format!("{}: promised was {expect:?}, there is {row:?}", seat.user));
            }
            seat.know(match row {
                None => Expect::Absent,
                Some(row) if row.status == "stopped" => Expect::Stopped(Some(row.engine_id.clone())),
                Some(row) => Expect::Up(Some(row.engine_id.clone())),
            });
        }
        let calls: Vec<_> = calls.iter().filter(|call| call.seat == index).collect();
        let written: Vec<_> = audit
            .iter()
            .filter(|row| {
                row.product_id == tenant.product_id && row.user_id.as_deref() == Some(seat.user.as_str())
            })
            .collect();
        let wrong = written_right(&calls, &written, seat.client.is_some());
        faults
            .extend(wrong.into_iter().map(|wrong| format!("{}: {wrong}: {calls:?}, {written:?}", seat.user)));
    }
    faults
}

fn is_kept(expect: &Expect, row: Option<&Engine>) -> bool {
    let is = |id: &Option<String>, row: &Engine| id.as_ref().is_none_or(|id| *id == row.engine_id);
    match (expect, row) {
        (Expect::Unknown, _) | (Expect::Absent, None) => true,
        (Expect::Up(id), Some(row)) => row.status != "stopped" && is(id, row),
        (Expect::Stopped(id), Some(row)) => row.status == "stopped" && is(id, row),
        (Expect::Absent, Some(_)) | (Expect::Up(_) | Expect::Stopped(_), None) => false,
    }
}

/// Compares a user's calls with the ledger's rows about them.
fn written_right(calls: &[&Call], written: &[&Audit], alone: bool) -> Vec<String> {
    let mut faults = Vec::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in written {
        *counts.entry(row.event.as_str()).or_default() += 1;
    }
    for event in ["provision", "provision_failed", "start", "stop", "wake", "rotate_key", "destroy"] {
        let rows = counts.get(event).copied().unwrap_or_default();
        let may = calls.iter().filter(|call| call.op.writes(event) && call.outcome.may_have_acted()).count();
        if rows > may {
            faults.push(format!("{rows} rows {event}, and at most {may} calls"));
        }
        // What others share writes no row of its own.
        let own = matches!(event, "stop" | "rotate_key" | "destroy") || (alone && event == "start");
        let must = calls
            .iter()
            .filter(|call| call.op.writes(event) && matches!(call.outcome, Outcome::Done(_)))
            .count();
        if own && rows < must {
            faults.push(format!("{rows} rows {event} for {must} acknowledged calls"));
        }
    }
    for call in calls {
        let (event, id) = match (call.op, &call.outcome) {
            (Op::Provision, Outcome::Done(id)) => ("provision", id),
            (Op::Destroy, Outcome::Done(id)) => ("destroy", id),
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
        Call { seat: 0, op, outcome }
    }

    fn row(event: &str, engine_id: &str) -> Audit {
        Audit {
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

    fn wrong(calls: &[Call], written: &[Audit]) -> usize {
        written_right(&calls.iter().collect::<Vec<_>>(), &written.iter().collect::<Vec<_>>(), true).len()
    }

    #[test]
    fn each_acknowledged_call_has_its_one_row() {
        let done = |op, id: &str| call(op, Outcome::Done(Some(id.into())));
        let calls = [done(Op::Provision, "eng_1"), done(Op::Destroy, "eng_1"), done(Op::Provision, "eng_2")];
        let rows = [row("provision", "eng_1"), row("destroy", "eng_1"), row("provision", "eng_2")];
        assert_eq!(wrong(&calls, &rows), 0);
        for missing in 0..rows.len() {
            let mut rows = rows.to_vec();
            rows.remove(missing);
            assert_ne!(wrong(&calls, &rows), 0, "without row {missing}");
        }
        assert_ne!(wrong(&[call(Op::Stop, Outcome::Done(None))], &[]), 0);
    }

    #[test]
    fn what_was_cut_off_may_be_done_once_and_what_was_not_asked_for_may_not() {
        let rows = [row("stop", "eng_1")];
        for (outcome, wrongs) in [
            (Outcome::Unknown, 0),
            (Outcome::Done(None), 0),
            (Outcome::Unsent, 1),
            (Outcome::Refused(409, "ENGINE_NOT_RUNNING".into()), 1),
        ] {
            assert_eq!(wrong(&[call(Op::Stop, outcome.clone())], &rows), wrongs, "{outcome:?}");
        }
        assert_eq!(wrong(&[call(Op::Stop, Outcome::Unknown)], &[]), 0);
        assert_eq!(wrong(&[], &rows), 1);
        assert_eq!(wrong(&[], &[row("crash", "eng_1"), row("restart", "eng_1")]), 0);
    }
}
