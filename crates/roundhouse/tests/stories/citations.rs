//! Citations: the marks of an answer that name pages which the agent was shown become an event and a field of the
//! message, whatever happens to the engine meanwhile.

use mock_llm::{Gate, Reply};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::engine_calls::{answer_id, direct_message, message_id, with_fields};
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::http::send;
use crate::support::search_server::{SearchServer, result};
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::{assert_completed, of_kind};
use crate::support::web_server::WebServer;
use crate::support::{Engine, EngineFixture, Event, StandaloneEngine, assert_fields, eventually};

fn search_reply() -> Reply {
    tool_reply("web_search", json!({"query": "Öl"}))
}

async fn server() -> SearchServer {
    SearchServer::start(vec![
        result("Öl", "https://a.example/öl", "Öl ist teuer."),
        result("", "https://b.example/", "Gas ist billig."),
    ])
    .await
}

async fn fixture(server: &SearchServer, replies: impl IntoIterator<Item = Reply>) -> EngineFixture {
    EngineFixture::with_setup("anthropic", replies, |setup: StandaloneEngine| {
        server.configure(setup.allowing_all_tools(), "brave")
    })
    .await
}

/// The citations of a turn: exactly those of its event, which comes after the text and before the end.
#[track_caller]
fn citations(events: &[Event]) -> Value {
    assert_completed(events);
    let found = of_kind(events, "citations");
    let [event] = found.as_slice() else { panic!("not one `citations`: {events:#?}") };
    assert_eq!(events[events.len() - 2].kind, "citations", "just before the end: {events:#?}");
    assert_eq!(event.data["message_id"], answer_id(events));
    for citation in event.data["citations"].as_array().unwrap() {
        assert_fields(citation, "n:int url:text title?:text ranges:array");
    }
    event.data["citations"].clone()
}

/// The text of a range.
fn cited_text(text: &str, range: &Value) -> String {
    let [start, end] = ["start", "end"].map(|field| usize::try_from(range[field].as_u64().unwrap()).unwrap());
    text.chars().skip(start).take(end - start).collect()
}

/// The messages of a task, on the engine's own pages.
async fn page(engine: &Engine, task: &str) -> Vec<Value> {
    let path = format!("/tasks/{task}/messages");
    let page = engine.get(&path).await.assert_ok("messages:array has_older:bool has_newer:bool");
    page["messages"].as_array().unwrap().clone()
}

async fn replay(engine: &Engine, task: &str) -> Vec<Event> {
    engine.replay(task, 0).await.collect().await
}

#[tokio::test]
async fn the_marks_of_an_answer_become_citations_of_the_pages_that_were_shown() {
    let server = server().await;
    let answer = "Öl ist teuer [1], Gas billig[2]. Beides [1, 2], nicht [3] und nicht `a[1]` oder [1](https://evil.example).";
    let next = "Wie gesagt [2], und neu [3].";
    let replies = [search_reply(), Reply::from_text(answer), search_reply(), Reply::from_text(next)];
    let fixture = fixture(&server, replies).await;
    let events = fixture.engine.run_turn("task", "Was kostet Öl?").await;
    let cited = citations(&events);
    assert_eq!(cited[0]["url"], "https://a.example/%C3%B6l");
    assert_eq!((&cited[0]["n"], &cited[0]["title"]), (&json!(1), &json!("Öl")));
    assert_eq!((&cited[1]["n"], &cited[1]["url"]), (&json!(2), &json!("https://b.example/")));
    assert!(cited[1].get("title").is_none(), "it has none: {cited}");
    let texts: Vec<_> =
        cited[0]["ranges"].as_array().unwrap().iter().map(|range| cited_text(answer, range)).collect();
    assert_eq!(texts, ["[1]", "[1, 2]"]);
    assert_eq!(cited[1]["ranges"].as_array().unwrap().len(), 2);
    assert_eq!(events.last().unwrap().text(), answer, "the text stays as it is");

    // In a later turn, pages keep their numbers, and new ones get new numbers.
    server.state().results = vec![
        result("Neu", "https://c.example/", "c"),
        result("Öl", "https://a.example/öl#part", "Öl ist teuer."),
    ];
    let later = fixture.engine.run_turn("task", "Und jetzt?").await;
    let output = tool_results(&later)[0].unwrap();
    assert!(output.contains("\n\n[3] Neu\n") && output.contains("\n\n[1] Öl\n"), "{output}");
    let cited_later = citations(&later);
    let numbers: Vec<_> = cited_later.as_array().unwrap().iter().map(|one| one["n"].clone()).collect();
    assert_eq!(numbers, [2, 3], "the first result is still in the conversation");

    let messages = page(&fixture.engine, "task").await;
    let with_citations: Vec<_> =
        messages.iter().filter(|message| message.get("citations").is_some()).collect();
    assert_eq!(with_citations.len(), 2, "only the answers: {messages:?}");
    assert_eq!((&with_citations[0]["citations"], &with_citations[1]["citations"]), (&cited, &cited_later));
    assert_eq!(with_citations[0]["message_id"], answer_id(&events));
    // The messages of `GET /tasks/{task_id}` have exactly their fields.
    assert_eq!(fixture.engine.messages("task").await.len(), messages.len());
    assert_eq!(server.searches().len(), 2);
}

#[tokio::test]
async fn without_a_mark_that_names_a_page_there_are_no_citations() {
    let server = server().await;
    let replies = [
        Reply::from_text("I know that [1]."),
        search_reply(),
        Reply::from_text("Nothing [7] of that [0]."),
        Reply::from_text("Another task [1]."),
    ];
    let fixture = fixture(&server, replies).await;
    for task in ["task", "task", "other"] {
        let events = fixture.engine.run_turn(task, "Hm?").await;
        assert!(of_kind(&events, "citations").is_empty(), "{events:?}");
    }
    let messages = page(&fixture.engine, "task").await;
    assert!(messages.iter().all(|message| message.get("citations").is_none()), "{messages:?}");
}

#[tokio::test]
async fn pages_that_are_fetched_can_be_cited_too_unless_they_are_not_there() {
    let page = "<title>Über uns</title><p>Wir sind da.</p>";
    let length = page.len();
    let there = WebServer::new(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {length}\r\n\r\n{page}"
    ))
    .await;
    let moved = WebServer::new(format!(
        "HTTP/1.1 302 Found\r\nlocation: {}seite#oben\r\ncontent-length: 0\r\n\r\n",
        there.url()
    ))
    .await;
    let missing = WebServer::new(
        "HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nno".to_owned(),
    )
    .await;
    let fetch = |server: &WebServer| tool_reply("web_fetch", json!({"url": server.url()}));
    let replies = [fetch(&missing), fetch(&moved), Reply::from_text("Da [1], nicht da [2].")];
    let allowed = [&there, &moved, &missing].map(|server| server.address.to_string()).join(",");
    let fixture = EngineFixture::with_setup("anthropic", replies, |setup: StandaloneEngine| {
        setup.allowing_all_tools().with_env("ENGINE_WEB_ALLOW", &allowed)
    })
    .await;
    let events = fixture.engine.run_turn("task", "Lies.").await;
    let results = tool_results(&events);
    assert!(results[0].unwrap().starts_with("Page "), "no number: {results:?}");
    let url = format!("{}seite", there.url());
    assert!(results[1].unwrap().starts_with(&format!("[1] Page {url}, status 200")), "{results:?}");
    let cited = citations(&events);
    assert_eq!(cited, json!([{"n": 1, "url": url, "title": "Über uns", "ranges": [{"start": 3, "end": 6}]}]));
}

#[tokio::test]
async fn a_search_that_is_cut_off_is_made_again_with_the_same_numbers() {
    let server = server().await;
    server.state().holds = true;
    let fixture = fixture(&server, [search_reply(), Reply::from_text("Teuer [1].")]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Öl?")).await;
    eventually("the search is asked for", async || (server.state().searches.len() == 1).then_some(())).await;
    drop(stream);
    let EngineFixture { provider, setup, program, .. } = fixture;
    program.signal_and_wait(Signal::KILL).await;
    server.state().holds = false;
    let (program, engine) = setup.start().await;
    let fixture = EngineFixture { provider, setup, program, engine };
    let events = replay(&fixture.engine, "task").await;
    assert_eq!(citations(&events)[0]["n"], 1);
    assert_eq!(server.searches().len(), 2);
    assert_eq!(tool_results(&events).len(), 1);
}

#[tokio::test]
async fn what_was_found_is_not_searched_again_and_keeps_its_numbers_after_a_kill() {
    let server = server().await;
    let gate = Gate::new();
    let fixture = fixture(&server, [search_reply(), done_reply().hold(0, &gate)]).await;
    let stream = fixture.engine.execute_with(&direct_message("task", "Öl?")).await;
    wait_gate_reached(&gate).await;
    drop(stream);
    fixture.provider.enqueue(Reply::from_text("Billig [2]."));
    let fixture = fixture.kill_and_start().await;
    let events = replay(&fixture.engine, "task").await;
    let cited = citations(&events);
    assert_eq!(cited[0]["url"], "https://b.example/");
    assert_eq!(server.searches().len(), 1);

    // After the end, all of it is what it was.
    let before = page(&fixture.engine, "task").await;
    fixture.provider.enqueue_all([search_reply(), Reply::from_text("Noch einmal [2][1].")]);
    let fixture = fixture.kill_and_start().await;
    assert_eq!(replay(&fixture.engine, "task").await, events);
    assert_eq!(page(&fixture.engine, "task").await, before);
    let later = fixture.engine.run_turn("task", "Noch einmal?").await;
    let numbers: Vec<_> = citations(&later).as_array().unwrap().iter().map(|one| one["n"].clone()).collect();
    assert_eq!(numbers, [2, 1]);
}

#[tokio::test]
async fn citations_move_with_exports_and_forks_and_go_with_their_task() {
    let server = server().await;
    let replies = [search_reply(), Reply::from_text("Teuer [1]."), Reply::from_text("Ja [1], und [2].")];
    let fixture = fixture(&server, replies).await;
    let events = fixture.engine.run_turn("task", "Öl?").await;
    let cited = citations(&events);
    let fork = json!({"task_id": "fork", "after": answer_id(&events)});
    let forked = fixture.engine.post("/tasks/task/fork", &fork).await;
    assert!(forked.status < 300, "{forked:?}");
    assert_eq!(page(&fixture.engine, "fork").await.last().unwrap()["citations"], cited);

    let document = send(fixture.engine.request(Method::GET, "/memory/export")).await.body;
    let other = EngineFixture::with_setup("anthropic", [Reply::from_text("Ja [2].")], |setup| setup).await;
    let import = other.engine.request(Method::POST, "/memory/import?mode=replace").json(&document);
    send(import).await.assert_ok("status:text mode:text counts:object");
    assert_eq!(page(&other.engine, "task").await, page(&fixture.engine, "task").await);
    let events = other.engine.run_turn("task", "Sicher?").await;
    assert_eq!(citations(&events)[0]["url"], "https://b.example/", "its sources came with it");

    assert_eq!(fixture.engine.delete("/tasks/task").await.status, 200);
    let events = fixture.engine.run_turn("fork", "Sicher?").await;
    assert_eq!(citations(&events).as_array().unwrap().len(), 2, "the copy has its own sources");
    assert_eq!(fixture.engine.delete("/tasks/fork").await.status, 200);
    let document = send(fixture.engine.request(Method::GET, "/memory/export")).await.body.to_string();
    assert!(!document.contains("a.example"), "{document}");
}

#[tokio::test]
async fn an_edit_takes_no_number_back() {
    let server = server().await;
    let fixture = fixture(&server, [search_reply(), Reply::from_text("Teuer [1].")]).await;
    let events = fixture.engine.run_turn("task", "Öl?").await;
    citations(&events);
    server.state().results = vec![result("C", "https://c.example/", "c")];
    fixture.provider.enqueue_all([search_reply(), Reply::from_text("Neu [3].")]);
    let edit = with_fields(direct_message("task", "Und C?"), json!({"edit_message_id": message_id(&events)}));
    let events = fixture.engine.run_turn_with(&edit).await;
    assert!(tool_results(&events)[0].unwrap().contains("\n\n[3] C\n"), "{events:?}");
    assert_eq!(citations(&events)[0]["url"], "https://c.example/");
    let messages = page(&fixture.engine, "task").await;
    assert!(!json!(messages).to_string().contains("a.example"), "{messages:?}");
}

#[tokio::test]
async fn what_a_hook_withholds_cannot_be_cited() {
    let server = server().await;
    let withhold = r#"echo '{"decision": "refuse", "reason": "Not for you."}'"#;
    let hook = |script: &str| {
        json!({"hooks": [{"name": "guard", "on": "after", "tools": ["web_search"], "command": ["sh", "-c", script]}]})
            .to_string()
    };
    let replace = r#"echo '{"decision": "allow", "result": "[2] Only this one."}'"#;
    for (script, expected) in [(withhold, json!([])), (replace, json!([2]))] {
        let replies = [search_reply(), Reply::from_text("Guessed [1] [2].")];
        let fixture = EngineFixture::with_setup("anthropic", replies, |setup: StandaloneEngine| {
            server
                .configure(setup.allowing_all_tools(), "brave")
                .with_catalog_file("hooks.json", &hook(script))
        })
        .await;
        let events = fixture.engine.run_turn("task", "Öl?").await;
        let cited = of_kind(&events, "citations");
        let numbers: Vec<_> = cited
            .iter()
            .flat_map(|event| event.data["citations"].as_array().unwrap())
            .map(|one| one["n"].clone())
            .collect();
        assert_eq!(json!(numbers), expected, "{script}");
    }
}

#[tokio::test]
async fn what_a_sub_agent_finds_can_be_cited_by_the_answer() {
    let server = server().await;
    let replies = [
        tool_reply("run_agent", json!({"agent": "finder", "task": "Find it."})),
        search_reply(),
        Reply::from_text("Öl ist teuer [1]."),
        search_reply(),
        Reply::from_text("Teuer [1]."),
    ];
    let fixture = EngineFixture::with_setup("anthropic", replies, |setup: StandaloneEngine| {
        let setup = server.configure(setup.allowing_all_tools(), "brave");
        setup.with_catalog_file("agents/finder.md", "---\ndescription: Finds.\n---\nYou find.")
    })
    .await;
    let events = fixture.engine.run_turn("task", "Öl?").await;
    let cited = citations(&events);
    assert_eq!((cited.as_array().unwrap().len(), &cited[0]["n"]), (1, &json!(1)));
    assert!(tool_results(&events)[1].unwrap().contains("\n\n[1] Öl\n"), "the same number: {events:?}");
    assert_eq!(citations(&replay(&fixture.engine, "task").await), cited);
}

#[tokio::test]
async fn an_answer_of_a_given_form_has_none() {
    let server = server().await;
    let fixture = fixture(&server, [search_reply(), Reply::from_text(r#"{"rows":[1]}"#)]).await;
    let schema = json!({"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]});
    let format = json!({"type": "json_schema", "name": "rows", "schema": schema});
    let body = with_fields(direct_message("task", "Rows?"), json!({"response_format": format}));
    let events = fixture.engine.run_turn_with(&body).await;
    assert!(of_kind(&events, "citations").is_empty(), "{events:?}");
}
