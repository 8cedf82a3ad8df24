//! Helpers shared by the tests of several crates: events as a client reads them, deadlines, a clock that does not
//! wait, captured logs, a terminal, and fixtures of more than one crate.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a panic fails the test that uses it"
)]

pub mod openapi;
pub mod openapi_examples;
pub mod terminal;
pub mod unknown_fields;
pub mod wall_clock;

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use api::event::Event;
use api::{TaskId, Timestamp};
use http_service::clock::{Clock, Sleep, SystemClock};
use parking_lot::Mutex;
use sandbox::{HelperCommand, Sandbox, Settings};
use serde_json::Value;

/// The beginning of an MCP server over stdio, in Python: a test adds its tools and starts it.
pub const MCP_SERVER_PRELUDE: &str = include_str!("../fixtures/mcp_server.py");

/// A brain as version 0.1.0 left it, as SQL.
pub const BRAIN_0_1_0: &str = include_str!("../fixtures/brain-0.1.0.sql");

/// An event as received over the wire.
#[derive(Clone, Debug, PartialEq)]
pub struct SseEvent {
    /// The `id:` line.
    pub id: Option<i64>,
    /// The `event:` line.
    pub kind: String,
    /// The `data:` line.
    pub data: Value,
}

impl SseEvent {
    /// Returns its position in the event log.
    pub fn ts(&self) -> i64 {
        self.data["ts"].as_i64().unwrap()
    }

    /// Parses it. Panics if it is not as the contract defines it.
    pub fn event(&self) -> Event {
        Event::from_parts(&self.kind, self.data.clone()).unwrap()
    }

    /// Returns the phase of a `thread_lifecycle`.
    pub fn phase(&self) -> Option<&str> {
        self.data["phase"].as_str()
    }
}

/// Parses received events. Panics on anything but complete events in the documented form.
pub fn parse_sse(wire: &[u8]) -> Vec<SseEvent> {
    let text = std::str::from_utf8(wire).unwrap();
    let Some(text) = text.strip_suffix("\n\n") else {
        assert!(text.is_empty(), "half an event: {text}");
        return Vec::new();
    };
    text.split("\n\n").map(parse_event).collect()
}

fn parse_event(text: &str) -> SseEvent {
    let mut event = SseEvent { id: None, kind: String::new(), data: Value::Null };
    for line in text.lines() {
        match line.split_once(": ").unwrap() {
            ("id", id) => event.id = Some(id.parse().unwrap()),
            ("event", kind) => kind.clone_into(&mut event.kind),
            ("data", data) => event.data = serde_json::from_str(data).unwrap(),
            (field, _) => panic!("no such field: {field}"),
        }
    }
    assert!(
        event.data["task_id"].is_string() && event.data["turn_id"].is_string() && event.data["ts"].is_i64()
    );
    event
}

/// Returns the text shown by a client that only concatenates deltas and, if requested, honours `void_after`.
pub fn rendered_text(events: &[SseEvent], honour_void_after: bool) -> String {
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
pub async fn with_deadline<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("ready within 20 s")
}

/// Returns the result of a blocking call, with the same deadline. A call that never returns is left behind in its
/// thread.
pub fn with_deadline_blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(call()));
    receiver.recv_timeout(Duration::from_secs(20)).expect("ready within 20 s")
}

/// Waits until there is no process with this id any more.
pub async fn wait_for_exit(pid: &str) {
    with_deadline(async {
        // A zombie, which has ended but was not waited for, counts as gone too.
        let is_running = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
        };
        while is_running() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Replaces a file by a pipe without a writer.
pub fn replace_with_fifo(file: &Path) {
    use rustix::fs::{CWD, FileType, Mode};
    std::fs::remove_file(file).unwrap();
    rustix::fs::mknodat(CWD, file, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// Returns a valid task id.
pub fn task_id(name: &str) -> TaskId {
    TaskId::new(name.to_owned()).unwrap()
}

/// Returns a sandbox for tests, which confines programs if this machine can. This test program is the helper; as
/// such it runs only its test `testing::sandbox_helper`, which calls [`serve_as_sandbox_helper`].
pub fn test_sandbox(workspace: &Path, readable: &[&Path]) -> Arc<Sandbox> {
    Arc::new(Sandbox::new(Settings {
        helper: own_helper(),
        workspace: workspace.to_owned(),
        readable: readable.iter().map(|path| (*path).to_owned()).collect(),
        hidden: Vec::new(),
        allow_unconfined: true,
    }))
}

/// Returns the command that starts this test program as a helper.
pub fn own_helper() -> HelperCommand {
    let args = ["--exact", "testing::sandbox_helper", "--test-threads=1"].map(Into::into);
    HelperCommand { program: std::env::current_exe().unwrap(), args: args.into() }
}

/// Whether this machine can confine programs. Tests that need it are skipped otherwise.
pub fn can_confine() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let is_confined = test_sandbox(folder.path(), &[folder.path()]).confinement().enforced;
    let required = std::env::var("ROUNDHOUSE_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(is_confined || !required, "programs cannot be confined here, and ROUNDHOUSE_REQUIRE_ALL=1");
    if !is_confined {
        eprintln!("skipped: this kernel cannot confine programs (no Landlock)");
    }
    is_confined
}

/// Whether this machine can run MCP servers written in Python inside the sandbox. Tests that need it are skipped
/// otherwise.
pub fn can_run_python_servers() -> bool {
    let folders = ["/usr/local/bin", "/usr/bin", "/bin"];
    let has_python = folders.iter().any(|folder| Path::new(folder).join("python3").exists());
    let required = std::env::var("ROUNDHOUSE_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(has_python || !required, "there is no python3 here, and ROUNDHOUSE_REQUIRE_ALL=1");
    if !has_python {
        eprintln!("skipped: there is no python3");
    }
    has_python && can_confine()
}

/// Serves as the helper of the sandbox, in a crate's test `testing::sandbox_helper`. As one of the other tests it
/// does nothing, because it closes files that are not its own.
pub fn serve_as_sandbox_helper() {
    if std::env::args().any(|argument| argument == "testing::sandbox_helper") {
        sandbox::helper_main();
    }
}

/// The longest sleep that [`SkippingClock`] skips; heartbeats are longer.
const MAX_SKIPPED_SLEEP: Duration = Duration::from_secs(10);

/// A clock on which short sleeps end at once and long ones never end. It records both.
pub struct SkippingClock {
    system: SystemClock,
    skipped_sleeps: Mutex<Vec<Duration>>,
    pending_sleeps: Mutex<Vec<Duration>>,
    /// How far the wall clock was moved forward, in milliseconds.
    ahead_ms: AtomicI64,
}

impl SkippingClock {
    /// Creates a clock that shows the system's time.
    pub fn new() -> Self {
        Self {
            system: SystemClock::new(),
            skipped_sleeps: Mutex::default(),
            pending_sleeps: Mutex::default(),
            ahead_ms: AtomicI64::new(0),
        }
    }

    /// Advances time without waking any sleeper.
    pub fn advance(&self, duration: Duration) {
        self.skipped_sleeps.lock().push(duration);
    }

    /// Moves the wall clock forward, as a time server may. Monotonic time does not change.
    pub fn advance_wall_clock(&self, duration: Duration) {
        self.ahead_ms.fetch_add(i64::try_from(duration.as_millis()).unwrap(), Ordering::Relaxed);
    }

    /// Waits until somebody sleeps for `duration`, a long one.
    pub async fn wait_for_sleep(&self, duration: Duration) {
        self.wait_for_sleeps(1, duration..=duration).await;
    }

    /// Waits until this many long sleeps of this length have begun.
    pub async fn wait_for_sleeps(&self, times: usize, length: RangeInclusive<Duration>) {
        let matching_sleeps = || {
            let pending_sleeps = self.pending_sleeps.lock();
            pending_sleeps.iter().filter(|sleep| length.contains(sleep)).count()
        };
        with_deadline(async {
            while matching_sleeps() < times {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// Returns the short sleeps so far.
    pub fn skipped_sleeps(&self) -> Vec<Duration> {
        self.skipped_sleeps.lock().clone()
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
                self.pending_sleeps.lock().push(duration);
                return std::future::pending().await;
            }
            self.advance(duration);
        })
    }
}

/// Captures the logs of this thread while it is held.
pub struct LogCapture {
    buffer: LogBuffer,
    _logging: tracing::subscriber::DefaultGuard,
    _other: tracing::Dispatch,
}

impl LogCapture {
    /// Starts capturing at this level.
    pub fn start(level: tracing::Level) -> Self {
        let buffer = LogBuffer::default();
        let writer = buffer.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(move || writer.clone())
            .finish();
        // With only one subscriber, an event first encountered on another test's thread would be cached as
        // disabled.
        let other_dispatch = tracing::Dispatch::new(tracing_subscriber::registry());
        let logging = tracing::subscriber::set_default(subscriber);
        Self { buffer, _logging: logging, _other: other_dispatch }
    }

    /// Returns the lines captured so far.
    pub fn text(&self) -> String {
        let bytes = self.buffer.0.lock();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_they_are_on_the_wire() {
        let wire = "id: 7\nevent: text_delta\ndata: {\"task_id\":\"a\",\"turn_id\":\"t\",\"ts\":7,\"text\":\"Hi\"}\n\n";
        let events = parse_sse(wire.as_bytes());
        assert_eq!((events.len(), events[0].id, events[0].ts()), (1, Some(7), 7));
        assert_eq!(rendered_text(&events, true), "Hi");
        assert!(std::panic::catch_unwind(|| parse_sse(&wire.as_bytes()[..20])).is_err(), "half an event");
    }

    #[tokio::test]
    async fn short_sleeps_are_skipped_and_counted() {
        let clock = SkippingClock::new();
        let began = clock.monotonic();
        clock.sleep(Duration::from_secs(3)).await;
        assert_eq!(clock.skipped_sleeps(), [Duration::from_secs(3)]);
        assert!(clock.monotonic() >= began + Duration::from_secs(3));
    }
}
