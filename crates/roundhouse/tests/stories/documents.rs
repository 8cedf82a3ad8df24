//! Documents reach the model as text, or as they are where it takes them; what is given by an address is
//! fetched once.

use std::fs;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use documents::samples::{docm, docx, paragraph, pdf, xlsx};
use mock_llm::{Fault, Gate, Refusal, Reply};
use reqwest::Method;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::sandbox::is_confined;
use crate::support::cassettes::turn_of;
use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::{PNG_BASE64, WIRES, wait_gate_reached};
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::assert_errored;
use crate::support::web_server::WebServer;
use crate::support::{EngineFixture, StandaloneEngine, eventually, is_installed};

pub(crate) const DOCX: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
pub(crate) const XLSX: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";

/// A document with its bytes.
pub(crate) fn document(media_type: &str, name: &str, bytes: &[u8]) -> Value {
    let data = BASE64_STANDARD.encode(bytes);
    json!({"type": "document", "media_type": media_type, "name": name, "data": data})
}

pub(crate) fn message_with(media: &[Value]) -> Value {
    with_fields(direct_message("task", "What is this?"), json!({"media": media}))
}

/// Whether documents of strangers are read on this machine; otherwise the story is skipped.
pub(crate) async fn can_read_documents() -> bool {
    // The engine ends when its folder is removed, which the setup owns.
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    is_confined(&engine).await
}

fn link(url: &str) -> Value {
    json!({"type": "document", "url": url})
}

/// An engine that may fetch from this server.
async fn fixture_for(server: &WebServer, replies: impl IntoIterator<Item = Reply>) -> EngineFixture {
    let address = server.address.to_string();
    let configure =
        |setup: StandaloneEngine| setup.allowing_all_tools().with_env("ENGINE_WEB_ALLOW", address);
    EngineFixture::with_setup("anthropic", replies, configure).await
}

pub(crate) fn stored_media_count(setup: &StandaloneEngine) -> i64 {
    let brain = Connection::open_with_flags(setup.brain(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    brain.query_row("SELECT count(*) FROM media", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn the_text_of_documents_reaches_the_model_with_their_names() {
    if !can_read_documents().await {
        return;
    }
    let sheet = "<row r=\"1\"><c r=\"A1\" t=\"s\"><v>0</v></c><c r=\"B1\"><v>2.5</v></c></row>";
    let macro_type = "application/vnd.ms-word.document.macroEnabled.12";
    let media = [
        document("text/csv", "preise.csv", "Obst;Preis\nBirne;2,50 €".as_bytes()),
        document("text/markdown", "lies.md", "# 梨について".as_bytes()),
        document("application/json", "a.json", br#"{"plum": "blue"}"#),
        document("text/html", "a.html", b"<h1>Quinces</h1><script>steal()</script>"),
        document(DOCX, "brief.docx", &docx(&paragraph("Äpfel &amp; Birnen"))),
        document(XLSX, "ernte.xlsx", &xlsx(sheet, &["Kirschen"], &[])),
        document(macro_type, "makro.docm", &docm(&paragraph("Harmless text"), b"AutoOpen")),
        // Browsers often do not know better.
        document("application/octet-stream", "ohne.docx", &docx(&paragraph("Medlars"))),
    ];
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, []).await;
        fixture.engine.run_turn_with(&message_with(&media)).await;
        let messages = fixture.last_messages();
        for text in [
            "What is this?",
            "preise.csv",
            "Birne;2,50 €",
            "lies.md",
            "# 梨について",
            "plum",
            "# Quinces",
            "brief.docx",
            "Äpfel & Birnen",
            "ernte.xlsx",
            "## Sheet Ernte 2026",
            "Kirschen\\t2.5",
            "makro.docm",
            "Harmless text",
            "Medlars",
        ] {
            messages.assert_contains(&[text]);
        }
        messages.assert_lacks(&["steal", "AutoOpen"]);
    }
}

#[tokio::test]
async fn a_pdf_reaches_a_model_that_takes_it_as_it_is() {
    if !can_read_documents().await {
        return;
    }
    let file = pdf(&[&["Birnen"], &["Ende"]]);
    for wire in WIRES {
        let fixture = EngineFixture::for_wire(wire, []).await;
        fixture.engine.run_turn_with(&message_with(&[document("application/pdf", "a.pdf", &file)])).await;
        let messages = fixture.last_messages();
        messages.assert_contains(&[&BASE64_STANDARD.encode(&file)]).assert_lacks(&["[Page 1]"]);
    }
}

#[tokio::test]
async fn documents_outlive_the_death_of_the_engine_and_end_with_their_task() {
    if !can_read_documents().await {
        return;
    }
    let fixture = EngineFixture::new([Reply::from_text("Pears.")]).await;
    let file = docx(&paragraph("Birnen"));
    fixture.engine.run_turn_with(&message_with(&[document(DOCX, "brief.docx", &file)])).await;
    let fixture = fixture.kill_and_start().await;
    fixture.engine.run_turn("task", "And now?").await;
    fixture.last_messages().assert_contains(&["What is this?", "Birnen", "Pears.", "And now?"]);
    // The document and its text.
    assert_eq!(stored_media_count(&fixture.setup), 2);
    let listed = fixture.engine.get("/tasks/task/media").await.assert_ok("media:array");
    let attached = &listed["media"][0];
    assert_eq!((&attached["media_type"], &attached["name"]), (&json!(DOCX), &json!("brief.docx")));
    let path = format!("/tasks/task/media/{}", attached["hash"].as_str().unwrap());
    let fetched = fixture.engine.request(Method::GET, &path).send().await.unwrap().bytes().await.unwrap();
    assert_eq!(fetched, file);
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    assert_eq!(stored_media_count(&fixture.setup), 0);
}

#[tokio::test]
async fn documents_are_forked_exported_and_imported_with_their_text() {
    if !can_read_documents().await {
        return;
    }
    let fixture = EngineFixture::new([]).await;
    let file = docx(&paragraph("Birnen"));
    fixture.engine.run_turn_with(&message_with(&[document(DOCX, "brief.docx", &file)])).await;
    let forked = fixture.engine.post("/tasks/task/fork", &json!({"task_id": "fork"})).await;
    assert!(forked.status < 300, "{}", forked.body);
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    let exported = fixture.engine.request(Method::GET, "/memory/export").send().await.unwrap();
    let exported = exported.text().await.unwrap();
    let other = EngineFixture::new([]).await;
    let import = other.engine.request(Method::POST, "/memory/import?mode=replace").body(exported);
    assert_eq!(import.send().await.unwrap().status(), 200);
    other.engine.run_turn("fork", "And now?").await;
    other.last_messages().assert_contains(&["Birnen", "brief.docx", "And now?"]);
}

#[tokio::test]
async fn what_is_given_by_its_address_is_fetched_once() {
    if !can_read_documents().await {
        return;
    }
    let server = WebServer::with_file(DOCX, &docx(&paragraph("Birnen"))).await;
    let fixture = fixture_for(&server, [Reply::from_text("Pears.")]).await;
    let url = format!("{}Mein%20Brief.docx", server.url());
    let message = with_fields(message_with(&[link(&url)]), json!({"client_request_id": "once"}));
    let events = fixture.engine.run_turn_with(&message).await;
    fixture.last_messages().assert_contains(&["Birnen", "Mein Brief.docx"]);
    // The same request joins its turn.
    let joined = fixture.engine.run_turn_with(&message).await;
    assert_eq!(joined[0].data["message_id"], events[0].data["message_id"]);
    let fixture = fixture.kill_and_start().await;
    let joined = fixture.engine.run_turn_with(&message).await;
    assert_eq!(joined[0].data["message_id"], events[0].data["message_id"]);
    fixture.engine.run_turn("task", "And now?").await;
    fixture.last_messages().assert_contains(&["Birnen", "And now?"]);
    assert_eq!(server.requests().len(), 1);
    // Another request of the same id is refused before anything is fetched.
    let other = with_fields(
        message_with(&[link(&format!("{}x.docx", server.url()))]),
        json!({"client_request_id": "once"}),
    );
    fixture.engine.post_execute(&other).await.assert_error(400, "INVALID_REQUEST");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn what_is_refused_anyway_is_refused_before_anything_is_fetched() {
    if !can_read_documents().await {
        return;
    }
    let server = WebServer::with_file(DOCX, &docx(&paragraph("Birnen"))).await;
    let fixture = fixture_for(&server, []).await;
    for (fields, status, code) in [
        (json!({"message": " "}), 400, "INVALID_REQUEST"),
        (json!({"on_busy": "steer"}), 400, "INVALID_REQUEST"),
        (json!({"retry_message_id": "x"}), 400, "INVALID_REQUEST"),
        (json!({"model": "none-of-that-name"}), 400, "MODEL_NOT_PERMITTED"),
    ] {
        let message = with_fields(message_with(&[link(&server.url())]), fields);
        fixture.engine.post_execute(&message).await.assert_error(status, code);
    }
    assert_eq!(server.requests(), [""; 0]);
}

#[tokio::test]
async fn a_turn_that_is_killed_resumes_with_what_was_fetched() {
    let server = WebServer::with_file("text/csv; charset=iso-8859-1", b"\xc4pfel;2").await;
    let gate = Gate::new();
    let fixture = fixture_for(&server, [Reply::from_text("Apples.").hold(1, &gate)]).await;
    let url = format!("{}a.csv", server.url());
    fixture.engine.execute_in_background(message_with(&[link(&url)])).await;
    wait_gate_reached(&gate).await;
    fixture.provider.enqueue(Reply::from_text("Apples."));
    let fixture = fixture.kill_and_start().await;
    eventually("the turn is resumed and ends", async || {
        (fixture.engine.task_status("task").await == "idle").then_some(())
    })
    .await;
    fixture.last_messages().assert_contains(&["What is this?", "Äpfel;2"]);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_queued_message_keeps_what_was_fetched_for_it() {
    if !can_read_documents().await {
        return;
    }
    let server = WebServer::with_file(DOCX, &docx(&paragraph("Birnen"))).await;
    let gate = Gate::new();
    let fixture = fixture_for(&server, [Reply::from_text("First.").hold(1, &gate)]).await;
    fixture.engine.execute_in_background(direct_message("task", "First.")).await;
    wait_gate_reached(&gate).await;
    let queued =
        with_fields(message_with(&[link(&format!("{}a.docx", server.url()))]), json!({"on_busy": "queue"}));
    let turn = fixture.engine.execute_in_background(queued).await["turn_id"].clone();
    assert_eq!(server.requests().len(), 1);
    fixture.provider.enqueue_all(["First.", "Second."].map(Reply::from_text));
    let fixture = fixture.kill_and_start().await;
    fixture.engine.wait_turn_state("task", &turn, "completed").await;
    fixture.last_messages().assert_contains(&["What is this?", "Birnen", "a.docx"]);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn an_address_that_leads_to_nothing_is_refused_before_the_turn() {
    let missing =
        WebServer::new("HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno").await;
    let fixture = fixture_for(&missing, []).await;
    let inner = WebServer::with_text("a secret of the machine").await;
    for (url, words) in [
        (missing.url(), "status 404"),
        (inner.url(), "not on the public internet"),
        ("http://169.254.169.254/latest/meta-data/".into(), "not on the public internet"),
        ("https://user:word@example.org/a.pdf".into(), "user name"),
    ] {
        let answer = fixture.engine.post_execute(&message_with(&[link(&url)])).await;
        let message = answer.assert_error(400, "INVALID_REQUEST");
        assert!(
            message.contains("`media[0]`: `url` could not be fetched") && message.contains(words),
            "{message}"
        );
    }
    assert_eq!(inner.requests(), [""; 0]);
    let image = json!({"type": "image", "url": inner.url()});
    fixture.engine.post_execute(&message_with(&[image])).await.assert_error(400, "INVALID_REQUEST");
    let many = vec![link(&missing.url()); 11];
    let answer = fixture.engine.post_execute(&message_with(&many)).await;
    assert!(answer.assert_error(400, "INVALID_REQUEST").contains("at most 10"));
    assert_eq!(fixture.engine.tasks("").await, (Vec::new(), 0));
    assert_eq!(fixture.model_calls(), 0);
}

#[tokio::test]
async fn an_answer_to_a_question_may_have_documents() {
    if !can_read_documents().await {
        return;
    }
    let fixture =
        EngineFixture::new([tool_reply("ask_user", json!({"question": "Which?"})), done_reply()]).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Ask me.")).await;
    let blocks = [document(DOCX, "brief.docx", &docx(&paragraph("Birnen")))];
    let answer = json!({"task_id": "task", "answer": "This.", "content_blocks": blocks});
    fixture.engine.respond_with(&answer).await.assert_ok("status:text request_id:hitl");
    stream.collect().await;
    fixture.last_messages().assert_contains(&["This.", "Birnen"]);
    // The author of a document is not the user who sent it.
    let brain = Connection::open_with_flags(fixture.setup.brain(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let source = eventually("the turn is remembered", async || {
        brain.query_row("SELECT source FROM episodes", [], |row| row.get::<_, String>(0)).ok()
    });
    assert_eq!(source.await, "tool");
}

#[tokio::test]
async fn web_fetch_reads_documents() {
    if !can_read_documents().await {
        return;
    }
    let file = pdf(&[&["Birnen sind gr\u{fc}n."], &["Ende"]]);
    let server = WebServer::with_file("application/pdf", &file).await;
    let fixture =
        fixture_for(&server, [tool_reply("web_fetch", json!({"url": server.url()})), done_reply()]).await;
    let events = fixture.engine.run_turn("task", "Read it.").await;
    let output = tool_results(&events)[0].unwrap();
    for words in ["data from the web", "PDF of 2 pages", "[Page 1]\nBirnen sind grün.", "[Page 2]\nEnde"] {
        assert!(output.contains(words), "{words}: {output}");
    }
}

#[tokio::test]
async fn read_file_shows_pictures_and_documents_of_the_workspace() {
    if !can_read_documents().await {
        return;
    }
    let png = BASE64_STANDARD.decode(PNG_BASE64).unwrap();
    let file = pdf(&[&["Birnen"]]);
    let long = pdf(&vec![&["Quitten"] as &[&str]; 21]);
    for wire in WIRES {
        let read = |path: &str| tool_reply("read_file", json!({"path": path}));
        let replies = [read("pear.png"), read("a.pdf"), read("long.pdf"), read("brief.docx"), done_reply()];
        let fixture = EngineFixture::for_wire(wire, replies).await;
        let workspace = fixture.setup.workspace();
        fs::create_dir_all(&workspace).unwrap();
        fs::write(workspace.join("pear.png"), &png).unwrap();
        fs::write(workspace.join("a.pdf"), &file).unwrap();
        fs::write(workspace.join("long.pdf"), &long).unwrap();
        fs::write(workspace.join("brief.docx"), docx(&paragraph("Medlars"))).unwrap();
        let events = fixture.engine.run_turn("task", "Read them.").await;
        let results = tool_results(&events);
        assert!(
            results[0].unwrap().contains("pear.png") && results[1].unwrap().contains("1 pages"),
            "{results:?}"
        );
        assert!(results[2].unwrap().contains("[Page 21]\nQuitten"), "{results:?}");
        let pdf_base64 = BASE64_STANDARD.encode(&file);
        let shown = [PNG_BASE64, &pdf_base64, "Medlars"];
        for words in shown {
            fixture.last_messages().assert_contains(&[words]);
        }
        fixture.last_messages().assert_lacks(&[&BASE64_STANDARD.encode(&long)[..100]]);
        // They are stored with the results.
        fs::remove_dir_all(&workspace).unwrap();
        let fixture = fixture.kill_and_start().await;
        fixture.engine.run_turn("task", "And now?").await;
        for words in shown {
            fixture.last_messages().assert_contains(&[words]);
        }
        fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
        assert_eq!(stored_media_count(&fixture.setup), 0);
    }
}

#[tokio::test]
async fn a_cassette_has_the_text_that_a_document_was_read_as() {
    if !can_read_documents().await {
        return;
    }
    let models = ["anthropic", "ollama"];
    let fixture = EngineFixture::with_models(&models, [done_reply()], |setup| setup).await;
    let media = [
        document(DOCX, "brief.docx", &docx(&paragraph("Äpfel"))),
        document("application/pdf", "plan.pdf", &pdf(&[&["Pears"]])),
    ];
    let events = fixture.engine.run_turn_with(&message_with(&media)).await;
    let cassette = fixture.cassette("task", turn_of(&events)).await;
    for (model, sees_the_pdf) in [("anthropic", true), ("ollama", false)] {
        fixture.provider.enqueue(done_reply());
        fixture.replay(&cassette, json!({"model": model})).await;
        let messages = fixture.last_messages();
        for text in ["brief.docx", "Äpfel", "plan.pdf"] {
            messages.assert_contains(&[text]);
        }
        let sent = &messages.0;
        assert_eq!((sent.contains("Pears"), sent.contains("application/pdf")), (!sees_the_pdf, sees_the_pdf));
    }
}

/// The provider refuses a request, and says why in words that no code knows.
fn refused() -> Reply {
    Reply::from_fault(Fault::refuse(Refusal::Other {
        status: 400,
        error_type: "invalid_request_error".into(),
        message: "could not process a file".into(),
        headers: std::collections::BTreeMap::new(),
    }))
}

#[tokio::test]
async fn files_that_the_provider_refuses_do_not_break_the_conversation() {
    if !can_read_documents().await {
        return;
    }
    for wire in WIRES {
        let read = |path: &str| tool_reply("read_file", json!({"path": path}));
        let replies = [read("pear.png"), read("a.pdf"), refused(), done_reply()];
        let fixture = EngineFixture::for_wire(wire, replies).await;
        let workspace = fixture.setup.workspace();
        fs::create_dir_all(&workspace).unwrap();
        fs::write(workspace.join("pear.png"), BASE64_STANDARD.decode(PNG_BASE64).unwrap()).unwrap();
        fs::write(workspace.join("a.pdf"), pdf(&[&["Birnen"]])).unwrap();
        fixture.engine.run_turn("task", "Read them.").await;
        let assert_left_out = |fixture: &EngineFixture| {
            let messages = fixture.last_messages();
            let note = "[The image pear.png is left out because the model's provider refused it.]";
            messages.assert_contains(&[note]).assert_contains(&["Birnen"]);
            messages.assert_lacks(&[PNG_BASE64, "application/pdf"]);
        };
        assert_left_out(&fixture);
        let fixture = fixture.kill_and_start().await;
        fixture.engine.run_turn("task", "And now?").await;
        assert_left_out(&fixture);
        // What is refused for another reason keeps its files.
        let picture = json!({"type": "image", "media_type": "image/png", "data": PNG_BASE64});
        fixture.provider.enqueue_all([refused(), refused()]);
        let stream = fixture.engine.execute_with(&message_with(&[picture])).await;
        assert_errored(&stream.collect().await);
        fixture.engine.run_turn("task", "And this?").await;
        fixture.last_messages().assert_contains(&[PNG_BASE64]).assert_contains(&["pear.png is left out"]);
    }
}

#[tokio::test]
async fn a_call_outside_of_turns_returns_the_text_of_a_document() {
    if !can_read_documents().await {
        return;
    }
    let fixture = EngineFixture::new([]).await;
    let workspace = fixture.setup.workspace();
    fs::create_dir_all(&workspace).unwrap();
    fs::write(workspace.join("pear.png"), BASE64_STANDARD.decode(PNG_BASE64).unwrap()).unwrap();
    fs::write(workspace.join("a.pdf"), pdf(&[&["Birnen"]])).unwrap();
    for (path, expected) in [
        ("a.pdf", "[The text of `a.pdf`, 1 pages:]\n[Page 1]\nBirnen"),
        ("pear.png", "[The picture `pear.png`, image/png, 70 bytes, is not shown here.]"),
    ] {
        let call = json!({"method": "tool.read_file", "params": {"path": path}});
        let answer = fixture.engine.post("/rpc", &call).await.assert_ok("result:object");
        assert_eq!(answer["result"]["output"], expected);
    }
}

#[tokio::test]
async fn plain_texts_are_decoded_checked_and_bounded() {
    let server = WebServer::with_file("text/plain; charset=iso-8859-1", b"\xc4pfel").await;
    let fixture = fixture_for(&server, []).await;
    let utf_16: Vec<u8> = "\u{feff}梨".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let media = [
        link(&server.url()),
        document("text/plain", "utf-16.txt", &utf_16),
        document("text/plain", "log.txt", "é".repeat(200_001).as_bytes()),
    ];
    fixture.engine.run_turn_with(&message_with(&media)).await;
    fixture.last_messages().assert_contains(&["Äpfel", "梨", "only its first 200000 characters are here."]);
    let binary = document("text/plain", "a.txt", b"a\0b");
    let refused = fixture.engine.post_execute(&message_with(&[binary])).await;
    let message = refused.assert_error(400, "INVALID_REQUEST");
    assert!(message.contains("`media[0]`: its media type says that it is text"), "{message}");
}

#[tokio::test]
async fn a_queued_link_with_a_malformed_type_keeps_its_message() {
    let server = WebServer::with_file("text/plain charset=utf-8", "Äpfel".as_bytes()).await;
    let gate = Gate::new();
    let fixture = fixture_for(&server, [Reply::from_text("First.").hold(1, &gate)]).await;
    fixture.engine.execute_in_background(direct_message("task", "First.")).await;
    wait_gate_reached(&gate).await;
    let queued =
        with_fields(message_with(&[link(&format!("{}a.txt", server.url()))]), json!({"on_busy": "queue"}));
    let turn = fixture.engine.execute_in_background(queued).await["turn_id"].clone();
    fixture.provider.enqueue(Reply::from_text("Second."));
    gate.release();
    fixture.engine.wait_turn_state("task", &turn, "completed").await;
    fixture.last_messages().assert_contains(&["What is this?", "Äpfel"]);
}

#[tokio::test]
async fn where_programs_are_not_confined_none_reads_documents() {
    if !is_installed("python3") {
        return;
    }
    let fixture = EngineFixture::with_setup("anthropic", [], StandaloneEngine::without_landlock).await;
    let refused = fixture.engine.post_execute(&message_with(&[document(DOCX, "a.docx", &docx(""))])).await;
    let message = refused.assert_error(400, "INVALID_REQUEST");
    assert!(message.contains("`media[0]`: this engine's machine cannot confine programs"), "{message}");
    let file = pdf(&[&["Birnen"]]);
    fixture.engine.run_turn_with(&message_with(&[document("application/pdf", "a.pdf", &file)])).await;
    fixture.last_messages().assert_contains(&[&BASE64_STANDARD.encode(&file)]);
}
