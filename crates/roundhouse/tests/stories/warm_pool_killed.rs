//! Whenever the orchestrator is killed, no two users get the same warm engine, and nothing is left of any in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use reqwest::Method;
use rusqlite::{Connection, OpenFlags};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Engine, Product, env_number, eventually};
use crate::warm_pool::WarmFleet;

/// Users that provision at once in each round.
const USERS: usize = 3;

/// Users that have an engine at the end of a round.
const MAX_ALIVE: usize = 4;

/// A user's engine, as some answer named it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    id: String,
    key: String,
    /// The product and the user.
    owner: (usize, String),
}

fn known(owner: &(usize, String), record: &Value) -> Known {
    let text = |name: &str| record[name].as_str().unwrap().to_owned();
    Known { id: text("engine_id"), key: text("api_key"), owner: owner.clone() }
}

/// What the kills have found.
#[derive(Debug, Default)]
struct Counts {
    warm_boots: usize,
    claims: usize,
    warm_ends: usize,
    taken: usize,
}

/// Looks at the registry that a kill has left; `None` if it is in no file.
fn registry_of(fleet: &WarmFleet) -> Option<(i64, i64, i64)> {
    let file = fleet.deployment.fleet.folder().join("registry.sqlite");
    let registry = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    let count = |query: &str| registry.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap();
    Some((
        count("SELECT COUNT(*) FROM warm_engines WHERE state = 'booting'"),
        count("SELECT COUNT(*) FROM engines WHERE claim_kind = 'provision' AND instance IS NOT NULL"),
        count("SELECT COUNT(*) FROM warm_engines WHERE state = 'ending'"),
    ))
}

/// A number that looks random and depends only on `seed`.
const fn random(seed: u64) -> u64 {
    let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33
}

struct World {
    products: [Product; 2],
    /// Each engine that any user was ever given.
    seen: BTreeMap<String, Known>,
    /// The users that have an engine, in the order in which they got it.
    alive: Vec<Known>,
}

impl World {
    /// Notes the engine of a user. Nobody else may ever have had it.
    fn note(&mut self, engine: Known, is_new: bool) {
        let first = self.seen.entry(engine.id.clone()).or_insert_with(|| engine.clone());
        assert_eq!(*first, engine, "an engine of two users");
        assert!(!self.seen.values().any(|other| other.id != engine.id && other.key == engine.key));
        if is_new {
            self.alive.push(engine);
        }
    }

    /// Checks that the user's engine is theirs: its tasks are those that they began.
    async fn check(&self, engine: &Known, record: &Value, expected: &[&str]) {
        let engine_calls = Engine::new(record);
        let tasks = engine_calls.get("/tasks").await;
        assert_eq!(tasks.status, 200, "the key is that of the engine: {tasks:?}");
        let tasks: BTreeSet<_> = tasks.body["tasks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|task| task["task_id"].as_str().unwrap())
            .collect();
        assert_eq!(tasks, expected.iter().copied().collect(), "{engine:?}");
    }
}

/// What became of a provision that was interrupted: the engine's record, if there is one.
async fn outcome(product: &Product, user: &str) -> Option<Value> {
    // What was interrupted may be rolled back first.
    eventually("it is known what became of the provision", async || {
        let answer = product.get(user).await;
        match (answer.status, answer.body["status"].as_str()) {
            (404, _) => Some(None),
            (200, Some("running")) => Some(Some(answer.body)),
            _ => None,
        }
    })
    .await
}

/// Kills come at random moments of a round, in which users of two products are provisioned and deleted while the pool is
/// filled again. `ROUNDHOUSE_TEST_WARM_KILLS` sets how many there are.
#[tokio::test]
#[expect(clippy::print_stdout, reason = "the counts are printed for runs with --nocapture")]
async fn however_often_the_orchestrator_is_killed_no_engine_has_two_users() {
    let kills = env_number("ROUNDHOUSE_TEST_WARM_KILLS", 6);
    let window_ms = u64::try_from(env_number("ROUNDHOUSE_TEST_WARM_WINDOW_MS", 150)).unwrap();
    let Some(fleet) = WarmFleet::new(2) else { return };
    let mut orchestrator = fleet.deployment.start().await;
    let products =
        [orchestrator.register("shop", json!({})).await, orchestrator.register("bank", json!({})).await];
    let mut world = World { products, seen: BTreeMap::new(), alive: Vec::new() };
    let mut counts = Counts::default();
    for round in 0..kills {
        // Mostly there are warm engines to be taken; sometimes the pool has just begun.
        if round % 3 != 0 {
            fleet.wait_ready(4).await;
        }
        let marked = fleet.marked();
        let users: Vec<_> = (0..USERS).map(|user| (user % 2, format!("user-{round}-{user}"))).collect();
        let calls = users.iter().map(|(product, user)| {
            let (product, user) = (world.products[*product].clone(), user.clone());
            tokio::spawn(async move {
                product
                    .request(Method::POST, "/engines/provision")
                    .json(&json!({"user_id": user}))
                    .send()
                    .await
            })
        });
        let calls: Vec<_> = calls.collect();
        let leaving = (world.alive.len() == MAX_ALIVE).then(|| world.alive.remove(0));
        let deletion = leaving.clone().map(|leaving| {
            let product = world.products[leaving.owner.0].clone();
            let path = format!("/engines/{}", leaving.owner.1);
            tokio::spawn(async move { product.request(Method::DELETE, &path).send().await })
        });
        // Not a wait for something: the kills come at different moments.
        let delay = random(u64::try_from(round).unwrap() + 0x9e37_79b9_7f4a_7c15) % (window_ms * 1_000);
        tokio::time::sleep(Duration::from_micros(delay)).await;
        assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
        let mut answers = BTreeMap::new();
        for (owner, call) in users.iter().zip(calls) {
            let Ok(answer) = call.await.unwrap() else { continue };
            let status = answer.status();
            if let (Ok(body), true) = (answer.json::<Value>().await, status == 200) {
                answers.insert(owner.clone(), known(owner, &body));
            }
        }
        if let Some(deletion) = deletion {
            let _ = deletion.await.unwrap();
        }
        if let Some((booting, claimed, ending)) = registry_of(&fleet) {
            counts.warm_boots += usize::from(booting > 0);
            counts.claims += usize::from(claimed > 0);
            counts.warm_ends += usize::from(ending > 0);
        }
        orchestrator = fleet.deployment.start().await;

        for owner in &users {
            let product = world.products[owner.0].clone();
            let record = outcome(&product, &owner.1).await;
            let Some(record) = record else {
                assert!(!answers.contains_key(owner), "an engine that was answered is gone: {owner:?}");
                continue;
            };
            let engine = known(owner, &record);
            if let Some(answered) = answers.get(owner) {
                assert_eq!(*answered, engine, "the answer was another one");
            }
            counts.taken += usize::from(marked.contains(&engine.id));
            world.check(&engine, &record, &[]).await;
            Engine::new(&record).execute(&owner.1, "Hello!").await.collect().await;
            world.note(engine, true);
        }
        if let Some(leaving) = leaving {
            let answer = world.products[leaving.owner.0].delete(&leaving.owner.1).await;
            assert!([200, 404].contains(&answer.status), "{answer:?}");
        }
        // The ports suffice for few.
        while world.alive.len() > MAX_ALIVE {
            let leaving = world.alive.remove(0);
            assert_eq!(world.products[leaving.owner.0].delete(&leaving.owner.1).await.status, 200);
        }
    }
    println!("{kills} kills: {counts:?}, {} engines had a user", world.seen.len());

    for engine in std::mem::take(&mut world.alive) {
        let record = world.products[engine.owner.0].get(&engine.owner.1).await.body;
        assert_eq!(known(&engine.owner, &record), engine);
        world.check(&engine, &record, &[&engine.owner.1]).await;
        world.note(engine.clone(), false);
        assert_eq!(world.products[engine.owner.0].delete(&engine.owner.1).await.status, 200);
    }
    assert_eq!(orchestrator.operate(Method::POST, "/fleet/drain").await.status, 200);
    let started = Instant::now();
    let left = eventually("nothing is left", async || {
        let left =
            (fleet.instances().await, fleet.folders(), fleet.marked(), orchestrator.leased_ports().await);
        let is_clean = left.0 == 0 && left.1.is_empty() && left.2.is_empty() && left.3 == 0;
        (is_clean || started.elapsed() > Duration::from_secs(45)).then_some(left)
    })
    .await;
    assert_eq!(left, (0, BTreeSet::new(), BTreeSet::new(), 0), "instances, folders, marks, ports");
}
