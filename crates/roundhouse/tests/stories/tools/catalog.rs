//! Tools and skills of a product's catalog.

use std::fs;

use mock_llm::Reply;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::WIRES;
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::{assert_completed, of_kind};
use crate::support::web_server::WebServer;
use crate::support::{EngineFixture, StandaloneEngine, is_installed};

/// A tool that reverses a text, with a program of the catalog.
const REVERSE_TOOL: &str = r#"{
    "description": "Turns a text round.",
    "input_schema": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": false
    },
    "permission": "allow",
    "idempotent": true,
    "network": false,
    "command": ["perl", "tools/reverse.pl", "--well"]
}"#;
const REVERSE_PROGRAM: &str = r#"
    my $input = join '', <STDIN>;
    my ($text) = $input =~ /"text":"(.*?)"/ or die "no text in $input";
    print STDERR "working\n";
    print scalar(reverse $text), " @ARGV";
"#;

const SKILL: &str = "---
name: counting
description: Counts words. Use it whenever somebody wants words counted.
---

Run `scripts/count.sh` with the words as its input. See references/why.md.
";

async fn new_fixture(
    configure: impl FnOnce(StandaloneEngine) -> StandaloneEngine,
    replies: impl IntoIterator<Item = Reply>,
) -> EngineFixture {
    EngineFixture::with_setup("anthropic", replies, |setup| configure(setup.allowing_unconfined())).await
}

fn with_reverse(setup: StandaloneEngine) -> StandaloneEngine {
    setup
        .with_catalog_file("tools/reverse.json", REVERSE_TOOL)
        .with_catalog_file("tools/reverse.pl", REVERSE_PROGRAM)
}

fn with_skill(setup: StandaloneEngine) -> StandaloneEngine {
    setup
        .with_catalog_file("skills/counting/SKILL.md", SKILL)
        .with_catalog_file("skills/counting/references/why.md", "Because somebody wants to know.")
        .with_catalog_file("skills/counting/scripts/count.sh", "echo \"$1: $(wc -w) words\" | tee counted")
}

#[tokio::test]
async fn a_command_of_the_catalog_is_given_the_input_and_gives_what_it_writes() {
    if !is_installed("perl") {
        return;
    }
    for wire in WIRES {
        let fixture =
            EngineFixture::with_setup(wire, [], |setup| with_reverse(setup.allowing_unconfined())).await;
        fixture.provider.enqueue_all([tool_reply("reverse", json!({"text": "drawer"})), done_reply()]);
        let events = fixture.engine.run_turn("task", "Turn it round.").await;
        assert_eq!(of_kind(&events, "hitl_request").len(), 0, "its file allows it");
        assert_eq!(tool_results(&events), [Ok("reward --well")]);
        fixture.last_messages().assert_contains(&["reward --well"]).assert_lacks(&["working"]);
        let tools = fixture.provider.requests()[0].body["tools"].to_string();
        assert!(tools.contains("\"reverse\"") && tools.contains("Turns a text round."), "{tools}");
    }
}

#[tokio::test]
async fn its_input_is_checked_before_anything_runs() {
    let bad = [json!({}), json!({"text": 7}), json!({"text": "x", "more": 1})];
    let fixture = new_fixture(
        with_reverse,
        bad.clone().map(|input| tool_reply("reverse", input)).into_iter().chain([done_reply()]),
    )
    .await;
    let events = fixture.engine.run_turn("task", "Try.").await;
    let errors: Vec<&str> = tool_results(&events).into_iter().map(|result| result.unwrap_err()).collect();
    assert_eq!(errors.len(), bad.len());
    assert!(
        errors[0].contains("text") && errors[1].contains("text") && errors[2].contains("more"),
        "{errors:?}"
    );
}

#[tokio::test]
async fn one_that_fails_says_why() {
    let failing = r#"{"description": "Fails.", "permission": "allow",
                      "command": ["sh", "-c", "echo half a result; echo no such customer >&2; exit 4"]}"#;
    let fixture = new_fixture(
        |setup| setup.with_catalog_file("tools/failing.json", failing),
        [tool_reply("failing", json!({})), done_reply()],
    )
    .await;
    let events = fixture.engine.run_turn("task", "Try.").await;
    let error = tool_results(&events)[0].unwrap_err();
    for part in ["4", "no such customer", "half a result"] {
        assert!(error.contains(part), "no {part:?} in: {error}");
    }
    fixture.last_messages().assert_contains(&["no such customer"]);
}

#[tokio::test]
async fn one_whose_file_says_nothing_asks_and_shows_the_input() {
    let plain =
        r#"{"description": "Books a table.", "input_schema": {"type": "object"}, "command": ["cat"]}"#;
    let input = json!({"table": "by the window"});
    let fixture = new_fixture(
        |setup| setup.with_catalog_file("tools/book.json", plain),
        [tool_reply("book", input.clone()), done_reply()],
    )
    .await;
    let (stream, request) = fixture.engine.run_until_hitl_request(&direct_message("task", "Book it.")).await;
    let prompt = request.data["question"].as_str().unwrap();
    assert!(prompt.contains("book") && prompt.contains("by the window"), "{prompt}");
    assert!(
        prompt.contains("with the network"),
        "a tool has network access unless its file denies it: {prompt}"
    );
    fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    assert_completed(&events);
    let given: Value = serde_json::from_str(tool_results(&events)[0].unwrap()).unwrap();
    assert_eq!(given, input);
}

#[tokio::test]
async fn a_call_of_a_server_sends_the_input_and_gives_the_answer() {
    for wire in WIRES {
        let server = WebServer::with_text("It costs 12.").await;
        let tool = json!({
            "description": "Asks for a price.",
            "input_schema": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
            "http": {"method": "POST", "url": format!("{}price", server.url()), "headers": {"x-shop-key": "k3y"}},
        });
        let configure =
            |setup: StandaloneEngine| setup.with_catalog_file("tools/price.json", &tool.to_string());
        let fixture = EngineFixture::with_setup(
            wire,
            [tool_reply("price", json!({"item": "a lamp"})), done_reply()],
            configure,
        )
        .await;
        let (stream, request) =
            fixture.engine.run_until_hitl_request(&direct_message("task", "What does it cost?")).await;
        let prompt = request.data["question"].as_str().unwrap();
        assert!(prompt.contains("a lamp") && prompt.contains(&server.address.to_string()), "{prompt}");
        assert!(!prompt.contains("k3y"), "{prompt}");
        assert_eq!(server.requests(), [""; 0]);
        fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
        let events = stream.collect().await;
        assert_completed(&events);
        assert_eq!(tool_results(&events), [Ok("It costs 12.")]);
        let requests = server.requests();
        let [sent] = requests.as_slice() else { panic!("one request, not {requests:?}") };
        assert!(sent.starts_with("POST /price HTTP/1.1\r\n") && sent.contains("x-shop-key: k3y"), "{sent}");
        assert!(sent.ends_with("\r\n\r\n{\"item\":\"a lamp\"}"), "{sent}");
        fixture.last_messages().assert_lacks(&["k3y"]);
    }
}

#[tokio::test]
async fn a_skill_is_loaded_and_its_script_run() {
    for wire in WIRES {
        let fixture =
            EngineFixture::with_setup(wire, [], |setup| with_skill(setup.allowing_unconfined())).await;
        let script = json!({"skill": "counting", "script": "scripts/count.sh", "args": ["Here"], "input": "one two three"});
        fixture.provider.enqueue_all([
            tool_reply("load_skill", json!({"skill": "counting"})),
            tool_reply("load_skill", json!({"skill": "counting", "file": "references/why.md"})),
            tool_reply("run_skill_script", script),
            done_reply(),
        ]);
        let (stream, request) =
            fixture.engine.run_until_hitl_request(&direct_message("task", "Count.")).await;
        // Before it is loaded, the model sees only its name and description.
        let tools = fixture.provider.requests()[0].body["tools"].to_string();
        assert!(tools.contains("counting") && tools.contains("Counts words."), "{tools}");
        fixture.last_messages().assert_contains(&["scripts/count.sh", "Because somebody wants to know."]);
        let prompt = request.data["question"].as_str().unwrap();
        assert!(
            prompt.contains("counting") && prompt.contains("count.sh") && prompt.contains("Here"),
            "{prompt}"
        );
        fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
        let events = stream.collect().await;
        assert_completed(&events);
        assert_eq!(tool_results(&events)[2].unwrap().trim(), "Here: 3 words");
        let counted = fs::read_to_string(fixture.setup.workspace().join("counted")).unwrap();
        assert_eq!(counted.trim(), "Here: 3 words", "{wire}: the script runs in the workspace");
    }
}

#[tokio::test]
async fn a_skill_leads_nowhere_else() {
    let bad = [
        tool_reply("load_skill", json!({"skill": "../agents"})),
        tool_reply("load_skill", json!({"skill": "counting", "file": "../../tools/reverse.json"})),
        tool_reply("load_skill", json!({"skill": "counting", "file": "/etc/passwd"})),
        tool_reply("run_skill_script", json!({"skill": "counting", "script": "../../../tools/reverse.pl"})),
        tool_reply("run_skill_script", json!({"skill": "counting", "script": "/bin/sh"})),
        tool_reply("run_skill_script", json!({"skill": "counting", "script": "references/why.md"})),
    ];
    let configure = |setup: StandaloneEngine| {
        with_skill(with_reverse(setup)).with_catalog_file("permissions.json", r#"{"default": "allow"}"#)
    };
    let number = bad.len();
    let fixture = new_fixture(configure, bad.into_iter().chain([done_reply()])).await;
    let events = fixture.engine.run_turn("task", "Try.").await;
    let results = tool_results(&events);
    assert_eq!(results.len(), number);
    assert!(results.iter().all(Result::is_err), "{results:?}");
}

#[tokio::test]
async fn a_faulty_file_costs_itself_and_nothing_else() {
    let configure = |setup: StandaloneEngine| {
        with_skill(with_reverse(setup))
            .with_catalog_file("tools/faulty.json", "{\"description\": ")
            .with_catalog_file("tools/shell.json", REVERSE_TOOL)
            .with_catalog_file("tools/no where.json", REVERSE_TOOL)
            .with_catalog_file("skills/faulty/SKILL.md", "no front matter")
    };
    let fixture = new_fixture(configure, [tool_reply("reverse", json!({"text": "ton"})), done_reply()]).await;
    let events = fixture.engine.run_turn("task", "Turn it round.").await;
    assert_eq!(tool_results(&events), [Ok("not --well")]);
    let offered = fixture.offered_tools();
    assert!(!offered.iter().any(|name| name == "faulty" || name == "no where"), "{offered:?}");
    assert_eq!(offered.iter().filter(|name| *name == "shell").count(), 1, "{offered:?}");
    let log = fixture.program.output();
    for named in ["tools/faulty.json", "tools/shell.json", "tools/no where.json", "skills/faulty"] {
        assert!(log.contains(named), "the log does not name {named}: {log}");
    }
    assert_eq!(fixture.engine.health().await["status"], "ok");
}
