//! Documents in the results of tool servers reach the model as those of `read_file` do.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use documents::samples::{docx, paragraph, pdf};
use mock_llm::{Gate, Reply};
use reqwest::Method;
use serde_json::{Value, json};

use crate::documents::{DOCX, can_read_documents, stored_media_count};
use crate::documents_hostile::{pdfs, raw_pdf};
use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::scripted_mcp::{ScriptedMcp, tool};
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::assert_completed;
use crate::support::{EngineFixture, eventually};

const PDF: &str = "application/pdf";
/// What a PDF in a request of Anthropic's protocol has.
const PDF_BLOCK: &str = "\"media_type\":\"application/pdf\"";
/// The tool that the model calls.
const TOOL: &str = "archive__fetch";

/// A result with these resources: URI, media type and bytes.
fn result_with(resources: &[(&str, &str, &[u8])]) -> Value {
    let blocks = resources.iter().map(|(uri, media_type, bytes)| {
        let resource = json!({"uri": uri, "mimeType": media_type, "blob": BASE64_STANDARD.encode(bytes)});
        json!({"type": "resource", "resource": resource})
    });
    json!({"content": blocks.collect::<Vec<_>>()})
}

/// A PDF that says that it is encrypted.
fn locked() -> Vec<u8> {
    let objects =
        ["<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[]/Count 0>>", "<</Filter/Standard/V 9>>"];
    let file = String::from_utf8(raw_pdf(&objects.map(str::to_owned))).unwrap();
    let locked = file.replace("trailer\n<<", "trailer\n<</Encrypt 3 0 R");
    assert_ne!(locked, file);
    locked.into_bytes()
}

/// A server whose tool returns this, and an engine that is connected to it and uses this model.
async fn connected(model: &str, result: Value) -> (ScriptedMcp, EngineFixture) {
    let server = ScriptedMcp::start(vec![tool("fetch", "Fetches a document.")]).await;
    server.state().result = Some(result);
    let servers = json!({"archive": {"type": "http", "url": server.url(), "auth": "none"}});
    let fixture =
        EngineFixture::with_models(&[model], [], |setup| setup.with_servers(&servers).allowing_all_tools())
            .await;
    fixture.engine.connect_server("archive").await;
    (server, fixture)
}

/// Runs a turn in which the model calls the tool; returns the result.
async fn fetch(fixture: &EngineFixture, task: &str) -> Result<String, String> {
    fixture.provider.enqueue_all([tool_reply(TOOL, json!({"text": task})), done_reply()]);
    let events = fixture.engine.run_turn(task, "Fetch it.").await;
    assert_eq!(assert_completed(&events), "Done.");
    let result = tool_results(&events).pop().expect("the tool was called");
    result.map(str::to_owned).map_err(str::to_owned)
}

#[tokio::test]
async fn a_pdf_of_a_server_reaches_the_model_as_it_is_or_as_its_text() {
    if !can_read_documents().await {
        return;
    }
    let file = pdf(&[&["Birnen"]]);
    let base64 = BASE64_STANDARD.encode(&file);
    // Its bytes tell what it is.
    let result = result_with(&[("file:///berichte/M%C3%A4rz.pdf", "application/octet-stream", &file)]);
    for model in ["anthropic", "openai", "responses", "gemini", "ollama"] {
        let (_server, fixture) = connected(model, result.clone()).await;
        let output = fetch(&fixture, "task").await.unwrap();
        let shown = "[The PDF `März.pdf`, 1 pages, is shown with this result.]";
        assert_eq!(output, format!("[resource file:///berichte/M%C3%A4rz.pdf]\n{shown}"), "{model}");
        let messages = fixture.last_messages();
        messages.assert_contains(&["is shown with this result"]);
        if model == "ollama" {
            messages.assert_contains(&["März.pdf", "[Page 1]\\nBirnen"]).assert_lacks(&[&base64]);
        } else {
            messages.assert_contains(&[&base64]).assert_lacks(&["[Page 1]"]);
        }
    }
}

#[tokio::test]
async fn twenty_pages_of_a_result_are_shown_and_the_text_of_the_rest() {
    if !can_read_documents().await {
        return;
    }
    let (first, second) = (pdf(&[&["Birnen"] as &[&str]; 15]), pdf(&[&["Quitten"] as &[&str]; 6]));
    let letter = docx(&paragraph("Mispeln"));
    let mut result = result_with(&[
        ("file:///first.pdf", PDF, &first),
        ("file:///second.pdf", PDF, &second),
        ("file:///letter.docx", DOCX, &letter),
    ]);
    // Also if the tool failed.
    result["isError"] = true.into();
    let (_server, fixture) = connected("anthropic", result).await;
    let output = fetch(&fixture, "task").await.unwrap_err();
    for words in [
        "[The PDF `first.pdf`, 15 pages, is shown with this result.]",
        "[resource file:///second.pdf]\n[The text of `second.pdf`, 6 pages:]\n[Page 1]\nQuitten",
        "[resource file:///letter.docx]\n[The text of `letter.docx`:]\nMispeln",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
    let messages = fixture.last_messages();
    messages.assert_contains(&[&BASE64_STANDARD.encode(&first)]).assert_contains(&["[Page 6]\\nQuitten"]);
    messages.assert_lacks(&[&BASE64_STANDARD.encode(&second)]);
    // Outside of turns there is no model that is shown anything.
    let answer = fixture.engine.call_tool(TOOL, json!({})).await;
    let message = answer.assert_flat_error(400, "TOOL_FAILED");
    assert!(message.contains("[The text of `first.pdf`, 15 pages:]\n[Page 1]\nBirnen"), "{message}");
}

#[tokio::test]
async fn a_document_that_cannot_be_read_is_described_with_the_reason() {
    if !can_read_documents().await {
        return;
    }
    let result = result_with(&[
        ("file:///broken.pdf", PDF, b"%PDF-1.4\nnothing"),
        ("file:///text.pdf", PDF, b"just a text"),
        ("file:///locked.pdf", PDF, &locked()),
    ]);
    let (server, fixture) = connected("anthropic", result).await;
    let output = fetch(&fixture, "task").await.unwrap();
    let lines: Vec<_> = output.lines().collect();
    for (line, name, reason) in [
        (0, "broken", "the document is broken: "),
        (1, "text", "this is not a PDF: its content has another format]"),
        (2, "locked", "the document is protected by a password"),
    ] {
        let begin = format!("[resource file:///{name}.pdf, application/pdf, ");
        let found = lines.get(line).copied().unwrap_or_default();
        let expected = format!("bytes, not shown: {reason}");
        assert!(found.starts_with(&begin) && found.contains(&expected), "{name}: {output}");
    }
    fixture
        .last_messages()
        .assert_contains(&["not shown: the document is broken"])
        .assert_lacks(&[PDF_BLOCK]);

    // Each of these may also be read in part.
    let hostile = pdfs();
    let blocks = hostile.iter().enumerate().map(|(number, (_, media, _))| {
        let resource =
            json!({"uri": format!("file:///{number}.pdf"), "mimeType": PDF, "blob": media["data"]});
        json!({"type": "resource", "resource": resource})
    });
    server.state().result = Some(json!({"content": blocks.collect::<Vec<_>>()}));
    let output = fetch(&fixture, "hostile").await.unwrap();
    for (number, (name, ..)) in hostile.iter().enumerate() {
        let begin = format!("[resource file:///{number}.pdf");
        assert!(output.contains(&begin), "{name}: {output}");
    }
    assert_eq!(fixture.engine.get("/health").await.body["status"], "ok");
}

#[tokio::test]
async fn a_document_that_is_too_large_is_not_shown_and_the_next_one_is() {
    if !can_read_documents().await {
        return;
    }
    let mut large = pdf(&[&["Birnen"]]);
    large.resize(7 << 20, b'\n');
    let (server, fixture) = connected("anthropic", result_with(&[("file:///a.pdf", PDF, &large)])).await;
    let reason = fetch(&fixture, "task").await.unwrap_err();
    assert!(reason.contains("archive") && reason.contains("8 MiB"), "{reason}");
    fixture.last_messages().assert_contains(&["8 MiB"]).assert_lacks(&[PDF_BLOCK]);
    server.state().result = Some(result_with(&[("file:///a.pdf", PDF, &pdf(&[&["Birnen"]]))]));
    fetch(&fixture, "next").await.unwrap();
    fixture.last_messages().assert_contains(&[PDF_BLOCK]);
}

#[tokio::test]
async fn a_turn_that_is_killed_goes_on_with_the_pdf_that_the_server_sent() {
    if !can_read_documents().await {
        return;
    }
    let file = pdf(&[&["Birnen"]]);
    let base64 = BASE64_STANDARD.encode(&file);
    let (server, fixture) = connected("anthropic", result_with(&[("file:///a.pdf", PDF, &file)])).await;
    let gate = Gate::new();
    let held = Reply::from_text("Pears.").hold(1, &gate);
    fixture.provider.enqueue_all([tool_reply(TOOL, json!({})), held]);
    fixture.engine.execute_in_background(direct_message("task", "Fetch it.")).await;
    wait_gate_reached(&gate).await;
    let sent = fixture.last_messages();
    server.state().result = Some(json!({"content": [{"type": "text", "text": "another document"}]}));
    fixture.provider.enqueue(Reply::from_text("Pears."));
    let fixture = fixture.kill_and_start().await;
    eventually("the turn is resumed and ends", async || {
        (fixture.engine.task_status("task").await == "idle").then_some(())
    })
    .await;
    assert_eq!(fixture.last_messages().0, sent.0);
    fixture.last_messages().assert_contains(&["a.pdf", &base64]);
    assert_eq!(server.state().calls, ["fetch"]);

    // Another brain gets it, too, and it ends with its task.
    let exported = fixture.engine.request(Method::GET, "/memory/export").send().await.unwrap();
    let exported = exported.text().await.unwrap();
    let other = EngineFixture::new([]).await;
    let import = other.engine.request(Method::POST, "/memory/import?mode=replace").body(exported);
    assert_eq!(import.send().await.unwrap().status(), 200);
    other.engine.run_turn("task", "And now?").await;
    other.last_messages().assert_contains(&["Fetch it.", &base64, "And now?"]);
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    assert_eq!(stored_media_count(&fixture.setup), 0);
}
