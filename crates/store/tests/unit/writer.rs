//! Which thread commits a batch, that none is lost or stored twice, and that the thread of the writer cleans up after
//! all of them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, ThreadId};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::Brain;
use crate::TaskRow;
use crate::steps::MemoryWrite;

const DEADLINE: Duration = Duration::from_secs(20);

type WriteFn = dyn Fn(&WriteTx<'_>) -> Result<(), StoreError> + Send + Sync;

/// A batch that says which thread stored it, with what result, and how often it was completed.
struct Probe {
    /// Received before it is written, if given.
    gate: Option<Mutex<Receiver<()>>>,
    entered: Sender<()>,
    write: Box<WriteFn>,
    completed: Sender<(ThreadId, bool)>,
}

impl WriteBatch for Probe {
    fn collect(&self) -> Durability {
        Durability::ProcessKill
    }

    fn write(&self, tx: &WriteTx<'_>) -> Result<(), StoreError> {
        let _ = self.entered.send(());
        if let Some(gate) = &self.gate {
            gate.lock().recv_timeout(DEADLINE).unwrap();
        }
        (self.write)(tx)
    }

    fn complete(&self, result: &Result<(), WriteError>) {
        self.completed.send((thread::current().id(), result.is_ok())).unwrap();
    }
}

/// What a test sees of a [`Probe`].
struct Probed {
    entered: Receiver<()>,
    completed: Receiver<(ThreadId, bool)>,
}

impl Probed {
    /// The thread that completed the batch, and whether it is stored.
    fn completion(&self) -> (ThreadId, bool) {
        self.completed.recv_timeout(DEADLINE).unwrap()
    }
}

fn probe(
    gate: Option<Receiver<()>>,
    write: impl Fn(&WriteTx<'_>) -> Result<(), StoreError> + Send + Sync + 'static,
) -> (Arc<dyn WriteBatch>, Probed) {
    let ((entered_sender, entered), (completed_sender, completed)) = (channel(), channel());
    let probe = Probe {
        gate: gate.map(Mutex::new),
        entered: entered_sender,
        write: Box::new(write),
        completed: completed_sender,
    };
    (Arc::new(probe), Probed { entered, completed })
}

fn open_brain() -> (TempDir, Brain) {
    let folder = tempfile::tempdir().unwrap();
    let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
    (folder, brain)
}

fn count(tx: &WriteTx<'_>, key: &str) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO settings (name, value) VALUES (?1, '1')
         ON CONFLICT (name) DO UPDATE SET value = value + 1",
        [key],
    )
}

/// How often each batch was stored.
fn counts(brain: &Brain) -> Vec<(String, i64)> {
    let sql = "SELECT name, CAST(value AS INTEGER) FROM settings ORDER BY name";
    let read = |reader: &Connection| {
        reader.prepare(sql)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
    };
    brain.read(read).unwrap()
}

#[test]
fn a_batch_is_stored_by_the_thread_that_brings_it_if_nobody_writes() {
    let (_folder, brain) = open_brain();
    let (batch, probed) = probe(None, |tx| count(tx, "a"));
    brain.commit_here(batch);
    assert_eq!(probed.completion(), (thread::current().id(), true));
    assert_eq!(counts(&brain), [("a".to_owned(), 1)]);
}

#[test]
fn a_batch_is_left_to_the_writer_while_another_commit_runs() {
    let (_folder, brain) = open_brain();
    let (open_gate, gate) = channel();
    let (blocked, blocked_probed) = probe(Some(gate), |tx| count(tx, "blocked"));
    let other = {
        let brain = brain.clone();
        thread::spawn(move || brain.commit_here(blocked))
    };
    blocked_probed.entered.recv_timeout(DEADLINE).unwrap();

    let (batch, probed) = probe(None, |tx| count(tx, "late"));
    // It returns although the other commit never ends before the gate opens.
    brain.commit_here(batch);
    assert!(probed.completed.try_recv().is_err());
    open_gate.send(()).unwrap();
    let (stored_by, is_stored) = probed.completion();
    assert!(is_stored && stored_by != thread::current().id() && stored_by != other.thread().id());
    assert!(blocked_probed.completion().1);
    other.join().unwrap();
}

#[test]
fn what_was_queued_before_is_part_of_the_commit_or_was_stored_before_it() {
    let (_folder, brain) = open_brain();
    for round in 0..200 {
        let (first, first_probed) = probe(None, move |tx| count(tx, "first"));
        let (second, second_probed) = probe(None, move |tx| {
            // The first one is stored already, or written before this one in the same transaction.
            let sql = "SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'first'";
            let stored: i64 = tx.transaction.query_row(sql, [], |row| row.get(0))?;
            assert_eq!(stored, round + 1);
            count(tx, "second")
        });
        brain.queue(first);
        brain.commit_here(second);
        assert!(first_probed.completion().1 && second_probed.completion().1);
    }
    assert_eq!(counts(&brain), [("first".to_owned(), 200), ("second".to_owned(), 200)]);
}

#[test]
fn a_batch_that_panics_fails_alone_and_its_thread_goes_on() {
    let (_folder, brain) = open_brain();
    let (batch, probed) = probe(None, |_| panic!("on purpose"));
    brain.commit_here(batch);
    assert_eq!(probed.completion(), (thread::current().id(), false));
    assert!(brain.check_health().is_err());
    let (batch, probed) = probe(None, |tx| count(tx, "after"));
    brain.commit_here(batch);
    assert!(probed.completion().1);
    brain.check_health().unwrap();
}

/// Fails to report its result, which nothing recovers.
struct Unreportable;

impl WriteBatch for Unreportable {
    fn collect(&self) -> Durability {
        Durability::ProcessKill
    }

    fn write(&self, _: &WriteTx<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn complete(&self, _: &Result<(), WriteError>) {
        panic!("on purpose");
    }
}

#[tokio::test]
async fn if_the_thread_of_the_writer_dies_nobody_waits_for_it_and_the_brain_can_be_opened_again() {
    let (folder, brain) = open_brain();
    brain.queue(Arc::new(Unreportable));
    let written = testkit::with_deadline(async {
        // What is queued before the thread has died is refused by it, what is queued later at once.
        while brain.write(|tx| count(tx, "a")).await.is_ok() {}
    });
    written.await;
    let (batch, probed) = probe(None, |tx| count(tx, "late"));
    brain.commit_here(batch);
    assert!(!probed.completion().1);
    // The first handle still exists, but no longer has the brain open.
    let file = folder.path().join("brain.sqlite");
    Brain::open(&file).unwrap().check_health().unwrap();
    drop(brain);
}

#[tokio::test]
async fn after_the_end_batches_are_refused_and_what_was_queued_is_stored() {
    let (folder, brain) = open_brain();
    let (queued, queued_probed) = probe(None, |tx| count(tx, "queued"));
    brain.queue(queued);
    brain.close().await;
    assert!(queued_probed.completion().1);
    let (batch, probed) = probe(None, |tx| count(tx, "late"));
    brain.commit_here(batch);
    assert_eq!(probed.completion(), (thread::current().id(), false));
    drop(brain);
    let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
    assert_eq!(counts(&brain), [("queued".to_owned(), 1)]);
}

/// The thread of the writer sleeps without a timeout when it has cleaned up; a commit of another thread must wake it.
#[tokio::test]
async fn caches_are_released_after_commits_of_other_threads_too() {
    let (_folder, brain) = open_brain();
    for _ in 0..2 {
        let (batch, probed) = probe(None, |tx| count(tx, "a"));
        brain.commit_here(batch);
        assert!(probed.completion().1);
        testkit::with_deadline(brain.caches_released()).await;
    }
}

/// Otherwise the log would grow as long as only other threads commit, without a pause in which the writer is idle.
#[test]
fn a_checkpoint_is_due_after_a_number_of_commits_whichever_threads_they_are_of() {
    let queue = Queue { commits: CHECKPOINT_COMMIT_INTERVAL - 1, ..Queue::default() };
    let shared = Shared {
        queue: Mutex::new(queue),
        work: Condvar::new(),
        committer: Mutex::new(None),
        last_result: Mutex::new(Ok(())),
    };
    assert!(!shared.queue.lock().needs_thread());
    shared.queue.lock().batches.push_back(probe(None, |_| Ok(())).0);
    assert_eq!(shared.queue.lock().next_group().len(), 1);
    // Nothing is queued any more, but the thread is woken for this.
    assert!(shared.queue.lock().needs_thread());
    assert!(matches!(shared.next_work(0), Work::Checkpoint));
    assert!(!shared.queue.lock().needs_thread());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 12 } else { 64 }))]

    /// Several threads bring batches both ways, some of which fail: each is completed exactly once, what it was told is
    /// what happened, and what one thread brings is stored in its order.
    #[test]
    fn whichever_threads_write_each_batch_is_stored_once_and_in_order(
        threads in prop::collection::vec(prop::collection::vec((any::<bool>(), 0..10_u8), 1..40), 1..5),
    ) {
        let (_folder, brain) = open_brain();
        let task = TaskRow(1);
        thread::scope(|scope| {
            for (number, batches) in threads.iter().enumerate() {
                let brain = &brain;
                scope.spawn(move || {
                    let all: Vec<_> = batches.iter().enumerate().map(|(at, (here, kind))| {
                        let fails = *kind == 0;
                        let (batch, probed) = probe(None, move |tx| {
                            count(tx, &format!("{number}-{at:03}"))?;
                            let value = serde_json::json!(at);
                            tx.set_working_memory(task, &MemoryWrite { key: format!("last-{number}"), value })?;
                            // A row that does not exist.
                            if fails { tx.insert("INSERT INTO turns (turn_id) VALUES (NULL)", []) } else { Ok(()) }
                        });
                        if *here { brain.commit_here(batch) } else { brain.queue(batch) }
                        (probed, !fails)
                    }).collect();
                    for (probed, is_stored) in &all {
                        assert_eq!(probed.completion().1, *is_stored);
                        assert!(probed.completed.try_recv().is_err(), "completed twice");
                    }
                });
            }
        });
        let expected: Vec<(String, i64)> = threads.iter().enumerate().flat_map(|(number, batches)| {
            let stored = batches.iter().enumerate().filter(|(_, (_, kind))| *kind != 0);
            stored.map(move |(at, _)| (format!("{number}-{at:03}"), 1))
        }).collect();
        prop_assert_eq!(counts(&brain), expected);
        let memory = brain.working_memory(task).unwrap();
        for (number, batches) in threads.iter().enumerate() {
            let last = batches.iter().rposition(|(_, kind)| *kind != 0);
            let stored = memory.get(&format!("last-{number}")).map(|value| value.as_u64().unwrap());
            prop_assert_eq!(stored, last.map(|last| u64::try_from(last).unwrap()));
        }
    }
}
