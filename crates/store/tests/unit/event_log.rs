//! Every reader receives every event once and in order, however slow, late or often it reads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::event::{BlockStart, BlockStop, BlockType, Delta, Event, Lifecycle, StopReason};
use api::{MessageId, Timestamp, TurnId};
use futures::FutureExt as _;
use http_service::clock::{ManualClock, SystemClock};
use pretty_assertions::assert_eq;
use rusqlite::Connection;
use testkit::{SseEvent, parse_sse, rendered_text, task_id, with_deadline};
use tokio::sync::Notify;

use super::*;
use crate::steps::{Step, TurnOutcome};
use crate::testing::{next_events, read_all};
use crate::{Durability, NewTurn, StoreError, WriteBatch, WriteError, WriteTx};

/// A brain in a folder of its own, with its event logs.
pub(super) struct Fixture {
    pub(super) brain: Brain,
    pub(super) event_logs: EventLogs,
    _folder: tempfile::TempDir,
}

impl Fixture {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        Self { event_logs: EventLogs::new(brain.clone(), clock), brain, _folder: folder }
    }

    pub(super) fn system() -> Self {
        Self::new(Arc::new(SystemClock::new()))
    }

    pub(super) fn open_log(&self, name: &str) -> Arc<TaskEventLog> {
        self.event_logs.open(&task_id(name)).unwrap()
    }

    /// A connection to the brain like that of another program.
    pub(super) fn outside(&self) -> Connection {
        Connection::open(self.brain.file()).unwrap()
    }

    /// The stored events of a task.
    pub(super) fn stored_events(&self, log: &TaskEventLog) -> Vec<(i64, String)> {
        let events = self.brain.events_after(log.task(), 0, (usize::MAX, usize::MAX)).unwrap();
        events.into_iter().map(|event| (event.ts, event.kind)).collect()
    }
}

/// Keeps the writer busy, so that what is queued meanwhile waits.
pub(super) struct WriterPause {
    reached: Notify,
    released: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
    release: std::sync::mpsc::Sender<()>,
}

impl WriterPause {
    /// Pauses the writer until [`WriterPause::release`].
    pub(super) async fn pause_writer(brain: &Brain) -> Arc<Self> {
        let (release, released) = std::sync::mpsc::channel();
        let pause =
            Arc::new(Self { reached: Notify::new(), released: std::sync::Mutex::new(released), release });
        brain.queue(Arc::clone(&pause) as Arc<dyn WriteBatch>);
        with_deadline(pause.reached.notified()).await;
        pause
    }

    pub(super) fn release(&self) {
        self.release.send(()).unwrap();
    }
}

impl WriteBatch for WriterPause {
    fn collect(&self) -> Durability {
        self.reached.notify_one();
        // An error means that the test ended without a release; the writer continues.
        let _ = self.released.lock().unwrap().recv_timeout(Duration::from_secs(20));
        Durability::ProcessKill
    }

    fn write(&self, _: &WriteTx<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn complete(&self, _: &Result<(), WriteError>) {}
}

pub(super) fn opening_commit(turn_id: TurnId) -> Commit {
    let opened = crate::testing::opened("q");
    let message_id = opened.message_id;
    Commit::new()
        .begin_turn(NewTurn { turn_id, message_id, request: None })
        .step(Step::Opened(opened))
        .event(Event::ThreadLifecycle(Lifecycle::Started { message_id }))
}

pub(super) fn ending_commit() -> Commit {
    let stop_reason = StopReason::EndTurn;
    let (message_id, answer_message_id) = (MessageId::new(), MessageId::new());
    let completed = Lifecycle::Completed { message_id, answer_message_id, text: String::new(), stop_reason };
    Commit::new()
        .step(Step::Ended { outcome: TurnOutcome::Completed { stop_reason } })
        .event(Event::ThreadLifecycle(completed))
}

pub(super) fn text_delta(text: &str) -> Event {
    Event::TextDelta(Delta { text: text.into() })
}

fn thinking_delta(text: &str) -> Event {
    Event::ThinkingDelta(Delta { text: text.into() })
}

fn block_start(index: u32) -> Event {
    Event::ContentBlockStart(BlockStart { index, block_type: BlockType::Text })
}

pub(super) fn block_stop(index: u32) -> Event {
    Event::ContentBlockStop(BlockStop { index })
}

/// Opens a turn on `log`.
pub(super) async fn begin_turn(log: &Arc<TaskEventLog>) -> Recorder {
    let recorder = log.begin_turn(TurnId::new()).unwrap();
    with_deadline(recorder.commit(opening_commit(recorder.turn_id()))).await.unwrap();
    recorder
}

/// Checks that `received` contains each stored event once, in the order of its `ts`, with that `ts` as its `id:`.
fn check_reading(received: &[SseEvent], stored: &[(i64, String)]) -> Result<(), String> {
    if let Some(pair) = received.windows(2).find(|pair| pair[0].ts() >= pair[1].ts()) {
        return Err(format!("{} is followed by {}", pair[0].ts(), pair[1].ts()));
    }
    if let Some(event) = received.iter().find(|event| event.id != Some(event.ts())) {
        return Err(format!("id {:?} on {}", event.id, event.ts()));
    }
    let received: Vec<(i64, String)> =
        received.iter().map(|event| (event.ts(), event.kind.clone())).collect();
    match stored.iter().find(|event| !received.contains(event)) {
        Some(missing) => Err(format!("{missing:?} is missing")),
        None if received.len() > stored.len() => Err("there are events that are not stored".into()),
        None => Ok(()),
    }
}

#[test]
fn the_reading_check_goes_red() {
    let wire = |stamps: &[i64]| -> Vec<SseEvent> {
        let line = |ts| api::event::encode_sse(&task_id("t"), TurnId::new(), ts, "usage", "{}");
        stamps.iter().flat_map(|ts| parse_sse(line(*ts).as_bytes())).collect()
    };
    let stored: Vec<(i64, String)> = [1, 2, 4].map(|ts| (ts, "usage".to_owned())).into();
    assert_eq!(check_reading(&wire(&[1, 2, 4]), &stored), Ok(()));
    for broken in [&[1, 2][..], &[1, 4], &[1, 2, 2, 4], &[2, 1, 4], &[1, 2, 4, 5], &[]] {
        assert!(check_reading(&wire(broken), &stored).is_err(), "{broken:?}");
    }
    let mut other_id = wire(&[1, 2, 4]);
    other_id[1].id = None;
    assert!(check_reading(&other_id, &stored).is_err());
}

/// The number of blocks of a turn. With [`DELTAS_PER_BLOCK`] deltas each, they exceed the ring of a task.
const BLOCKS_PER_TURN: u32 = 40;
const DELTAS_PER_BLOCK: u32 = 25;

/// Emits the events of a turn at various speeds: bursts, single steps, and pauses that let other tasks run.
async fn emit_whole_turn(recorder: Recorder) -> String {
    let mut sent = String::new();
    with_deadline(recorder.commit(opening_commit(recorder.turn_id()))).await.unwrap();
    for block in 0..BLOCKS_PER_TURN {
        recorder.emit(block_start(block)).await.unwrap();
        for delta in 0..DELTAS_PER_BLOCK {
            let chunk = format!("{block}.{delta} ");
            recorder.emit(text_delta(&chunk)).await.unwrap();
            sent.push_str(&chunk);
            if (block + delta) % 3 == 0 {
                tokio::task::yield_now().await;
            }
        }
        recorder.emit(block_stop(block)).await.unwrap();
        if block % 4 == 0 {
            with_deadline(recorder.commit(Commit::new().event(Event::Usage(api::event::Usage::default()))))
                .await
                .unwrap();
        }
    }
    with_deadline(recorder.commit(ending_commit())).await.unwrap();
    sent
}

/// Reads one batch, and the rest only after the turn has ended and its events have left the ring.
async fn read_slowly(mut reader: EventReader, is_over: Arc<AtomicBool>) -> Vec<SseEvent> {
    let mut all = next_events(&mut reader).await.unwrap_or_default();
    let ended = async {
        while !is_over.load(Ordering::Acquire) {
            tokio::task::yield_now().await;
        }
    };
    with_deadline(ended).await;
    all.extend(read_all(reader).await);
    all
}

/// Disconnects after every few events and reconnects with the last `ts` that it received.
async fn read_with_reconnects(log: Arc<TaskEventLog>, is_over: Arc<AtomicBool>) -> Vec<SseEvent> {
    let mut all: Vec<SseEvent> = Vec::new();
    loop {
        let after = all.last().map_or(0, SseEvent::ts);
        let ended = is_over.load(Ordering::Acquire);
        let mut reader = log.read(after, Follow::Task);
        match next_events(&mut reader).await {
            Some(mut events) => {
                // Events that were sent together with the last accepted one are lost with the connection.
                events.truncate(3);
                all.extend(events);
            }
            None if ended => return all,
            None => tokio::task::yield_now().await,
        }
    }
}

async fn every_reader_gets_everything(tasks: usize) {
    let fixture = Fixture::system();
    let mut running = Vec::new();
    for number in 0..tasks {
        let log = fixture.open_log(&format!("task {number}"));
        let turn_id = TurnId::new();
        let recorder = log.begin_turn(turn_id).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let fast = tokio::spawn(read_all(log.read(0, Follow::Turn(turn_id))));
        let slow = tokio::spawn(read_slowly(log.read(0, Follow::Turn(turn_id)), Arc::clone(&is_over)));
        let reconnecting = tokio::spawn(read_with_reconnects(Arc::clone(&log), Arc::clone(&is_over)));
        let turn = tokio::spawn(emit_whole_turn(recorder));
        running.push((log, is_over, turn, vec![fast, slow, reconnecting]));
    }
    for (log, is_over, turn, mut readers) in running {
        readers.push(tokio::spawn(read_all(log.read(0, Follow::Task))));
        let sent = with_deadline(turn).await.unwrap();
        is_over.store(true, Ordering::Release);
        let stored = fixture.stored_events(&log);
        for reader in readers {
            let received = with_deadline(reader).await.unwrap();
            assert_eq!(check_reading(&received, &stored), Ok(()));
            assert_eq!(rendered_text(&received, true), sent);
        }
        // A replay gives the same from each `ts`, and from values between and beyond them.
        let every = if tasks == 1 { 1 } else { 50 };
        for (at, (ts, _)) in stored.iter().enumerate().step_by(every) {
            let received = read_all(log.read(*ts, Follow::Task)).await;
            assert_eq!(check_reading(&received, &stored[at + 1..]), Ok(()), "after {ts}");
        }
        for (after, rest) in [(0, &stored[..]), (stored[0].0 - 1, &stored[..]), (i64::MAX, &[])] {
            let received = read_all(log.read(after, Follow::Task)).await;
            assert_eq!(check_reading(&received, rest), Ok(()), "after {after}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reader_of_one_task_gets_everything() {
    every_reader_gets_everything(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_reader_of_ten_tasks_at_once_gets_everything() {
    every_reader_gets_everything(10).await;
}

#[tokio::test]
async fn deltas_of_one_block_within_a_millisecond_are_one_event() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_ms(1_000_000)));
    let fixture = Fixture::new(clock.clone());
    let log = fixture.open_log("t");
    let recorder = begin_turn(&log).await;
    let pause = WriterPause::pause_writer(&fixture.brain).await;
    for event in [
        block_start(0),
        text_delta("a"),
        text_delta("b"),
        thinking_delta("t"),
        text_delta("c"),
        text_delta("d"),
        block_stop(0),
        block_start(1),
    ] {
        recorder.emit(event).await.unwrap();
    }
    recorder.emit(text_delta("e")).await.unwrap();
    // The clock is ahead by now: real time must pass the last event before a delta gets a millisecond of its own.
    clock.advance(Duration::from_millis(100));
    recorder.emit(text_delta("f")).await.unwrap();
    recorder.emit(text_delta("g")).await.unwrap();
    pause.release();
    with_deadline(recorder.commit(ending_commit())).await.unwrap();
    let received = read_all(log.read(1_000_000, Follow::Task)).await;
    let received_kinds: Vec<(&str, &str)> = received
        .iter()
        .map(|event| (event.kind.as_str(), event.data["text"].as_str().unwrap_or_default()))
        .collect();
    let expected = [
        ("content_block_start", ""),
        ("text_delta", "ab"),
        ("thinking_delta", "t"),
        ("text_delta", "cd"),
        ("content_block_stop", ""),
        ("content_block_start", ""),
        ("text_delta", "e"),
        ("text_delta", "fg"),
        ("thread_lifecycle", ""),
    ];
    assert_eq!(received_kinds, expected);
}

#[tokio::test]
async fn an_event_that_would_lead_by_more_than_two_seconds_waits() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_ms(1_000_000)));
    let fixture = Fixture::new(clock.clone());
    let log = fixture.open_log("t");
    let recorder = begin_turn(&log).await;
    for index in 0..2_000 {
        recorder.emit(block_stop(index)).now_or_never().unwrap().unwrap();
    }
    assert_eq!(recorder.last_ts(), 1_002_000);
    let mut waiting = std::pin::pin!(recorder.emit(block_stop(2_000)));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    clock.advance(Duration::from_micros(999));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    clock.advance(Duration::from_micros(1));
    with_deadline(waiting).await.unwrap();
    assert_eq!(recorder.last_ts(), 1_002_001);
}

#[tokio::test]
async fn a_turn_whose_text_the_writer_does_not_take_waits() {
    let fixture = Fixture::system();
    let log = fixture.open_log("t");
    let recorder = begin_turn(&log).await;
    let pause = WriterPause::pause_writer(&fixture.brain).await;
    let megabyte = "x".repeat(1024 * 1024 + 1);
    recorder.emit(text_delta(&megabyte)).await.unwrap();
    // Neither a delta that could be merged nor another event is accepted.
    let mut delta = std::pin::pin!(recorder.emit(text_delta("y")));
    assert!(futures::poll!(delta.as_mut()).is_pending());
    pause.release();
    with_deadline(delta).await.unwrap();
    with_deadline(recorder.commit(ending_commit())).await.unwrap();
    let received = read_all(log.read(0, Follow::Task)).await;
    assert_eq!(rendered_text(&received, true), megabyte + "y");
}

#[tokio::test]
async fn a_silent_stream_beats_every_fifteen_seconds_and_stores_nothing_of_it() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_unix_ms(1_000_000)));
    let fixture = Fixture::new(clock.clone());
    let log = fixture.open_log("t");
    let recorder = begin_turn(&log).await;
    let mut reader = log.read(0, Follow::Turn(recorder.turn_id()));
    let started = next_events(&mut reader).await.unwrap();
    for _ in 0..2 {
        let mut next = std::pin::pin!(reader.next());
        assert!(futures::poll!(next.as_mut()).is_pending());
        clock.advance(Duration::from_millis(14_999));
        assert!(futures::poll!(next.as_mut()).is_pending());
        clock.advance(Duration::from_millis(1));
        let heartbeat = parse_sse(&with_deadline(next).await.unwrap().unwrap());
        assert_eq!(heartbeat.len(), 1);
        assert_eq!(
            (heartbeat[0].id, heartbeat[0].kind.as_str(), heartbeat[0].ts()),
            (None, "heartbeat", started[0].ts())
        );
    }
    with_deadline(recorder.commit(ending_commit())).await.unwrap();
    assert_eq!(read_all(reader).await.len(), 1);
    assert_eq!(fixture.stored_events(&log).len(), 2);
}

#[tokio::test]
async fn readers_end_where_they_were_told_to() {
    let fixture = Fixture::system();
    let log = fixture.open_log("t");
    let first = begin_turn(&log).await;
    let of_first = log.read(0, Follow::Turn(first.turn_id()));
    with_deadline(first.commit(ending_commit())).await.unwrap();
    drop(first);
    let second = begin_turn(&log).await;
    assert_eq!(read_all(of_first).await.len(), 2);
    // A turn that is dropped without an end releases the event log and ends its readers; the next one continues.
    let mut of_second = log.read(0, Follow::Task);
    assert_eq!(next_events(&mut of_second).await.unwrap().len(), 3);
    assert!(matches!(log.begin_turn(TurnId::new()), Err(Busy)));
    drop(second);
    assert_eq!(next_events(&mut of_second).await, None);
    drop(begin_turn(&log).await);
}

#[tokio::test]
async fn a_task_has_one_channel_and_goes_on_above_its_last_event() {
    let fixture = Fixture::system();
    let log = fixture.open_log("t");
    assert!(Arc::ptr_eq(&log, &fixture.open_log("t")));
    assert!(fixture.event_logs.open_existing(&task_id("other")).unwrap().is_none());
    let recorder = begin_turn(&log).await;
    // The clock is far ahead of real time, and still the events of a reopened event log come after these.
    for index in 0..1_500 {
        recorder.emit(block_stop(index)).await.unwrap();
    }
    with_deadline(recorder.commit(ending_commit())).await.unwrap();
    let last_ts = recorder.last_ts();
    drop((recorder, log));
    let log = with_deadline(async {
        loop {
            // The writer may hold the old one for a moment.
            match fixture.event_logs.open.lock().get(&task_id("t")).and_then(Weak::upgrade) {
                Some(old) => drop(old),
                None => break,
            }
            tokio::task::yield_now().await;
        }
        fixture.event_logs.open_existing(&task_id("t")).unwrap().unwrap()
    })
    .await;
    let recorder = begin_turn(&log).await;
    assert!(recorder.last_ts() > last_ts);
    let stored = fixture.stored_events(&log);
    assert_eq!(check_reading(&read_all_stopped(&log, recorder).await, &stored), Ok(()));
}

/// Drops `recorder` and returns the events that a reader from the beginning receives then.
async fn read_all_stopped(log: &Arc<TaskEventLog>, recorder: Recorder) -> Vec<SseEvent> {
    drop(recorder);
    read_all(log.read(0, Follow::Task)).await
}
