//! Shared test utilities: events as a client reads them, deadlines, and a clock that does not wait.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::event::Event;
use api::{MessageId, TaskId, Timestamp};
use http_service::clock::{Clock, Sleep, SystemClock};
use sandbox::{HelperCommand, Sandbox, Settings};
use serde_json::Value;

use crate::event_log::EventReader;
use crate::store::steps::{Opened, TurnBase, TurnOptions};

/// An event as received over the wire.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SseEvent {
    /// The `id:` line.
    pub(crate) id: Option<i64>,
    /// The `event:` line.
    pub(crate) kind: String,
    /// The `data:` line.
    pub(crate) data: Value,
}

impl SseEvent {
    pub(crate) fn ts(&self) -> i64 {
        self.data["ts"].as_i64().unwrap()
    }

    pub(crate) fn event(&self) -> Event {
        Event::from_parts(&self.kind, self.data.clone()).unwrap()
    }

    /// Returns the phase of a `thread_lifecycle`.
    pub(crate) fn phase(&self) -> Option<&str> {
        self.data["phase"].as_str()
    }
}

/// Parses received events. Panics on anything but complete events in the documented form.
pub(crate) fn parse_sse(wire: &[u8]) -> Vec<SseEvent> {
    let text = std::str::from_utf8(wire).unwrap();
    let Some(text) = text.strip_suffix("\n\n") else {
        assert!(text.is_empty(), "half an event: {text}");
        return Vec::new();
    };
    text.split("\n\n").map(parse_event).collect()
}

fn parse_event(text: &str) -> SseEvent {
    let mut seen = SseEvent { id: None, kind: String::new(), data: Value::Null };
    for line in text.lines() {
        match line.split_once(": ").unwrap() {
            ("id", id) => seen.id = Some(id.parse().unwrap()),
            ("event", kind) => seen.kind = kind.to_owned(),
            ("data", data) => seen.data = serde_json::from_str(data).unwrap(),
            (field, _) => panic!("no such field: {field}"),
        }
    }
    assert!(seen.data["task_id"].is_string() && seen.data["turn_id"].is_string() && seen.data["ts"].is_i64());
    seen
}

/// Returns the next events of `reader` without heartbeats; `None` at its end.
pub(crate) async fn next_events(reader: &mut EventReader) -> Option<Vec<SseEvent>> {
    loop {
        let mut events = parse_sse(&with_deadline(reader.next()).await.unwrap()?);
        events.retain(|event| event.kind != "heartbeat");
        if !events.is_empty() {
            return Some(events);
        }
    }
}

/// Returns all events of `reader` up to its end.
pub(crate) async fn read_all(mut reader: EventReader) -> Vec<SseEvent> {
    let mut all = Vec::new();
    while let Some(events) = next_events(&mut reader).await {
        all.extend(events);
    }
    all
}

/// Reads until an event satisfies `wanted`; that one is included.
pub(crate) async fn read_until(
    reader: &mut EventReader,
    wanted: impl Fn(&SseEvent) -> bool,
) -> Vec<SseEvent> {
    let mut all = Vec::new();
    while !all.iter().any(&wanted) {
        let Some(events) = next_events(reader).await else { panic!("the stream ended before: {all:#?}") };
        all.extend(events);
    }
    all
}

/// Returns the text shown by a client that only concatenates deltas and, if requested, honours `void_after`.
pub(crate) fn rendered_text(events: &[SseEvent], honour_void_after: bool) -> String {
    let mut shown: Vec<(i64, &str)> = Vec::new();
    for event in events {
        match (event.kind.as_str(), event.phase()) {
            ("text_delta", _) => shown.push((event.ts(), event.data["text"].as_str().unwrap())),
            (_, Some("retrying")) if honour_void_after => {
                let void_after = event.data["void_after"].as_i64().unwrap();
                shown.retain(|(ts, _)| *ts <= void_after);
            }
            _ => {}
        }
    }
    shown.into_iter().map(|(_, text)| text).collect()
}

/// Awaits `future` and panics if it takes longer than a person would wait.
pub(crate) async fn with_deadline<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("ready within 20 s")
}

/// Returns the result of a blocking call, with the same deadline. A call that never returns is left behind in its
/// thread.
pub(crate) fn with_deadline_blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    told.recv_timeout(Duration::from_secs(20)).expect("ready within 20 s")
}

/// Replaces a file by a pipe without a writer.
pub(crate) fn replace_with_fifo(file: &Path) {
    use rustix::fs::{CWD, FileType, Mode};
    std::fs::remove_file(file).unwrap();
    rustix::fs::mknodat(CWD, file, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

pub(crate) fn task_id(name: &str) -> TaskId {
    TaskId::new(name.to_owned()).unwrap()
}

/// Returns a sandbox for tests, which confines programs if this machine can. This test program is the helper; as
/// such it runs only [`sandbox_helper`].
pub(crate) fn test_sandbox(workspace: &Path, readable: &[&Path]) -> Arc<Sandbox> {
    Arc::new(Sandbox::new(Settings {
        helper: own_helper(),
        workspace: workspace.to_owned(),
        readable: readable.iter().map(|path| (*path).to_owned()).collect(),
        hidden: Vec::new(),
        allow_unconfined: true,
    }))
}

/// Returns the command that starts this test program as a helper.
pub(crate) fn own_helper() -> HelperCommand {
    let args = ["--exact", "testing::sandbox_helper", "--test-threads=1"].map(Into::into);
    HelperCommand { program: std::env::current_exe().unwrap(), args: args.into() }
}

/// Whether this machine can confine programs. Tests that need it are skipped otherwise.
pub(crate) fn can_confine() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let can = test_sandbox(folder.path(), &[folder.path()]).confinement().enforced;
    let required = std::env::var("ROUNDHOUSE_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(can || !required, "programs cannot be confined here, and ROUNDHOUSE_REQUIRE_ALL=1");
    if !can {
        eprintln!("skipped: this kernel cannot confine programs (no Landlock)");
    }
    can
}

/// Whether this machine can run MCP servers written in Python inside the sandbox. Tests that need it are skipped
/// otherwise.
pub(crate) fn can_run_python_servers() -> bool {
    let found = ["/usr/local/bin", "/usr/bin", "/bin"];
    let has = found.iter().any(|folder| Path::new(folder).join("python3").exists());
    let required = std::env::var("ROUNDHOUSE_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(has || !required, "there is no python3 here, and ROUNDHOUSE_REQUIRE_ALL=1");
    if !has {
        eprintln!("skipped: there is no python3");
    }
    has && can_confine()
}

/// The helper of the sandbox ([`sandbox`]). As one of the other tests it does nothing, because it closes files that
/// are not its own.
#[test]
fn sandbox_helper() {
    if std::env::args().any(|argument| argument == "testing::sandbox_helper") {
        sandbox::helper_main();
    }
}

/// The longest sleep that [`SkippingClock`] skips; heartbeats are longer.
const MAX_SKIPPED_SLEEP: Duration = Duration::from_secs(10);

/// A clock on which short sleeps end at once and long ones never end. It records both.
pub(crate) struct SkippingClock {
    system: SystemClock,
    skipped_sleeps: Mutex<Vec<Duration>>,
    pending_sleeps: Mutex<Vec<Duration>>,
    /// How far the wall clock was moved forward, in milliseconds.
    ahead_ms: AtomicI64,
}

impl SkippingClock {
    pub(crate) fn new() -> Self {
        Self {
            system: SystemClock::new(),
            skipped_sleeps: Mutex::default(),
            pending_sleeps: Mutex::default(),
            ahead_ms: AtomicI64::new(0),
        }
    }

    /// Advances time without waking any sleeper.
    pub(crate) fn advance(&self, duration: Duration) {
        self.skipped_sleeps.lock().unwrap_or_else(PoisonError::into_inner).push(duration);
    }

    /// Moves the wall clock forward, as a time server may. Monotonic time does not change.
    pub(crate) fn advance_wall_clock(&self, duration: Duration) {
        self.ahead_ms.fetch_add(i64::try_from(duration.as_millis()).unwrap(), Ordering::Relaxed);
    }

    /// Waits until somebody sleeps for `duration`, a long one.
    pub(crate) async fn wait_for_sleep(&self, duration: Duration) {
        self.wait_for_sleeps(1, duration..=duration).await;
    }

    /// Waits until this many long sleeps of this length have begun.
    pub(crate) async fn wait_for_sleeps(&self, times: usize, length: RangeInclusive<Duration>) {
        let skipped_sleeps = || {
            let pending_sleeps = self.pending_sleeps.lock().unwrap_or_else(PoisonError::into_inner);
            pending_sleeps.iter().filter(|sleep| length.contains(sleep)).count()
        };
        with_deadline(async {
            while skipped_sleeps() < times {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Returns the short sleeps so far.
    pub(crate) fn skipped_sleeps(&self) -> Vec<Duration> {
        self.skipped_sleeps.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn total_skipped(&self) -> Duration {
        self.skipped_sleeps().iter().sum()
    }
}

impl Clock for SkippingClock {
    fn now(&self) -> Timestamp {
        let skipped = i64::try_from(self.total_skipped().as_millis()).unwrap();
        Timestamp::from_unix_ms(self.system.now().unix_ms() + skipped + self.ahead_ms.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        self.system.monotonic() + self.total_skipped()
    }

    fn sleep(&self, duration: Duration) -> Sleep<'_> {
        Box::pin(async move {
            if duration > MAX_SKIPPED_SLEEP {
                self.pending_sleeps.lock().unwrap_or_else(PoisonError::into_inner).push(duration);
                return std::future::pending().await;
            }
            self.advance(duration);
        })
    }
}

/// Returns the opening of a turn with `message` and nothing else.
pub(crate) fn opened(message: &str) -> Opened {
    Opened {
        notes: Vec::new(),
        message_id: MessageId::new(),
        message: message.into(),
        media: Vec::new(),
        options: TurnOptions { max_turns: 50, super_thinking: false, direct: false },
        base: TurnBase::End,
    }
}

/// Captures the logs of this thread while it is held.
pub(crate) struct LogCapture {
    buffer: LogBuffer,
    _logging: tracing::subscriber::DefaultGuard,
    _other: tracing::Dispatch,
}

impl LogCapture {
    /// Starts capturing at this level.
    pub(crate) fn start(level: tracing::Level) -> Self {
        let written = LogBuffer::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(move || writer.clone())
            .finish();
        // With only one subscriber, an event first encountered on another test's thread would be cached as
        // disabled.
        let other = tracing::Dispatch::new(tracing_subscriber::registry());
        let logging = tracing::subscriber::set_default(subscriber);
        Self { buffer: written, _logging: logging, _other: other }
    }

    pub(crate) fn text(&self) -> String {
        let written = self.buffer.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&written).into_owned()
    }
}

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
