//! Events that are lost or duplicated. However often a client is cut off, the pieces add up to the whole.

use mock_llm::{Gate, Reply, Wire};
use serde_json::json;
use store::testing::next_events;
use testkit::{SseEvent, parse_sse, rendered_text, with_deadline};
use tokio::sync::watch;

use crate::agent::harness::{AgentHarness, check_turn};
use crate::http::app::{ENGINE_KEY, TestApp, events};

/// Returns the events that arrived completely.
fn complete_events(wire: &[u8]) -> Vec<SseEvent> {
    let end = wire.windows(2).rposition(|two| two == b"\n\n").map_or(0, |at| at + 2);
    parse_sse(&wire[..end])
}

/// The two ways to name the last event seen.
#[derive(Clone, Copy)]
enum ReplayFrom {
    After,
    LastEventId,
}

const REPLAY_MODES: [ReplayFrom; 2] = [ReplayFrom::After, ReplayFrom::LastEventId];

/// Returns a request for the events of `task` after those that were seen.
fn replay_request(
    client: &reqwest::Client,
    base: &str,
    task: &str,
    seen: &[SseEvent],
    mode: ReplayFrom,
) -> reqwest::RequestBuilder {
    let last = seen.last().map_or(0, SseEvent::ts);
    let after = if matches!(mode, ReplayFrom::After) { last } else { 0 };
    let url = format!("{base}/execute/replay?task_id={task}&after={after}");
    let request = client.get(url).header("X-Engine-Key", ENGINE_KEY);
    match mode {
        ReplayFrom::After => request,
        ReplayFrom::LastEventId => request.header("Last-Event-ID", last.to_string()),
    }
}

/// Scripts text, thinking, two calls, and an answer.
fn enqueue_script(app: &TestApp) {
    app.provider.enqueue_all([
        Reply::new()
            .thinking("I look.")
            .text("One moment.")
            .tool_use("list_files", json!({"path": "."}))
            .tool_use("working_memory_set", json!({"key": "k", "value": "v"})),
        Reply::from_text("There is nothing."),
    ]);
}

#[tokio::test]
async fn regression_e01_cut_at_any_byte_the_rest_is_what_was_missing() {
    let app = TestApp::start().await;
    enqueue_script(&app);
    let body = json!({"task_id": "t", "message": "go", "super_thinking": true}).to_string();
    let wire = with_deadline(app.post_execute(body).await.bytes()).await.unwrap();
    let recorded = complete_events(&wire);
    assert_eq!(check_turn(&recorded), Ok(()));
    let client = reqwest::Client::new();
    // The request depends only on the last complete event.
    let mut replays: Vec<[Vec<SseEvent>; 2]> = Vec::new();
    for cut in 0..=wire.len() {
        let mut seen = complete_events(&wire[..cut]);
        if seen.len() == replays.len() {
            let [one, other] =
                REPLAY_MODES.map(|mode| replay_request(&client, app.base_url(), "t", &seen, mode).send());
            let (one, other) = (with_deadline(one).await.unwrap(), with_deadline(other).await.unwrap());
            replays.push([events(one).await, events(other).await]);
        }
        let [one, other] = &replays[seen.len()];
        assert_eq!(one, other);
        seen.extend(one.iter().cloned());
        assert_eq!(seen, recorded, "cut after {cut} bytes");
    }
    assert_eq!(replays.len(), recorded.len() + 1);
    app.stop().await;
}

/// A client that is cut off repeatedly, each time after a few more bytes.
struct InterruptedClient {
    http: reqwest::Client,
    base: watch::Receiver<String>,
    task: String,
    cut_after_bytes: usize,
}

impl InterruptedClient {
    /// Runs a turn and reads it to its end.
    async fn run(mut self) -> Vec<SseEvent> {
        let base = self.base.borrow().clone();
        let body = json!({"task_id": self.task, "message": "go", "max_turns": 3}).to_string();
        let request = self.http.post(format!("{base}/execute")).header("X-Engine-Key", ENGINE_KEY).body(body);
        let mut seen = self.read(request.send().await.unwrap()).await;
        while !seen.last().is_some_and(|event| event.event().ends_turn()) {
            let mode = REPLAY_MODES[self.cut_after_bytes % 2];
            let base = self.base.borrow_and_update().clone();
            if let Ok(response) = replay_request(&self.http, &base, &self.task, &seen, mode).send().await {
                seen.extend(self.read(response).await);
            } else {
                // The engine is gone. The next one listens elsewhere.
                self.base.changed().await.unwrap();
            }
        }
        seen
    }

    /// Reads until the connection is cut by either side.
    async fn read(&mut self, mut response: reqwest::Response) -> Vec<SseEvent> {
        assert_eq!(response.status(), 200);
        let mut wire = Vec::new();
        while wire.len() < self.cut_after_bytes
            && let Ok(Some(more)) = response.chunk().await
        {
            wire.extend(more);
        }
        wire.truncate(self.cut_after_bytes);
        // More than before, so that even the longest event arrives eventually.
        self.cut_after_bytes += 61;
        complete_events(&wire)
    }
}

#[tokio::test]
async fn regression_e01_ten_tasks_at_once_cut_off_and_restarted_lose_and_double_nothing() {
    const TASKS: usize = 10;
    let mut app = TestApp::start().await;
    let (base_sender, base) = watch::channel(app.base_url().to_owned());
    let reply = |deltas| {
        let text = "What there is to say is said in a few words, and then once more.";
        Reply::from_text(text).deltas(deltas).tool_use("list_files", json!({"path": "."}))
    };
    app.provider.set_default_reply(reply(20).hold(4, &Gate::new()));
    let clients: Vec<_> = (0..TASKS)
        .map(|number| {
            let (http, base) = (reqwest::Client::new(), base.clone());
            let client = InterruptedClient {
                http,
                base,
                task: format!("t{number}"),
                cut_after_bytes: 40 + 29 * number,
            };
            tokio::spawn(client.run())
        })
        .collect();
    for restart in 1..=3 {
        // All turns are in the middle of their answer.
        app.provider.wait_for_requests(TASKS * restart).await;
        let next = reply(10 + restart);
        app.provider.set_default_reply(if restart < 3 { next.hold(4 + restart, &Gate::new()) } else { next });
        app.restart().await;
        base_sender.send(app.base_url().to_owned()).unwrap();
    }
    for (number, client) in clients.into_iter().enumerate() {
        let seen = with_deadline(client).await.unwrap();
        assert_eq!(check_turn(&seen), Ok(()));
        assert!(seen.windows(2).all(|two| two[0].ts() < two[1].ts()), "{seen:#?}");
        let stored = events(app.replay(&format!("?task_id=t{number}")).await).await;
        assert_eq!(seen, stored);
        assert_eq!(rendered_text(&seen, true).len(), 3 * 64);
    }
    app.stop().await;
}

#[tokio::test]
async fn regression_e01_what_a_client_saw_is_there_after_a_kill() {
    for min_events in 1..=12 {
        let mut harness = AgentHarness::new(Wire::AnthropicMessages).await;
        let gate = Gate::new();
        harness.provider.enqueue_all([
            Reply::new().text("One moment.").deltas(3).tool_use("list_files", json!({"path": "."})),
            Reply::from_text("There is").deltas(2).hold(2, &gate),
            Reply::from_text("There is nothing."),
        ]);
        let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < min_events && !seen.iter().any(|event: &SseEvent| event.data["text"] == "There is")
        {
            seen.extend(next_events(&mut reader).await.unwrap());
        }
        harness.kill().await;
        // A client that only asks now is not delayed.
        gate.release();
        harness.agent.resume().unwrap();
        let events = harness.replay(0).await;
        assert!(events.starts_with(&seen), "{seen:#?} is not how this begins: {events:#?}");
        assert_eq!(check_turn(&events), Ok(()));
    }
}
