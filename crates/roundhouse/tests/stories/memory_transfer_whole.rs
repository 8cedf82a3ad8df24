//! Whatever an engine was used for comes out of the engine that imports its memory as it went in, byte by byte.

use std::path::Path;
use std::time::Instant;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use documents::samples::{docx, paragraph, pdf, wav};
use mock_llm::{Gate, MockProvider, Reply};
use reqwest::{Body, Method};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::documents::{DOCX, document};
use crate::learning::{QUESTION, learning_model};
use crate::sandbox::is_confined;
use crate::schedules::{create, in_seconds, schedule, wait_completed};
use crate::support::engine_calls::{answer_id, direct_message, message_id, with_fields};
use crate::support::engine_fixture::{
    PNG_BASE64, ask_user_reply, memory_set_reply, wait_gate_reached, write_file_reply,
};
use crate::support::http::send;
use crate::support::scripted_mcp::{ScriptedMcp, tool};
use crate::support::search_server::{SearchServer, result};
use crate::support::tool_programs::{done_reply, tool_reply};
use crate::support::turn::{assert_cancelled, assert_completed, of_kind};
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{Engine, EngineFixture, Event, EventStream, StandaloneEngine, eventually};
use crate::user_servers::add_approved;

/// All sections of a document. A new one is to be filled by [`UsedEngine`].
const SECTIONS: [&str; 20] = [
    "version",
    "tasks",
    "conversations",
    "turns",
    "steps",
    "said",
    "recalled",
    "events",
    "episodes",
    "trajectories",
    "knowledge",
    "skills",
    "batches",
    "feedback",
    "lessons",
    "media",
    "queue",
    "schedules",
    "mcp_servers",
    "usage",
];
/// What differs in the engine that imports a document, by design: messages that wait are left out, because an import starts
/// no turn (`docs/busy-tasks.md`), and a turn that runs has ended. So what is compared is exported when all turns have
/// ended. What belongs to the engine alone, such as grants, runs of schedules and deliveries of the webhook, is in no
/// document.
const ONLY_WHILE_BUSY: [&str; 1] = ["queue"];

const IMPORTED: &str = "status:text mode:text counts:object";

/// An engine in which everything is used that leaves something in its memory, with the services that it uses.
struct UsedEngine {
    fixture: EngineFixture,
    titles: MockProvider,
    search: SearchServer,
    tools: ScriptedMcp,
    receiver: WebhookReceiver,
}

impl UsedEngine {
    async fn start() -> Self {
        let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
        provider.set_responder(learning_model);
        let titles = MockProvider::start().await.unwrap();
        titles.set_default_reply(Reply::from_text("Ein \"Titel\""));
        let model = |vendor: &str, model: &str, base: String| {
            json!({"provider": vendor, "model": model, "base_url": base, "context_window": 200_000,
                   "prices": {"input": 3, "output": 15}})
        };
        let gateway = json!({
            "models": {
                "main": model("anthropic", "claude-sonnet-4-5", provider.base_url()),
                "ears": model("gemini", "gemini-3-pro", provider.gemini_base_url()),
                "small": model("anthropic", "claude-haiku-4-5", titles.base_url()),
            },
            "default": "main", "titles": "small",
        });
        let permissions = json!({
            "default": "ask", "tools": {"*": "allow", "write_file": "ask", "*__*": "allow"},
            "user_mcp_servers": {"max": 3, "allow": ["127.0.0.1", "*.example.com"]},
        });
        let hook = |name: &str, on: &str, answer: Value| {
            let script = format!("echo '{answer}'");
            json!({"name": name, "on": on, "tools": ["write_file"], "command": ["sh", "-c", script]})
        };
        let changed = json!({"path": "by-hook.txt", "content": "Safe."});
        let hooks = json!({"hooks": [
            hook("change", "before", json!({"decision": "allow", "input": changed, "note": "Filed."})),
            hook("replace", "after", json!({"decision": "allow", "result": "Written, says the hook."})),
        ]});
        let (search, receiver) = (
            SearchServer::start(vec![result("Öl", "https://a.example/öl", "Öl ist teuer.")]).await,
            WebhookReceiver::start().await,
        );
        let setup = receiver
            .configure(search.configure(StandaloneEngine::new().allowing_unconfined(), "brave"))
            .with_env("ANTHROPIC_API_KEY", "key")
            .with_env("GEMINI_API_KEY", "key")
            .with_env("ENGINE_WEB_ALLOW", "127.0.0.1")
            .with_catalog_file("gateway.json", &gateway.to_string())
            .with_catalog_file("permissions.json", &permissions.to_string())
            .with_catalog_file("hooks.json", &hooks.to_string())
            .with_catalog_file("agents/finder.md", "---\ndescription: Finds.\n---\nYou find.");
        let (program, engine) = setup.start().await;
        let tools = ScriptedMcp::start(vec![tool("look", "Sieht \"nach\". 見る")]).await;
        let fixture = EngineFixture { provider, setup, program, engine };
        Self { fixture, titles, search, tools, receiver }
    }

    fn engine(&self) -> &Engine {
        &self.fixture.engine
    }

    fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.fixture.provider.enqueue_all(replies);
    }

    /// Runs a turn with more fields in its request.
    async fn run(&self, task: &str, message: &str, fields: Value) -> Vec<Event> {
        self.engine().run_turn_with(&with_fields(direct_message(task, message), fields)).await
    }

    /// Knowledge that is superseded, forgotten and recalled; a skill, a lesson and feedback without one.
    async fn learn(&self) {
        let engine = self.engine();
        let mut ids = Vec::new();
        for (content, supersedes) in
            [("Der Reiher ist grau.", None), ("Reiher sind blau 🟦.", Some(0)), ("Vergiss das.", None)]
        {
            let mut record = json!({"content": content, "tags": ["vögel"]});
            if let Some(number) = supersedes {
                let old: &Value = &ids[number];
                record["supersedes"] = old.clone();
            }
            ids.push(engine.post("/memory/knowledge", &record).await.body["id"].clone());
        }
        let path = format!("/memory/knowledge/{}", ids[2].as_str().unwrap());
        assert_eq!(engine.delete(&path).await.status, 200);
        let skill = json!({"name": "rhyme", "prompt": "Rhyme \"well\".", "scripts": {"a.sh": "echo"}});
        assert_eq!(engine.post("/skills/create", &skill).await.status, 200);

        self.run("song", "Sing – песню.", json!({})).await;
        self.run("capital", QUESTION, json!({})).await;
        let correction = json!({"task_id": "capital", "feedback_type": "correction", "correction_text": "It is Canberra."});
        assert_eq!(engine.post("/feedback", &correction).await.status, 200);
        assert_eq!(engine.post("/admin/lc/trigger", &json!({})).await.status, 200);
        eventually("a lesson is learned", async || {
            let lessons = engine.get("/memory/lessons").await.body;
            lessons["lessons"].as_array().is_some_and(|lessons| !lessons.is_empty()).then_some(())
        })
        .await;
        let rating = json!({"task_id": "capital", "feedback_type": "rating", "rating": 2});
        assert_eq!(engine.post("/feedback", &rating).await.status, 200);
        self.run("birds", "Wie ist ein Reiher?", json!({})).await;
    }

    /// A conversation with attachments, options, an edit, a retry, a fork and what a product shows of it.
    async fn converse(&self) {
        let engine = self.engine();
        self.script([memory_set_reply("colour", "gr\"ün"), Reply::from_text("Green.")]);
        let picture =
            json!({"type": "image", "media_type": "image/png", "name": "ä.png", "data": PNG_BASE64});
        let options = json!({
            "client_request_id": "once", "media": [picture], "model": "main", "metadata": {"ticket": "7"},
            "instructions": "Mention the kestrel.", "max_tokens": 90_000, "max_cost_usd": 2.5,
        });
        let first = self.run("trip", "Green?", options).await;
        let second = self.run("trip", "And red?", json!({})).await;
        let edited = self.run("trip", "And blue?", json!({"edit_message_id": message_id(&second)})).await;
        self.run("trip", "", json!({"retry_message_id": message_id(&edited)})).await;
        let fork = json!({"task_id": "fork", "after": answer_id(&first)});
        assert!(engine.post("/tasks/trip/fork", &fork).await.status < 300);
        self.run("fork", "And yellow?", json!({})).await;
        let shown = json!({"title": "Häfen", "metadata": {"project": "a", "Farbe": "红"}, "pinned": true});
        for (task, change) in [("trip", shown), ("fork", json!({"archived": true}))] {
            let path = format!("/tasks/{task}/conversation");
            assert_eq!(send(engine.request(Method::PATCH, &path).json(&change)).await.status, 200);
        }
        let put = engine
            .request(Method::PUT, "/tasks/trip/memory/size")
            .json(&json!({"value": {"m": [1, 2.5, null]}}));
        assert_eq!(send(put).await.status, 200);
        self.run("trip", "And its size?", json!({})).await;

        let audio = BASE64_STANDARD.encode(wav(8_000, 1));
        let audio = json!({"type": "audio", "media_type": "audio/wav", "name": "録音.wav", "data": audio});
        self.script([Reply::from_text("A tone.")]);
        self.run("sound", "What is that?", json!({"model": "ears", "media": [audio]})).await;
        if is_confined(engine).await {
            let files = [
                document("application/pdf", "a.pdf", &pdf(&[&["Birnen"]])),
                document(DOCX, "brief.docx", &docx(&paragraph("Äpfel"))),
            ];
            self.run("papers", "What is that?", json!({"media": files})).await;
        }
        self.run("gone", "Forget me.", json!({})).await;
        assert_eq!(engine.delete("/tasks/gone").await.status, 200);
    }

    /// Tools, a sub-agent, citations, a form of the answer, hooks and people.
    async fn act(&self) {
        let engine = self.engine();
        self.script([
            tool_reply("web_search", json!({"query": "Öl"})),
            Reply::from_text("Öl ist teuer [1]."),
        ]);
        let events = self.run("search", "Was kostet Öl?", json!({})).await;
        assert_eq!(of_kind(&events, "citations").len(), 1);
        self.script([
            tool_reply("run_agent", json!({"agent": "finder", "task": "Find it."})),
            memory_set_reply("found", "there"),
            Reply::from_text("It is there."),
            done_reply(),
        ]);
        let events = self.run("agents", "Where?", json!({})).await;
        assert!(!of_kind(&events, "agent_event").is_empty());
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                            "additionalProperties": false});
        let format = json!({"type": "json_schema", "name": "place", "schema": schema, "strict": true});
        self.script([Reply::from_text(r#"{"city":7}"#), Reply::from_text(r#"{"city":"Bonn"}"#)]);
        let events = self.run("form", "Where?", json!({"response_format": format})).await;
        assert_eq!(assert_completed(&events), r#"{"city":"Bonn"}"#);

        for (number, decision) in [
            json!({"decision": "allow_once", "message": "Well."}),
            json!({"decision": "deny", "message": "Use the \"other\" folder."}),
            json!({"decision": "allow_always"}),
        ]
        .into_iter()
        .enumerate()
        {
            self.script([write_file_reply("risky.txt"), done_reply()]);
            let task = format!("files-{number}");
            let (stream, request) = engine.run_until_hitl_request(&direct_message(&task, "Write.")).await;
            let path = format!("/tasks/{task}/approvals/{}", request.data["request_id"].as_str().unwrap());
            assert_eq!(engine.post(&path, &decision).await.status, 200);
            let events = stream.collect().await;
            assert_completed(&events);
            assert!(!of_kind(&events, "tool_hook").is_empty());
        }
        assert_eq!(engine.grants().await.len(), 1);
        self.script([ask_user_reply("Which?"), done_reply()]);
        let (stream, _) = engine.run_until_hitl_request(&direct_message("question", "Paint it.")).await;
        assert_eq!(engine.respond("question", "Blau").await.status, 200);
        assert_completed(&stream.collect().await);

        add_approved(engine, "notes", &self.tools).await;
        self.script([tool_reply("notes__look", json!({"text": "x"})), done_reply()]);
        self.run("server", "Look.", json!({})).await;
        assert_eq!(self.tools.state().calls.len(), 1);
        assert_eq!(self.search.searches().len(), 1);
    }

    /// Turns that begin by themselves, are steered and cancelled, and schedules of each form.
    async fn begin(&self) {
        let engine = self.engine();
        let begun = engine.execute_in_background(direct_message("back", "Do it.")).await;
        engine.wait_turn_state("back", &begun["turn_id"], "completed").await;
        let gate = Gate::new();
        self.script([Reply::from_text("The first answer.").hold(1, &gate)]);
        let first = engine.execute_with(&direct_message("line", "First.")).await;
        wait_gate_reached(&gate).await;
        let (second, _) = engine.queue_message("line", "Second.").await;
        assert_eq!(engine.steer("line", "Hurry.").await.status, 200);
        gate.release();
        assert_completed(&first.collect().await);
        second.collect().await;
        let held = Gate::new();
        self.script([Reply::from_text("A long answer.").hold(1, &held)]);
        let cancelled = engine.execute_with(&direct_message("line", "Third.")).await;
        wait_gate_reached(&held).await;
        assert_eq!(engine.cancel("line").await.status, 200);
        assert_cancelled(&cancelled.collect().await);

        let cron = json!({"cron": "30 8 29 2 *", "time_zone": "America/New_York"});
        create(engine, &schedule("leap", &cron, json!({"task_id": "trip"}))).await;
        let often = json!({"every_seconds": 86_400, "start": in_seconds(86_400)});
        let options = json!({"direct": true, "metadata": {"by": "me"}});
        create(engine, &schedule("often", &often, json!({"missed": "skip", "options": options}))).await;
        create(engine, &schedule("paused", &often, json!({"paused": true}))).await;
        create(engine, &schedule("once", &json!({"at": in_seconds(1)}), json!({}))).await;
        wait_completed(engine, "once").await;
        assert_eq!(engine.post("/schedules/paused/run", &json!({})).await.status, 202);
        wait_completed(engine, "paused").await;
        let deliveries = engine.get("/webhook/deliveries").await.body;
        assert!(!deliveries["deliveries"].as_array().unwrap().is_empty(), "{deliveries}");
    }

    /// Leaves a turn in its midst until the gate is released, and a message behind it. Returns the stream of the latter.
    async fn be_busy(&self, gate: &Gate) -> EventStream {
        self.script([memory_set_reply("half", "done"), Reply::from_text("The other half.").hold(1, gate)]);
        self.engine().execute_in_background(direct_message("busy", "Begin.")).await;
        wait_gate_reached(gate).await;
        self.engine().queue_message("busy", "Next.").await.0
    }

    /// Waits until nothing is done any more beside turns: titles are made, turns are in memory, lessons are learned.
    async fn wait_settled(&self) {
        let brain = Connection::open_with_flags(self.fixture.setup.brain(), OpenFlags::SQLITE_OPEN_READ_ONLY)
            .unwrap();
        let pending = "SELECT (SELECT COUNT(*) FROM title_requests)
                            + (SELECT COUNT(*) FROM turns WHERE ended_at IS NOT NULL AND taken_in = 0)
                            + (SELECT COUNT(*) FROM batches WHERE ended_at IS NULL)";
        eventually("everything is done", async || {
            let pending: i64 = brain.query_row(pending, [], |row| row.get(0)).unwrap();
            (pending == 0).then_some(())
        })
        .await;
        assert!(!self.titles.requests().is_empty());
        assert!(!self.receiver.state().accepted.is_empty());
    }
}

async fn export(engine: &Engine) -> String {
    let response = engine.request(Method::GET, "/memory/export").send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.text().await.unwrap()
}

async fn import(engine: &Engine, mode: &str, document: &str) -> Value {
    let request = engine.request(Method::POST, &format!("/memory/import?mode={mode}"));
    send(request.body(document.to_owned())).await.assert_ok(IMPORTED)["counts"].take()
}

/// Asserts that a document has exactly these sections, and something in each of them: no section is excepted.
#[track_caller]
fn assert_filled(document: &str, mut expected: Vec<&str>) {
    let document: Value = serde_json::from_str(document).unwrap();
    let sections: Vec<&str> = document.as_object().unwrap().keys().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!(sections, expected);
    for section in sections.into_iter().filter(|section| *section != "version") {
        assert!(!document[section].as_array().unwrap().is_empty(), "{section} is empty");
    }
}

/// Asserts that two documents are the same, and names the first line that differs.
#[track_caller]
fn assert_same(found: &str, expected: &str) {
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {number}");
    }
    assert_eq!(found.len(), expected.len());
}

/// What clients are shown of the memory, by path.
async fn views(engine: &Engine) -> Vec<(String, Value)> {
    let (tasks, _) = engine.tasks("?limit=1000").await;
    let of_task = |task: &Value| {
        let task = task["task_id"].as_str().unwrap().to_owned();
        ["conversation", "memory", "messages?limit=200", "turns?limit=1000"]
            .map(|view| format!("/tasks/{task}/{view}"))
    };
    let paths = tasks.iter().flat_map(of_task);
    let others =
        ["/memory/knowledge?limit=100", "/memory/episodes", "/memory/lessons", "/skills", "/skills/rhyme"];
    let usage = "/usage?group_by=day,task,model,agent,purpose";
    let mut views = Vec::new();
    for path in paths.chain(others.into_iter().chain([usage]).map(str::to_owned)) {
        let view = engine.get(&path).await;
        assert_eq!(view.status, 200, "{path}: {}", view.body);
        views.push((path, view.body));
    }
    views
}

#[tokio::test]
async fn everything_at_once_comes_out_as_it_went_in() {
    let used = UsedEngine::start().await;
    used.learn().await;
    used.converse().await;
    used.act().await;
    used.begin().await;
    let gate = Gate::new();
    let queued = used.be_busy(&gate).await;
    used.wait_settled().await;
    let busy = export(used.engine()).await;
    assert_filled(&busy, SECTIONS.to_vec());
    gate.release();
    queued.collect().await;
    used.wait_settled().await;
    used.fixture.provider.assert_no_refusals();
    let document = export(used.engine()).await;
    let at_rest = SECTIONS.into_iter().filter(|section| !ONLY_WHILE_BUSY.contains(section));
    assert_filled(&document, at_rest.collect());

    let other = EngineFixture::new([]).await;
    import(&other.engine, "merge", &document).await;
    let moved = export(&other.engine).await;
    assert_same(&moved, &document);
    for (found, expected) in views(&other.engine).await.into_iter().zip(views(used.engine()).await) {
        assert_eq!(found, expected);
    }
    for (mode, document, is_empty) in
        [("merge", &document, true), ("merge", &busy, true), ("replace", &document, false)]
    {
        let counts = import(&other.engine, mode, document).await;
        let counted = counts.as_object().unwrap().values().all(|count| *count == 0);
        assert_eq!(counted, is_empty, "{mode}: {counts}");
        assert_same(&export(&other.engine).await, &moved);
    }
    let other = other.kill_and_start().await;
    assert_same(&export(&other.engine).await, &moved);
    assert_eq!(other.model_calls(), 0, "an import calls no model and starts no turn");

    let mut other = killed_in_the_midst_of_the_document(other, &moved).await;
    for share in [0.2, 0.5, 0.8, 1.0] {
        other = killed_while_applying(other, &moved, share).await;
    }
    // And what was moved is used on.
    other.engine.run_turn("trip", "And now?").await;
    other.last_messages().assert_contains(&["Green?", "And now?"]);
}

/// A document without anything.
const NOTHING: &str = r#"{"version":1}"#;

/// Kills the engine while it waits for the second half of the document. Returns it with the whole document.
async fn killed_in_the_midst_of_the_document(fixture: EngineFixture, document: &str) -> EngineFixture {
    import(&fixture.engine, "replace", NOTHING).await;
    let empty = export(&fixture.engine).await;
    let half = document.as_bytes()[..document.len() / 2].to_vec();
    let body = futures::stream::once(async { Ok::<_, std::io::Error>(half) });
    let body = Body::wrap_stream(futures::StreamExt::chain(body, futures::stream::pending()));
    let sending = tokio::spawn(fixture.engine.request(Method::POST, "/memory/import").body(body).send());
    let staging = Path::new(&format!("{}.import", fixture.setup.brain().display())).to_owned();
    eventually("the import has begun", async || staging.exists().then_some(())).await;
    let fixture = fixture.kill_and_start().await;
    sending.await.unwrap().unwrap_err();
    assert!(!staging.exists(), "what was left of it is removed");
    assert_same(&export(&fixture.engine).await, &empty);
    import(&fixture.engine, "merge", document).await;
    assert_same(&export(&fixture.engine).await, document);
    fixture
}

/// Kills the engine when a share of the time has passed that an import takes, and imports again. Returns it with the whole
/// document.
async fn killed_while_applying(fixture: EngineFixture, document: &str, share: f64) -> EngineFixture {
    import(&fixture.engine, "replace", NOTHING).await;
    let empty = export(&fixture.engine).await;
    let start = Instant::now();
    import(&fixture.engine, "merge", document).await;
    let elapsed = start.elapsed();
    import(&fixture.engine, "replace", NOTHING).await;
    let request = fixture.engine.request(Method::POST, "/memory/import?mode=merge");
    let importing = tokio::spawn(request.body(document.to_owned()).send());
    tokio::time::sleep(elapsed.mul_f64(share)).await;
    let fixture = fixture.kill_and_start().await;
    let is_answered = importing.await.unwrap().is_ok_and(|response| response.status() == 200);
    let found = export(&fixture.engine).await;
    assert!(found == document || (found == empty && !is_answered), "all of it or nothing: {share}");
    import(&fixture.engine, "merge", document).await;
    assert_same(&export(&fixture.engine).await, document);
    fixture
}
