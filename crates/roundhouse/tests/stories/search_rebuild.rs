//! The memory of an earlier version is indexed anew in the background: searches work throughout, however often the
//! engine is killed meanwhile, and the index ends whole.
//!
//! `ROUNDHOUSE_TEST_REBUILD_MESSAGES=100000 ROUNDHOUSE_TEST_REBUILD_KILLS=50 cargo test --release --test stories
//! search_rebuild -- --nocapture` is the full size. `ROUNDHOUSE_TEST_REBUILD_SEED` repeats the choices of a run, which
//! prints its own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use reqwest::{Body, Method};
use rusqlite::{Connection, OpenFlags};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::http::path_segment;
use crate::support::synthetic_export::{SyntheticExport, TURNS_PER_TASK, name_of_turn, record_of_turn};
use crate::support::test_env::BINARY;
use crate::support::{Engine, Program, StandaloneEngine, env_number, eventually, processes, with_deadline};
use crate::upgrades::earlier_programs;

/// How long a search may take, however busy the writer is.
const SEARCH_LIMIT: Duration = Duration::from_secs(5);

/// How long the index may take after the last start.
const REBUILD_LIMIT: Duration = Duration::from_mins(10);

/// How long a kill is put off: at most the time of three commits of the index, 200 of its entries each.
const MAX_DELAY_MS: usize = 500;

/// Where less is left to index, a kill is not put off.
const FEW_LEFT: i64 = 1_000;

/// How many messages and records there must be for each kill, so that most kills find the index partly built.
const ENTRIES_PER_KILL: usize = 3_000;

/// What the id of a record of knowledge begins with.
const RECORD: &str = "mem_";

/// What the names of the tasks that the new version runs begin with.
const NEW_TASK: &str = "now ";

/// Numbers that look random and depend on the seed only.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % end
    }
}

/// What a client knows of an engine that is killed again and again.
struct Scene {
    setup: StandaloneEngine,
    random: RefCell<Random>,
    /// The number of turns that the earlier version remembered, with a record of knowledge for each.
    turns: usize,
    /// The texts that are found, with the task or the record that each is in. They stay found.
    found: RefCell<BTreeMap<String, String>>,
    /// How many turns the running engine has told the end of.
    turns_ended: Cell<usize>,
    /// Whether the running engine has been killed, so that requests fail.
    is_killed: Cell<bool>,
    /// How many messages and records were left to index at the last kill.
    left: Cell<i64>,
}

/// Whether a text is found, which is in this task or record and in no other; the error of a request that the engine did
/// not answer.
async fn is_found(engine: &Engine, text: &str, place: &str) -> Result<bool, reqwest::Error> {
    let started = Instant::now();
    let body = json!({"method": "memory.search", "params": {"query": text}});
    let searching = async {
        let response = engine.request(Method::POST, "/rpc").json(&body).send().await?;
        Ok::<_, reqwest::Error>((response.status(), response.json::<Value>().await?))
    };
    let (status, answer) = with_deadline("a search", searching).await?;
    assert_eq!(status, 200, "{answer}");
    assert!(started.elapsed() < SEARCH_LIMIT, "{:?} for {text}", started.elapsed());
    let (kind, name) = if place.starts_with(RECORD) { ("knowledge", "id") } else { ("message", "task_id") };
    let mut results = answer["result"]["results"].as_array().unwrap().iter();
    let has_text =
        |found: &&Value| found["kind"] == kind && found["content"].as_str().unwrap().contains(text);
    let found = results.find(has_text);
    if let Some(found) = found {
        assert_eq!(found[name], place, "{text}");
    }
    Ok(found.is_some())
}

/// Runs a turn; an error if its end was not told.
async fn run_turn(engine: &Engine, task: &str, text: &str) -> Result<(), String> {
    let request = engine.request(Method::POST, "/execute").json(&direct_message(task, text));
    let events = async { request.send().await?.error_for_status()?.text().await };
    let events = with_deadline("a turn", events).await.map_err(|error| format!("{error:?}"))?;
    if events.contains(r#""phase":"completed""#) { Ok(()) } else { Err(events) }
}

impl Scene {
    /// The number of messages and records that are indexed, and that are still to be.
    fn progress(&self) -> (i64, i64) {
        let brain =
            Connection::open_with_flags(self.setup.brain(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        let count = |table: &str| {
            brain.query_row(&format!("SELECT COUNT(*) FROM {table}"), [], |row| row.get(0)).unwrap()
        };
        (count("indexed"), count("to_index"))
    }

    /// A text that was found before.
    fn found_before(&self) -> Option<(String, String)> {
        let found = self.found.borrow();
        let number = self.random.borrow_mut().below(found.len().max(1));
        found.iter().nth(number).map(|(text, place)| (text.clone(), place.clone()))
    }

    fn remember_found(&self, text: String, place: String) {
        self.found.borrow_mut().insert(text, place);
    }

    /// Asserts that a request failed for no other reason than the kill.
    fn assert_killed(&self, error: &str) {
        assert!(self.is_killed.get(), "the engine was not killed, but: {error}");
    }

    /// Runs turns until the engine is killed. What is said is found at once.
    async fn talk(&self, engine: &Engine, task: &str) {
        for turn in 0.. {
            let text = format!("Marker{}n{turn}x", task.replace(' ', ""));
            if let Err(error) = run_turn(engine, task, &text).await {
                return self.assert_killed(&error);
            }
            self.turns_ended.set(turn + 1);
            self.remember_found(text.clone(), task.to_owned());
            match is_found(engine, &text, task).await {
                Ok(is_found) => assert!(is_found, "{text} was said"),
                Err(error) => return self.assert_killed(&error.to_string()),
            }
        }
    }

    /// Searches until the engine is killed: what was found is found again, and more is, the further the index is.
    async fn search(&self, engine: &Engine) {
        for number in 0.. {
            let before = self.found_before().filter(|_| number % 2 == 0);
            let was_found = before.is_some();
            let (text, place) = before.unwrap_or_else(|| {
                let turn = self.random.borrow_mut().below(self.turns);
                remembered_text(turn, number % 4 == 1)
            });
            match is_found(engine, &text, &place).await {
                Ok(true) => self.remember_found(text, place),
                Ok(false) => assert!(!was_found, "{text} was found in {place}"),
                Err(error) => return self.assert_killed(&error.to_string()),
            }
        }
    }

    /// Kills the engine soon after it has indexed a part of what the last one left and run a turn, or before there is
    /// nothing left. Returns whether the index was partly built.
    async fn kill(&self, program: &Program) -> bool {
        let left = eventually("something is indexed, and a turn has ended", async || {
            let (indexed, left) = self.progress();
            let is_at_work = indexed > 0 && left < self.left.get();
            let has_turn = self.turns_ended.get() > 0;
            let is_due = if left > 0 { is_at_work && (has_turn || left < FEW_LEFT) } else { has_turn };
            is_due.then_some(left)
        })
        .await;
        if left >= FEW_LEFT {
            let delay = self.random.borrow_mut().below(MAX_DELAY_MS);
            tokio::time::sleep(Duration::from_millis(u64::try_from(delay).unwrap())).await;
        }
        // What is read now is what the next start finds: a stopped process writes nothing.
        processes::signal(program.pid(), Signal::STOP);
        let (indexed, left) = self.progress();
        self.is_killed.set(true);
        processes::kill(program.pid());
        self.left.set(left);
        indexed > 0 && left > 0
    }

    /// Asserts that all is found that was found before.
    async fn assert_found(&self, engine: &Engine) {
        let found = self.found.borrow().clone();
        for (text, place) in found {
            assert!(is_found(engine, &text, &place).await.unwrap(), "{text} was found in {place}");
        }
    }
}

/// The number of messages of a task, when it is idle; none if a kill came before it was stored.
async fn message_count(engine: &Engine, task: &str) -> i64 {
    eventually("the task is idle", async || {
        let answer = engine.get(&format!("/tasks/{}/conversation", path_segment(task))).await;
        let count = answer.body["message_count"].as_i64();
        if answer.status == 404 { Some(0) } else { count.filter(|_| answer.body["status"] == "idle") }
    })
    .await
}

/// A text that the earlier version remembered: the name of a turn or a record, with the place that it is in.
fn remembered_text(turn: usize, is_record: bool) -> (String, String) {
    if is_record {
        let (id, content) = record_of_turn(turn);
        (content.trim_end().to_owned(), id)
    } else {
        (name_of_turn(turn), format!("task {}", turn / TURNS_PER_TASK))
    }
}

#[tokio::test]
async fn what_an_earlier_version_remembered_is_found_again_however_often_the_engine_is_killed() {
    let messages = env_number("ROUNDHOUSE_TEST_REBUILD_MESSAGES", 1_600);
    let kills = env_number("ROUNDHOUSE_TEST_REBUILD_KILLS", 4);
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = env_number("ROUNDHOUSE_TEST_REBUILD_SEED", usize::try_from(clock.subsec_nanos()).unwrap());
    eprintln!("seed {seed}");
    let Some(earlier) = earlier_programs() else { return };
    let tasks = messages / (2 * TURNS_PER_TASK);
    let document = SyntheticExport::with_tasks(tasks).with_short_messages();

    // The memory as the earlier version leaves it.
    let setup = StandaloneEngine::new().with_program(earlier.last().unwrap());
    let (program, engine) = setup.start().await;
    let body = Body::wrap_stream(futures::stream::iter(document.chunks().map(Ok::<_, std::io::Error>)));
    let imported = engine.request(Method::POST, "/memory/import?mode=merge").body(body).send().await.unwrap();
    assert_eq!(imported.status(), 200, "{}", imported.text().await.unwrap());
    processes::kill(program.pid());

    let turns = tasks * TURNS_PER_TASK;
    let remembered = i64::try_from(3 * turns).unwrap();
    let scene = Scene {
        setup: setup.with_program(BINARY),
        random: RefCell::new(Random(u64::try_from(seed).unwrap())),
        turns,
        found: RefCell::default(),
        turns_ended: Cell::default(),
        is_killed: Cell::default(),
        left: Cell::new(remembered),
    };
    let mut partly_indexed = 0;
    for kill in 0..kills {
        let (program, engine) = scene.setup.start().await;
        scene.is_killed.set(false);
        scene.turns_ended.set(0);
        let task = format!("{NEW_TASK}{kill}");
        let (is_partly_indexed, (), ()) =
            tokio::join!(scene.kill(&program), scene.talk(&engine, &task), scene.search(&engine));
        partly_indexed += usize::from(is_partly_indexed);
        eprintln!(
            "kill {kill}: {} left to index, {} turns ended, {} texts found so far",
            scene.left.get(),
            scene.turns_ended.get(),
            scene.found.borrow().len()
        );
    }
    let least = if 3 * turns < kills * ENTRIES_PER_KILL { 1 } else { kills / 2 + 1 };
    let found = scene.found.borrow().values().filter(|place| !place.starts_with(NEW_TASK)).count();
    assert!(found > 0, "nothing of the earlier version was found before the last kill");
    assert!(partly_indexed >= least, "{partly_indexed} of {kills} kills while a part was indexed");

    let (_program, engine) = scene.setup.start().await;
    let began = Instant::now();
    scene.assert_found(&engine).await;
    while scene.progress().1 > 0 {
        assert!(began.elapsed() < REBUILD_LIMIT, "{:?}", scene.progress());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    eprintln!("indexed {:?} after the last start", began.elapsed());
    scene.assert_found(&engine).await;
    for turn in (0..turns).step_by(tasks.max(7)) {
        for is_record in [false, true] {
            let (text, place) = remembered_text(turn, is_record);
            assert!(is_found(&engine, &text, &place).await.unwrap(), "{text} is in {place}");
        }
    }
    let mut said = 0;
    for kill in 0..kills {
        said += message_count(&engine, &format!("{NEW_TASK}{kill}")).await;
    }
    assert!(said > 0, "no turn ran beside the index");
    assert_eq!(scene.progress().0, remembered + said);
}
