//! Which files are opened, which are refused and left unchanged, and what a brain preserves.

use std::fs;

use api::MessageId;
use api::Timestamp;
use api::event::StopReason;
use pretty_assertions::assert_eq;
use resources::text::error_chain;
use serde_json::json;
use tempfile::TempDir;
use testkit::{task_id, with_deadline};

use super::steps::{MemoryWrite, Step, TurnOutcome};
use super::*;

const NOW: Timestamp = Timestamp::from_unix_ms(1_000);

fn temp_brain_file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("brain.sqlite");
    (folder, file)
}

/// The error with which `file` is refused, including all causes.
fn open_error(file: &Path) -> String {
    let Err(error) = Brain::open(file) else { panic!("{} was opened", file.display()) };
    error_chain(&error)
}

fn opened() -> Step {
    Step::Opened(crate::testing::opened("q"))
}

fn ended() -> Step {
    Step::Ended { outcome: TurnOutcome::Completed { stop_reason: StopReason::EndTurn } }
}

type WriteFn = dyn Fn(&WriteTx<'_>) -> Result<(), StoreError> + Send + Sync;

/// A batch that runs a function and reports the result of its commit.
struct FnBatch {
    write: Box<WriteFn>,
    result_sender: tokio::sync::mpsc::UnboundedSender<Result<(), WriteError>>,
}

impl WriteBatch for FnBatch {
    fn collect(&self) -> Durability {
        Durability::ProcessKill
    }

    fn write(&self, tx: &WriteTx<'_>) -> Result<(), StoreError> {
        (self.write)(tx)
    }

    fn complete(&self, result: &Result<(), WriteError>) {
        self.result_sender.send(result.clone()).unwrap();
    }
}

async fn write(
    brain: &Brain,
    write: impl Fn(&WriteTx<'_>) -> Result<(), StoreError> + Send + Sync + 'static,
) -> Result<(), WriteError> {
    let (result_sender, mut results) = tokio::sync::mpsc::unbounded_channel();
    brain.queue(Arc::new(FnBatch { write: Box::new(write), result_sender }));
    with_deadline(results.recv()).await.unwrap()
}

fn new_turn(turn_id: TurnId, message_id: MessageId) -> NewTurn {
    NewTurn { turn_id, message_id, request: None }
}

fn colour(value: &str) -> MemoryWrite {
    MemoryWrite { key: "colour".into(), value: json!(value) }
}

#[tokio::test]
async fn a_brain_that_is_opened_again_has_kept_everything() {
    let (_folder, file) = temp_brain_file();
    let (turn, message_id, step) = (TurnId::new(), MessageId::new(), opened());
    let brain = Brain::open(&file).unwrap();
    brain.check_health().unwrap();
    assert!(brain.last_task().unwrap().is_none());
    let row = brain.reserve_task();
    let first = step.clone();
    let stored = write(&brain, move |tx| {
        tx.insert_task(row, &task_id("t"), NOW)?;
        tx.insert_turn(row, &new_turn(turn, message_id), 7, NOW)?;
        tx.insert_step(row, turn, NOW, 7, &first)?;
        tx.insert_event(row, turn, 7, "thread_lifecycle", "{}")?;
        tx.set_working_memory(row, &colour("red"))?;
        tx.set_working_memory(row, &colour("green"))
    });
    stored.await.unwrap();
    with_deadline(brain.close()).await;

    let brain = Brain::open(&file).unwrap();
    let entry = brain.task(&task_id("t")).unwrap().unwrap();
    assert_eq!((entry.row, entry.last_ts), (row, 7));
    assert_eq!(brain.last_task().unwrap(), Some(task_id("t")));
    assert_eq!(brain.steps(row).unwrap(), [StoredStep { turn_id: turn, opened_ts: 7, ts: 7, at: NOW, step }]);
    let event = StoredEvent { ts: 7, turn_id: turn, kind: "thread_lifecycle".into(), data: "{}".into() };
    assert_eq!(brain.events_after(row, 6, (10, 1_000)).unwrap(), [event]);
    assert_eq!(brain.events_after(row, 7, (10, 1_000)).unwrap(), []);
    let open = OpenTurn {
        task_id: task_id("t"),
        turn_id: turn,
        starts: 0,
        message_id,
        request: None,
        opened_ts: 7,
        pending: None,
    };
    assert_eq!(brain.open_turns().unwrap(), [open]);
    assert!(brain.reserve_task() > row);
    let memory: String = Connection::open(&file)
        .unwrap()
        .query_row("SELECT value FROM working_memory WHERE key = 'colour'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(memory, "\"green\"");
}

#[tokio::test]
async fn starts_count_until_a_step_and_an_ended_turn_is_no_longer_open() {
    let (_folder, file) = temp_brain_file();
    let brain = Brain::open(&file).unwrap();
    let (row, turn) = (brain.reserve_task(), TurnId::new());
    let starts = || brain.open_turns().unwrap().first().map(|turn| turn.starts);
    write(&brain, move |tx| {
        tx.insert_task(row, &task_id("t"), NOW)?;
        tx.insert_turn(row, &new_turn(turn, MessageId::new()), 7, NOW)?;
        tx.insert_step(row, turn, NOW, 1, &opened())
    })
    .await
    .unwrap();
    for count in 1..=3 {
        write(&brain, move |tx| tx.increment_start_count(turn)).await.unwrap();
        assert_eq!(starts(), Some(count));
    }
    write(&brain, move |tx| tx.insert_step(row, turn, NOW, 2, &opened())).await.unwrap();
    assert_eq!(starts(), Some(0));
    write(&brain, move |tx| tx.insert_step(row, turn, NOW, 3, &ended())).await.unwrap();
    assert_eq!(starts(), None);
}

#[tokio::test]
async fn an_answer_is_known_by_its_callers_id() {
    let (_folder, file) = temp_brain_file();
    let brain = Brain::open(&file).unwrap();
    let (row, other) = (brain.reserve_task(), brain.reserve_task());
    let turns = [TurnId::new(), TurnId::new(), TurnId::new()];
    let resolved = |answer: &str, answer_id: Option<&str>| Step::Resolved {
        request_id: HitlId::new(),
        answer: answer.into(),
        remarks: Vec::new(),
        answer_id: answer_id.map(str::to_owned),
    };
    let steps = [
        (0, resolved("yes", Some("a"))),
        (1, resolved("say \"answer_id\"", None)),
        (1, resolved("b", Some("say \"c\""))),
        (1, Step::Delegated { call_id: CallId::new(), did: Box::new(resolved("yes", Some("d"))) }),
        (2, resolved("yes", Some("e"))),
    ];
    write(&brain, move |tx| {
        tx.insert_task(row, &task_id("t"), NOW)?;
        tx.insert_task(other, &task_id("o"), NOW)?;
        for (place, turn) in turns.into_iter().enumerate() {
            let row = if place == 2 { other } else { row };
            tx.insert_turn(row, &new_turn(turn, MessageId::new()), 7, NOW)?;
            for (_, step) in steps.iter().filter(|(of, _)| *of == place) {
                tx.insert_step(row, turn, NOW, 7, step)?;
            }
        }
        Ok(())
    })
    .await
    .unwrap();
    let known = |turn: usize, id: &str| brain.has_answer(turns[turn], id).unwrap();
    assert!(known(0, "a") && known(1, "say \"c\"") && known(1, "d") && known(2, "e"));
    assert!(!known(1, "a") && !known(0, "d") && !known(1, "b") && !known(1, "e") && !known(2, "d"));
    assert!(!brain.has_answer(TurnId::new(), "a").unwrap());
}

#[tokio::test]
async fn a_new_turn_gives_up_one_that_was_never_ended() {
    let (_folder, file) = temp_brain_file();
    let brain = Brain::open(&file).unwrap();
    let (row, first, second) = (brain.reserve_task(), TurnId::new(), TurnId::new());
    write(&brain, move |tx| {
        tx.insert_task(row, &task_id("t"), NOW)?;
        tx.insert_turn(row, &new_turn(first, MessageId::new()), 7, NOW)
    })
    .await
    .unwrap();
    write(&brain, move |tx| tx.insert_turn(row, &new_turn(second, MessageId::new()), 7, NOW)).await.unwrap();
    let open: Vec<TurnId> = brain.open_turns().unwrap().into_iter().map(|turn| turn.turn_id).collect();
    assert_eq!(open, [second]);
}

#[tokio::test]
async fn a_step_or_event_of_an_unknown_turn_is_an_error_and_rolls_its_batch_back() {
    let (_folder, file) = temp_brain_file();
    let brain = Brain::open(&file).unwrap();
    let (row, unknown) = (brain.reserve_task(), TurnId::new());
    let event = write(&brain, move |tx| {
        tx.insert_task(row, &task_id("t"), NOW)?;
        tx.insert_event(row, unknown, 1, "usage", "{}")
    });
    assert!(event.await.is_err());
    assert!(brain.task(&task_id("t")).unwrap().is_none());
    assert!(write(&brain, move |tx| tx.insert_step(row, unknown, NOW, 1, &opened())).await.is_err());
}

#[tokio::test]
async fn a_closed_brain_refuses_writes_and_can_be_opened_by_another() {
    let (_folder, file) = temp_brain_file();
    let brain = Brain::open(&file).unwrap();
    with_deadline(brain.close()).await;
    with_deadline(brain.close()).await;
    assert!(write(&brain, |_| Ok(())).await.unwrap_err().to_string().contains("closed"));
    let mut log = file.clone().into_os_string();
    log.push("-wal");
    assert_eq!(fs::metadata(log).unwrap().len(), 0, "the log was not checkpointed");
    drop(Brain::open(&file).unwrap());
}

#[test]
fn a_second_engine_is_refused_and_told_who_has_the_brain() {
    let (_folder, file) = temp_brain_file();
    let brain = Brain::open(&file).unwrap();
    let refusal = open_error(&file);
    assert!(
        refusal.contains(&format!("in use by another engine (process {} ", std::process::id())),
        "{refusal}"
    );
    brain.check_health().unwrap();
}

#[test]
fn a_brain_of_a_newer_engine_is_refused_and_left_as_it_is() {
    let (_folder, file) = temp_brain_file();
    let newer = Connection::open(&file).unwrap();
    newer.execute_batch("CREATE TABLE tasks (task INTEGER); PRAGMA user_version = 7").unwrap();
    drop(newer);
    assert_refused_untouched(&file, &["has schema version 7", "versions up to 1", "newer one"]);
}

#[test]
fn another_programs_database_is_refused_and_left_as_it_is() {
    let (_folder, file) = temp_brain_file();
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE photos (name TEXT)").unwrap();
    assert_refused_untouched(&file, &["not a brain", "SQLITE_DB_PATH"]);
}

#[test]
fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    for content in ["not a database, but long enough to look at. ".repeat(100), "short".into()] {
        let (_folder, file) = temp_brain_file();
        fs::write(&file, content).unwrap();
        assert_refused_untouched(&file, &["damaged or not a brain", "restore it"]);
    }
}

#[tokio::test]
async fn a_damaged_brain_is_refused() {
    let (_folder, file) = temp_brain_file();
    let brain = Brain::open(&file).unwrap();
    with_deadline(brain.close()).await;
    drop(brain);
    // The first page, which identifies a brain of this version, stays; all others are destroyed.
    let mut bytes = fs::read(&file).unwrap();
    let page = 4096;
    assert!(bytes.len() > page);
    bytes[page..].fill(0xA5);
    fs::write(&file, bytes).unwrap();
    let refusal = open_error(&file);
    assert!(refusal.contains("damaged or not a brain"), "{refusal}");
}

#[track_caller]
fn assert_refused_untouched(file: &Path, words: &[&str]) {
    let before = fs::read(file).unwrap();
    let refusal = open_error(file);
    for word in words.iter().chain([&file.to_str().unwrap()]) {
        assert!(refusal.contains(word), "{word}: {refusal}");
    }
    assert!(before == fs::read(file).unwrap(), "the file was changed");
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let (folder, file) = temp_brain_file();
    fs::write(&file, "").unwrap();
    let below_a_file = file.join("deep").join("brain.sqlite");
    let refused = open_error(&below_a_file);
    assert!(refused.contains(&file.join("deep").display().to_string()), "{refused}");
    // A lock file that cannot be opened: a folder has its path.
    fs::create_dir(folder.path().join("other.sqlite.lock")).unwrap();
    let refused = open_error(&folder.path().join("other.sqlite"));
    assert!(refused.contains("other.sqlite.lock cannot be opened or locked"), "{refused}");
}

#[test]
fn a_missing_folder_is_made_and_a_dropped_brain_frees_its_lock() {
    let (folder, _) = temp_brain_file();
    let file = folder.path().join("a/b/brain.sqlite");
    drop(Brain::open(&file).unwrap());
    // The writer releases the lock when it has finished, which nobody waits for here.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while Brain::open(&file).is_err() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn sqlite_is_built_as_the_workspace_says() {
    let connection = Connection::open_in_memory().unwrap();
    let mut options = connection.prepare("SELECT compile_options FROM pragma_compile_options").unwrap();
    let options: Vec<String> =
        options.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    let has = |option: &str| options.iter().any(|other| other == option);
    // Set in `.cargo/config.toml`, which takes effect only if cargo runs within the workspace.
    assert!(has("DEFAULT_MEMSTATUS=0") && has("DEFAULT_PCACHE_INITSZ=0"), "{options:?}");
    assert!(!has("ENABLE_MEMORY_MANAGEMENT"), "{options:?}");
}

#[tokio::test]
async fn credentials_do_not_pass_between_a_server_of_the_catalog_and_one_of_the_user() {
    let (_folder, file) = temp_brain_file();
    let brain = Brain::open(&file).unwrap();
    let connection = |identity: &str| ConnectionRow {
        id: api::ConnectionId::new(),
        server: "notes".into(),
        status: api::assets::ConnectionStatus::Connected,
        error: None,
        identity: identity.into(),
        tools: "[]".into(),
        created_at: NOW,
    };
    for (before, after, kept) in
        [("a", "b", true), ("user:a", "user:b", true), ("a", "user:a", false), ("user:a", "a", false)]
    {
        let (before, after) = (connection(before), connection(after));
        let write = move |tx: &WriteTx<'_>| {
            tx.upsert_connection(&before)?;
            tx.set_credentials("notes", "sealed")?;
            tx.upsert_connection(&after)
        };
        brain.write(write).await.unwrap();
        assert_eq!(brain.credentials("notes").unwrap().is_some(), kept);
    }
}
