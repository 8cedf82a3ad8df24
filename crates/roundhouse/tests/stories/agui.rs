//! AG-UI on an engine: its official client runs turns, answers interrupts and takes broken runs up again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mock_llm::{Fault, Gate, Refusal, Reply};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;

use crate::support::engine_calls::with_fields;
use crate::support::engine_fixture::{
    PNG_BASE64, ask_user_reply, memory_set_reply, wait_gate_reached, write_file_reply,
};
use crate::support::http::{HttpResponse, client, send};
use crate::support::{EngineFixture, Fleet, Peers, Program, TestEnv, eventually};

/// A front end with the official client. It prints what it sees, one object per line.
struct FrontEnd {
    program: Program,
    input: ChildStdin,
    runs: u32,
    _home: TestEnv,
}

impl FrontEnd {
    /// Starts a front end; skips the story and returns `None` if the client is not installed.
    async fn start(url: &str, key: &str, thread: &str) -> Option<Self> {
        let peers = Peers::installed()?;
        let home = peers.node_home();
        let program = home.path().join("agui_client.mjs");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/agui_client.mjs");
        fs::copy(source, &program).unwrap();
        let node = peers.node();
        let url = format!("{url}/agui");
        let line = [node.to_str().unwrap(), program.to_str().unwrap(), &url, key];
        let (program, input) = home.run_program_interactive(&line, &BTreeMap::new());
        let mut this = Self { program, input, runs: 0, _home: home };
        this.order(&json!({"thread": thread})).await;
        Some(this)
    }

    async fn of(fixture: &EngineFixture, thread: &str) -> Option<Self> {
        Self::start(&fixture.engine.url, &fixture.engine.key, thread).await
    }

    async fn order(&mut self, order: &Value) {
        self.input.write_all(format!("{order}\n").as_bytes()).await.unwrap();
    }

    async fn say(&mut self, text: &str) {
        self.order(&json!({"say": text, "id": format!("user-{}", self.runs)})).await;
    }

    /// Starts a run; returns its tag.
    async fn begin(&mut self, parameters: Value) -> u32 {
        self.runs += 1;
        self.order(&json!({"run": parameters, "tag": self.runs})).await;
        self.runs
    }

    fn seen(&self, tag: u32) -> Vec<Value> {
        let output = self.program.output();
        let lines = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["tag"] == tag).collect()
    }

    fn events(&self, tag: u32) -> Vec<Value> {
        self.seen(tag).into_iter().filter_map(|line| line.get("event").cloned()).collect()
    }

    /// Waits until a run has shown an event of a type.
    async fn wait_for(&self, tag: u32, kind: &str) {
        eventually(&format!("{kind} in: {}", self.program.output()), async || {
            self.events(tag).iter().any(|event| event["type"] == kind).then_some(())
        })
        .await;
    }

    /// Waits for the end of a run, as the client reports it.
    async fn end(&self, tag: u32) -> Value {
        eventually("the run ends", async || {
            self.seen(tag).into_iter().find(|line| line.get("event").is_none())
        })
        .await
    }

    async fn run(&mut self, parameters: Value) -> Value {
        let tag = self.begin(parameters).await;
        self.end(tag).await
    }
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// The text of the last message that a client has of the agent.
fn last_answer(end: &Value) -> &str {
    let messages = end["messages"].as_array().unwrap_or_else(|| panic!("no messages: {end}"));
    let answer =
        messages.iter().rfind(|message| message["role"] == "assistant" && message["content"].is_string());
    answer.unwrap_or_else(|| panic!("no answer: {end}"))["content"].as_str().unwrap()
}

fn input(thread: &str, run: &str, text: &str, fields: Value) -> Value {
    let message = json!({"id": "m", "role": "user", "content": text});
    with_fields(json!({"threadId": thread, "runId": run, "messages": [message]}), fields)
}

/// The parameters of a run whose reasoning is shown.
fn thinking_run(run: &str) -> Value {
    json!({"runId": run, "forwardedProps": {"effort": "high"}})
}

async fn post(fixture: &EngineFixture, body: &Value) -> HttpResponse {
    fixture.engine.post("/agui", body).await
}

#[tokio::test]
async fn a_run_thinks_acts_and_answers() {
    let replies = [
        Reply::new()
            .thinking("Hm.")
            .text("I note it.")
            .tool_use("working_memory_set", json!({"key": "colour/of sky", "value": "blue"})),
        Reply::from_text("Grüß Gott, Ada.").deltas(4),
        Reply::from_text("Once more."),
    ];
    let fixture = EngineFixture::new(replies).await;
    let Some(mut front) = FrontEnd::of(&fixture, "täsk").await else { return };
    front.say("Hello").await;
    let end = front.run(thinking_run("r1")).await;
    let events = front.events(1);
    assert_eq!(last_answer(&end), "Grüß Gott, Ada.");
    assert_eq!(end["state"], json!({"colour/of sky": "blue"}));
    for kind in
        ["REASONING_MESSAGE_CONTENT", "TOOL_CALL_ARGS", "TOOL_CALL_RESULT", "STATE_DELTA", "TEXT_MESSAGE_END"]
    {
        assert!(kinds(&events).contains(&kind), "no {kind}: {:?}", kinds(&events));
    }
    assert_eq!(
        events[0],
        with_fields(events[0].clone(), json!({"threadId": "täsk", "runId": "r1", "protocolVersion": "1.0"}))
    );
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["outcome"]["type"]), (&json!("RUN_FINISHED"), &json!("success")));
    assert!(last["usage"][0]["outputTokens"].as_u64() > Some(0), "{last}");
    // The next run continues the task, which has its own history.
    front.say("And again").await;
    let end = front.run(json!({"runId": "r2"})).await;
    assert_eq!(last_answer(&end), "Once more.");
    assert_eq!(fixture.engine.tasks("").await.1, 1);
    let calls = fixture.model_calls();
    // The same run again is not run again.
    let again =
        fixture.engine.request(Method::POST, "/agui").json(&input("täsk", "r1", "Hello", thinking_run("r1")));
    let again = again.send().await.unwrap().text().await.unwrap();
    assert!(again.contains("Grüß") && again.contains("RUN_FINISHED"), "{again}");
    assert_eq!(fixture.model_calls(), calls);
    // With something else to say it is another one.
    let other = post(&fixture, &input("täsk", "r1", "Goodbye", json!({}))).await;
    assert_eq!((other.status, &other.body["type"]), (400, &json!("RUN_ERROR")), "{}", other.body);
}

#[tokio::test]
async fn a_person_decides_between_two_runs() {
    let replies = [
        write_file_reply("a.txt"),
        Reply::from_text("Wrote it."),
        write_file_reply("b.txt"),
        Reply::from_text("Left it."),
        ask_user_reply("Which colour?"),
        Reply::from_text("Red, then."),
    ];
    let fixture = EngineFixture::new(replies).await;
    let Some(mut front) = FrontEnd::of(&fixture, "task").await else { return };
    front.say("Write").await;
    let end = front.run(json!({"runId": "r1"})).await;
    let interrupt = end["interrupts"][0].clone();
    assert_eq!((&interrupt["reason"], end["interrupts"].as_array().unwrap().len()), (&json!("tool_call"), 1));
    assert_eq!(interrupt["metadata"]["roundhouse"]["preview"]["path"], "a.txt");
    assert!(interrupt["toolCallId"].is_string(), "{interrupt}");
    // A new message has to wait; the answer has to fit.
    let busy = post(&fixture, &input("task", "r9", "Hello?", json!({}))).await;
    assert_eq!((busy.status, &busy.body["code"]), (409, &json!("task_busy")), "{}", busy.body);
    let wrong = json!([{"interruptId": interrupt["id"], "status": "resolved", "payload": {"odd": 1}}]);
    let wrong = post(&fixture, &input("task", "r9", "x", json!({"resume": wrong}))).await;
    assert_eq!((wrong.status, &wrong.body["type"]), (400, &json!("RUN_ERROR")), "{}", wrong.body);

    let fixture = fixture.kill_and_start().await;
    front.order(&json!({"url": format!("{}/agui", fixture.engine.url)})).await;
    let resume =
        json!([{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": true}}]);
    let end = front.run(json!({"runId": "r2", "resume": resume})).await;
    assert_eq!(last_answer(&end), "Wrote it.");
    assert!(fixture.setup.workspace().join("a.txt").exists());
    assert_eq!(front.events(2)[0]["runId"], "r2");
    assert!(kinds(&front.events(2)).contains(&"TOOL_CALL_RESULT"));
    // The same resume again is the same run; another answer is refused.
    let body = |approved: bool| {
        let entry =
            json!({"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": approved}});
        input("task", "r2", "x", json!({"resume": [entry]}))
    };
    let text = async |body: &Value| {
        fixture.engine.request(Method::POST, "/agui").json(body).send().await.unwrap().text().await.unwrap()
    };
    let again = text(&body(true)).await;
    assert!(again.contains("Wrote it.") && again.contains("\"success\""), "{again}");
    let other = text(&body(false)).await;
    assert!(other.contains("interrupt_answered"), "{other}");

    front.say("Write b").await;
    let end = front.run(json!({"runId": "r3"})).await;
    let resume = json!([{"interruptId": end["interrupts"][0]["id"], "status": "cancelled"}]);
    let end = front.run(json!({"runId": "r4", "resume": resume})).await;
    assert_eq!(last_answer(&end), "Left it.");
    assert!(!fixture.setup.workspace().join("b.txt").exists());

    front.say("Paint").await;
    let end = front.run(json!({"runId": "r5"})).await;
    let question = &end["interrupts"][0];
    assert_eq!(
        (&question["reason"], &question["message"]),
        (&json!("input_required"), &json!("Which colour?"))
    );
    let resume = json!([{"interruptId": question["id"], "status": "resolved", "payload": {"answer": "red"}}]);
    let end = front.run(json!({"runId": "r6", "resume": resume})).await;
    assert_eq!(last_answer(&end), "Red, then.");
    let unknown = json!([{"interruptId": "x", "status": "resolved", "payload": true}]);
    let unknown = post(&fixture, &input("task", "r7", "x", json!({"resume": unknown}))).await;
    assert_eq!((unknown.status, &unknown.body["code"]), (404, &json!("interrupt_not_found")));
}

#[tokio::test]
async fn the_same_run_gives_exactly_the_rest_after_a_kill() {
    let gate = Gate::new();
    let text = "Es war einmal ein längerer Text, der in vielen Stücken kam.";
    let reply = || Reply::new().thinking("Ein Märchen.").text(text).deltas(12);
    let fixture = EngineFixture::new([reply().hold(16, &gate)]).await;
    let Some(mut front) = FrontEnd::of(&fixture, "task").await else { return };
    front.say("Erzähl.").await;
    let tag = front.begin(thinking_run("r1")).await;
    wait_gate_reached(&gate).await;
    front.wait_for(tag, "TEXT_MESSAGE_CONTENT").await;
    fixture.provider.enqueue(reply());
    let fixture = fixture.kill_and_start().await;
    let broken = front.end(tag).await;
    assert!(broken["error"].is_string(), "{broken}");
    front.order(&json!({"url": format!("{}/agui", fixture.engine.url)})).await;
    let end = front.run(thinking_run("r1")).await;
    assert_eq!(last_answer(&end), text);
    let messages = end["messages"].as_array().unwrap();
    let reasoning: Vec<_> = messages.iter().filter(|message| message["role"] == "reasoning").collect();
    assert_eq!((reasoning.len(), &reasoning[0]["content"]), (1, &json!("Ein Märchen.")), "{messages:?}");
    assert_eq!(messages.len(), 3, "{messages:?}");
    // What was there before the kill did not come again.
    let rest = front.events(2);
    let deltas: String = rest
        .iter()
        .filter(|event| event["type"] == "TEXT_MESSAGE_CONTENT")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert!(text.ends_with(&deltas) && deltas.len() < text.len(), "{deltas}");
}

#[tokio::test]
async fn who_opens_a_thread_gets_its_working_memory() {
    let replies = [memory_set_reply("ort", "Köln"), Reply::from_text("Noted.")];
    let fixture = EngineFixture::new(replies).await;
    let Some(mut first) = FrontEnd::of(&fixture, "task").await else { return };
    first.say("I live there.").await;
    let end = first.run(json!({"runId": "r1"})).await;
    assert_eq!(end["state"]["ort"], "Köln", "{end}");
    assert_eq!(first.events(1)[1]["snapshot"], json!({}));
    let fixture = fixture.kill_and_start().await;
    // Another client, which has seen nothing of it.
    fixture.provider.enqueue_all([memory_set_reply("zeit", "morgen"), Reply::from_text("Noted, too.")]);
    let Some(mut second) = FrontEnd::of(&fixture, "task").await else { return };
    second.say("When do we leave?").await;
    let end = second.run(json!({"runId": "r2"})).await;
    assert_eq!((&end["state"]["ort"], &end["state"]["zeit"]), (&json!("Köln"), &json!("morgen")), "{end}");
    let events = second.events(1);
    assert_eq!(kinds(&events)[..2], ["RUN_STARTED", "STATE_SNAPSHOT"]);
    assert_eq!(events[1]["snapshot"], json!({"ort": "Köln"}));
    // What was changed and deleted meanwhile is not in the first one's state any more.
    let change =
        fixture.engine.request(Method::PUT, "/tasks/task/memory/ort").json(&json!({"value": "Bonn"}));
    assert_eq!(send(change).await.status, 200);
    assert_eq!(fixture.engine.delete("/tasks/task/memory/zeit").await.status, 200);
    fixture.provider.enqueue(Reply::from_text("Bonn."));
    first.order(&json!({"url": format!("{}/agui", fixture.engine.url)})).await;
    first.say("Where?").await;
    let end = first.run(json!({"runId": "r3"})).await;
    assert_eq!(first.events(2)[1]["snapshot"], json!({"ort": "Bonn"}));
    assert_eq!((&end["state"]["ort"], end["state"].get("zeit")), (&json!("Bonn"), None), "{end}");
    // A run that is taken up again does not bring back what it wrote.
    let again = fixture.engine.request(Method::POST, "/agui");
    let again = again.json(&input("task", "r1", "I live there.", json!({}))).send().await.unwrap();
    let again = again.text().await.unwrap();
    assert!(again.contains("Noted.") && again.contains("Bonn") && !again.contains("STATE_DELTA"), "{again}");
}

#[tokio::test]
async fn an_aborted_run_goes_on_and_a_cancelled_one_ends() {
    let gates = [Gate::new(), Gate::new()];
    let replies = [
        Reply::from_text("The first half, and the second half.").deltas(4).hold(2, &gates[0]),
        Reply::from_text("Never said to the end.").deltas(4).hold(2, &gates[1]),
    ];
    let fixture = EngineFixture::new(replies).await;
    let Some(mut front) = FrontEnd::of(&fixture, "task").await else { return };
    front.say("Tell me").await;
    let tag = front.begin(json!({"runId": "r1"})).await;
    front.wait_for(tag, "TEXT_MESSAGE_CONTENT").await;
    front.order(&json!({"abort": true})).await;
    front.end(tag).await;
    gates[0].release();
    let end = front.run(json!({"runId": "r1"})).await;
    assert_eq!(last_answer(&end), "The first half, and the second half.");
    front.say("More").await;
    let tag = front.begin(json!({"runId": "r2"})).await;
    front.wait_for(tag, "TEXT_MESSAGE_CONTENT").await;
    assert_eq!(fixture.engine.cancel("task").await.status, 200);
    front.end(tag).await;
    assert_eq!(front.events(tag).last().unwrap()["outcome"], json!({"type": "cancelled"}));
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_in_the_protocols_form() {
    let fixture = EngineFixture::new([Reply::from_text("A dot.")]).await;
    let tool = json!([{"name": "confirm", "description": "Asks.", "parameters": {}}]);
    for (fields, status, words) in [
        (json!({"tools": tool}), 400, "`tools`"),
        (json!({"parentRunId": "r0"}), 400, "`parentRunId`"),
        (json!({"odd": 1}), 400, "`odd`"),
        (json!({"runId": null}), 400, "`runId`"),
        (json!({"messages": []}), 400, "`messages`"),
        (json!({"forwardedProps": {"model": "gpt-9"}}), 404, "gpt-9"),
    ] {
        let refused = post(&fixture, &input("task", "r1", "Hi", fields.clone())).await;
        assert_eq!(
            (refused.status, &refused.body["type"]),
            (status, &json!("RUN_ERROR")),
            "{fields}: {}",
            refused.body
        );
        assert!(refused.body["message"].as_str().unwrap().contains(words), "{fields}: {}", refused.body);
    }
    for body in ["{", "[]", "1"] {
        let refused = send(fixture.engine.request(Method::POST, "/agui").body(body)).await;
        assert_eq!((refused.status, &refused.body["type"]), (400, &json!("RUN_ERROR")), "{}", refused.body);
    }
    let nobody = send(client().post(format!("{}/agui", fixture.engine.url)).json(&json!({}))).await;
    assert_eq!((nobody.status, &nobody.body["code"]), (401, &json!("invalid_api_key")));
    assert_eq!(fixture.model_calls(), 0);
    // The official client says what was refused.
    let Some(mut front) = FrontEnd::of(&fixture, "task").await else { return };
    front.say("Hi").await;
    let refused = front.run(json!({"runId": "r1", "tools": tool})).await;
    assert!(refused["error"].as_str().unwrap().contains("400"), "{refused}");

    let parts = json!([
        {"type": "text", "text": "What is this?"},
        {"type": "image", "source": {"type": "data", "value": PNG_BASE64, "mimeType": "image/png"}},
    ]);
    let message = json!([{"id": "1", "role": "user", "content": parts}]);
    let context = json!([{"description": "The page", "value": "Settings"}]);
    let fields = json!({"messages": message, "context": context, "state": {"colour": "red"}});
    let request = fixture.engine.request(Method::POST, "/agui").json(&input("task", "r2", "", fields));
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["roundhouse-warning"], "fields without effect: state");
    assert!(response.headers().keys().all(|name| !name.as_str().starts_with("access-control")));
    assert_eq!(text_of(&response.text().await.unwrap()), "A dot.");
    fixture.all_messages()[0].assert_contains(&["What is this?", PNG_BASE64]);
    let sent = fixture.provider.requests()[0].body.to_string();
    assert!(sent.contains("The page:") && sent.contains("Settings"), "{sent}");
}

/// The text of a run. How many pieces it comes in depends on the time.
fn text_of(stream: &str) -> String {
    let events = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.map(|data| serde_json::from_str::<Value>(data).unwrap());
    let texts = events.filter(|event| event["type"] == "TEXT_MESSAGE_CONTENT");
    texts.map(|event| event["delta"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_turn_that_fails_ends_its_run_with_an_error() {
    let fixture = EngineFixture::new([Reply::from_fault(Fault::refuse(Refusal::Unauthorized))]).await;
    let Some(mut front) = FrontEnd::of(&fixture, "task").await else { return };
    front.say("Hi").await;
    front.run(json!({"runId": "r1"})).await;
    let events = front.events(1);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["code"]), (&json!("RUN_ERROR"), &json!("provider_auth")), "{events:?}");
}

#[tokio::test]
async fn a_new_thread_gets_the_history_of_the_request() {
    let fixture = EngineFixture::new([Reply::from_text("As I said."), memory_set_reply("a", "b")]).await;
    let messages = json!([
        {"id": "1", "role": "user", "content": "Who are you?"},
        {"id": "2", "role": "assistant", "content": "Your assistant."},
        {"id": "3", "role": "user", "content": "Again?"},
    ]);
    let body = input("new", "r1", "", json!({"messages": messages}));
    for _ in 0..2 {
        let request = fixture.engine.request(Method::POST, "/agui").json(&body);
        assert_eq!(text_of(&request.send().await.unwrap().text().await.unwrap()), "As I said.");
    }
    fixture.all_messages()[0].assert_contains(&["Again?", "Your assistant."]);
    assert_eq!(fixture.model_calls(), 1);
}

#[tokio::test]
async fn a_product_reaches_it_through_the_proxy() {
    let provider = mock_llm::MockProvider::start().await.unwrap();
    provider.enqueue(Reply::from_text("Through the proxy."));
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    let product = up.product();
    product.engine("ada").await;
    let url = format!("{}/engines/ada/proxy", product.base);
    let Some(mut front) = FrontEnd::start(&url, &product.key, "task").await else { return };
    front.say("Hi").await;
    let end = front.run(json!({"runId": "r1"})).await;
    assert_eq!(last_answer(&end), "Through the proxy.");
}
