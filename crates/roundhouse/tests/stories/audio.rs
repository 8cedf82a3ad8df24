//! Recordings reach the models that take them, are what they say they are, and are kept like other attachments.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use documents::samples::wav;
use mock_llm::{Gate, Reply, Wire};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};

use crate::documents::message_with;
use crate::support::cassettes::turn_of;
use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::wait_gate_reached;
use crate::support::tool_programs::{done_reply, tool_reply};
use crate::support::web_server::WebServer;
use crate::support::{EngineFixture, StandaloneEngine, eventually};

/// Models that take audio, of both wires that have it.
const HEARING: [&str; 2] = ["openai-audio", "gemini"];
/// Models that take none: of each wire but Gemini, all of whose models take it, and of a compatible server.
const DEAF: [&str; Wire::COUNT] = ["anthropic", "openai", "responses", "ollama", "compatible"];
const NAME: &str = "録音 – Besprechung.wav";

fn audio(media_type: &str, bytes: &[u8]) -> Value {
    let data = BASE64_STANDARD.encode(bytes);
    json!({"type": "audio", "media_type": media_type, "name": NAME, "data": data})
}

fn recording() -> Value {
    audio("audio/wav", &wav(8_000, 1))
}

fn recording_base64() -> String {
    BASE64_STANDARD.encode(wav(8_000, 1))
}

fn link(url: &str) -> Value {
    json!({"type": "audio", "url": url})
}

/// The bytes of an MP3: a frame of 128 kbit/s at 44.1 kHz.
fn mp3() -> Vec<u8> {
    let mut frame = b"\xff\xfb\x90\x00".to_vec();
    frame.resize(417, 0);
    frame
}

async fn hearing(model: &str, replies: impl IntoIterator<Item = Reply>) -> EngineFixture {
    EngineFixture::with_models(&[model], replies, |setup| setup).await
}

/// A model of Gemini, and an engine that may fetch from this server.
async fn fixture_for(server: &WebServer, replies: impl IntoIterator<Item = Reply>) -> EngineFixture {
    let address = server.address.to_string();
    let configure = |setup: StandaloneEngine| setup.with_env("ENGINE_WEB_ALLOW", address);
    EngineFixture::with_models(&["gemini"], replies, configure).await
}

/// The part that a model is sent of a recording.
fn part(model: &str, media_type: &str, bytes: &[u8]) -> String {
    let data = BASE64_STANDARD.encode(bytes);
    let part = match (model, media_type) {
        ("gemini", "audio/mpeg") => json!({"inlineData": {"data": data, "mimeType": "audio/mp3"}}),
        ("gemini", _) => json!({"inlineData": {"data": data, "mimeType": media_type}}),
        (_, "audio/mpeg") => json!({"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}}),
        _ => json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}),
    };
    part.to_string()
}

fn stored_media_count(setup: &StandaloneEngine) -> i64 {
    let brain = Connection::open_with_flags(setup.brain(), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    brain.query_row("SELECT count(*) FROM media", [], |row| row.get(0)).unwrap()
}

async fn assert_no_turn(fixture: &EngineFixture) {
    assert_eq!(fixture.model_calls(), 0);
    assert_eq!(fixture.engine.tasks("").await, (Vec::new(), 0));
    assert_eq!(stored_media_count(&fixture.setup), 0);
}

/// The refusal of a message with this attachment.
async fn refusal(fixture: &EngineFixture, media: Value) -> String {
    let answer = fixture.engine.post_execute(&message_with(&[media])).await;
    answer.assert_error(400, "INVALID_REQUEST").to_owned()
}

#[tokio::test]
async fn a_recording_reaches_a_model_that_takes_it_in_its_form() {
    for model in HEARING {
        let fixture = hearing(model, []).await;
        let source =
            json!({"type": "base64", "media_type": "audio/mp3", "data": BASE64_STANDARD.encode(mp3())});
        let media = [audio("audio/x-wav", &wav(8_000, 1)), json!({"type": "audio", "source": source})];
        fixture.engine.run_turn_with(&message_with(&media)).await;
        let (first, second) = (part(model, "audio/wav", &wav(8_000, 1)), part(model, "audio/mpeg", &mp3()));
        fixture.last_messages().assert_contains(&["What is this?", &first, &second]);
    }
}

#[tokio::test]
async fn a_recording_is_refused_if_the_model_takes_none() {
    let fixture = EngineFixture::with_models(&DEAF, [], |setup| setup).await;
    for model in DEAF {
        let message = with_fields(message_with(&[recording()]), json!({"model": model}));
        let answer = fixture.engine.post_execute(&message).await;
        let message = answer.assert_error(400, "INVALID_REQUEST");
        assert_eq!(message, "`media[0]`: the model accepts no audio", "{model}");
    }
    assert_no_turn(&fixture).await;
    // OpenAI's models take two formats only.
    let fixture = hearing("openai-audio", []).await;
    let refused = refusal(&fixture, audio("audio/flac", b"fLaC\0\0\0\x22")).await;
    assert_eq!(
        refused,
        "`media[0]`: the model accepts audio of the types audio/wav, audio/mpeg, not audio/flac"
    );
    assert_no_turn(&fixture).await;
}

#[tokio::test]
async fn a_model_that_takes_no_audio_is_told_of_the_recording_before() {
    for other in DEAF {
        let fixture = EngineFixture::with_models(&["gemini", other], [], |setup| setup).await;
        fixture.engine.run_turn_with(&message_with(&[recording()])).await;
        let message = with_fields(direct_message("task", "And now?"), json!({"model": other}));
        fixture.engine.run_turn_with(&message).await;
        let request = fixture.provider.requests().pop().unwrap().body.to_string();
        let note = format!("[The audio {NAME} is of a type that this model does not accept.]");
        assert!(request.contains(&note) && !request.contains(&recording_base64()), "{other}: {request}");
        // It is still there for the one that takes it.
        fixture.engine.run_turn("task", "And you?").await;
        fixture.last_messages().assert_contains(&[&recording_base64(), "And you?"]);
    }
}

#[tokio::test]
async fn what_is_not_what_it_says_is_refused() {
    let fixture = hearing("gemini", []).await;
    let m4a = b"\0\0\0\x20ftypM4A \0\0\0\0";
    for (media, words) in [
        (audio("audio/mpeg", &wav(8_000, 1)), "says that it is audio/mpeg, but it is audio/wav"),
        (audio("audio/wav", &mp3()), "says that it is audio/wav, but it is audio/mpeg"),
        (audio("audio/mp4", m4a), "says that it is audio/mp4, but it is neither WAV, MP3"),
        (audio("audio/ogg", b"<html>"), "but it is neither WAV, MP3"),
        (audio("audio/wav", b"RIFF\xff\xff\xff\xffWEBP"), "but it is neither WAV, MP3"),
        (audio("video/ogg", b"OggS"), "`media_type` of audio must begin with `audio/`"),
        (audio("audio/wav", b""), "must not be empty"),
        (json!({"type": "audio", "media_type": "audio/wav", "data": "%"}), "must be base64"),
        (json!({"type": "audio", "media_type": "audio/wav"}), "must have `media_type` and `data`"),
    ] {
        let refused = refusal(&fixture, media).await;
        assert!(refused.contains("media[0]") && refused.contains(words), "{words}: {refused}");
    }
    let mut large = wav(8_000, 1);
    large.resize((20 << 20) + 1, 0);
    let refused = refusal(&fixture, audio("audio/wav", &large)).await;
    assert_eq!(
        refused,
        "`media[0]`: the audio is larger than 20 MiB; send a part of it, or a compressed format"
    );
    assert_no_turn(&fixture).await;
}

#[tokio::test]
async fn hostile_headers_do_no_harm() {
    let honest = wav(8_000, 1);
    let with_bytes = |at: usize, bytes: &[u8]| {
        let mut changed = honest.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let fixture = hearing("gemini", []).await;
    for (number, bytes) in [
        // The file, its format and its samples claim 4 GiB.
        with_bytes(4, &[0xff; 4]),
        with_bytes(16, &[0xff; 4]),
        with_bytes(40, &[0xff; 4]),
        // The rate of bytes is zero, or one.
        with_bytes(28, &[0; 4]),
        with_bytes(28, &[1, 0, 0, 0]),
        honest[..12].to_vec(),
        honest[..30].to_vec(),
        // Many empty chunks.
        [b"RIFF\0\0\0\0WAVE".as_slice(), &b"JUNK\0\0\0\0".repeat(100_000)].concat(),
    ]
    .into_iter()
    .enumerate()
    {
        let task = format!("task-{number}");
        let media = json!({"media": [audio("audio/wav", &bytes)], "task_id": task});
        fixture.engine.run_turn_with(&with_fields(message_with(&[]), media)).await;
        // A recording that claimed to be longer than the window would have been compacted away.
        fixture.last_messages().assert_contains(&["What is this?", &BASE64_STANDARD.encode(&bytes)]);
    }
    assert_eq!(fixture.model_calls(), 8);
}

#[tokio::test]
async fn a_recording_is_fetched_once_and_outlives_the_death_of_the_engine() {
    // Servers often do not know the types of audio.
    let server = WebServer::with_file("application/octet-stream", &mp3()).await;
    let gate = Gate::new();
    let fixture = fixture_for(&server, [Reply::from_text("A tone.").hold(1, &gate)]).await;
    let message = message_with(&[link(&format!("{}Gespr%C3%A4ch", server.url()))]);
    fixture.engine.execute_in_background(message).await;
    wait_gate_reached(&gate).await;
    fixture.provider.enqueue(Reply::from_text("A tone."));
    let fixture = fixture.kill_and_start().await;
    eventually("the turn is resumed and ends", async || {
        (fixture.engine.task_status("task").await == "idle").then_some(())
    })
    .await;
    fixture.last_messages().assert_contains(&["What is this?", &part("gemini", "audio/mpeg", &mp3())]);
    assert_eq!(server.requests().len(), 1);
    let listed = fixture.engine.get("/tasks/task/media").await.assert_ok("media:array");
    let attached = &listed["media"][0];
    assert_eq!(
        (&attached["kind"], &attached["media_type"], &attached["name"]),
        (&json!("audio"), &json!("audio/mpeg"), &json!("Gespräch"))
    );
}

#[tokio::test]
async fn an_address_that_leads_to_something_else_is_refused_before_the_turn() {
    let page = WebServer::with_text("no sound").await;
    let fixture = fixture_for(&page, []).await;
    let refused = refusal(&fixture, link(&page.url())).await;
    assert!(refused.contains("the server says that it is text/plain: give it as `document`"), "{refused}");
    let sound = WebServer::with_file("audio/wav", &wav(8_000, 1)).await;
    let fixture = fixture_for(&sound, []).await;
    for (media, words) in [
        (with_fields(link(&sound.url()), json!({"media_type": "audio/mpeg"})), "but it is audio/wav"),
        (with_fields(link(&sound.url()), json!({"type": "document"})), "give it as `audio`"),
        (with_fields(link(&sound.url()), json!({"media_type": "text/plain"})), "must begin with `audio/`"),
    ] {
        let refused = refusal(&fixture, media).await;
        assert!(refused.contains(words), "{words}: {refused}");
    }
    assert_no_turn(&fixture).await;
    fixture.engine.run_turn_with(&message_with(&[link(&sound.url())])).await;
    fixture.last_messages().assert_contains(&[&part("gemini", "audio/wav", &wav(8_000, 1))]);
}

#[tokio::test]
async fn a_queued_recording_is_sent_after_a_kill() {
    let gate = Gate::new();
    let fixture = hearing("gemini", [Reply::from_text("First.").hold(1, &gate)]).await;
    fixture.engine.execute_in_background(direct_message("task", "First.")).await;
    wait_gate_reached(&gate).await;
    let queued = with_fields(message_with(&[recording()]), json!({"on_busy": "queue"}));
    let turn = fixture.engine.execute_in_background(queued).await["turn_id"].clone();
    fixture.provider.enqueue_all(["First.", "Second."].map(Reply::from_text));
    let fixture = fixture.kill_and_start().await;
    fixture.engine.wait_turn_state("task", &turn, "completed").await;
    fixture.last_messages().assert_contains(&["What is this?", &recording_base64()]);
}

#[tokio::test]
async fn recordings_are_listed_forked_exported_imported_and_erased() {
    let fixture = hearing("gemini", []).await;
    fixture.engine.run_turn_with(&message_with(&[recording()])).await;
    let page = fixture.engine.get("/tasks/task/messages").await;
    let block = &page.body["messages"][0]["content"][1];
    assert_eq!(
        (&block["type"], &block["media_type"], &block["name"]),
        (&json!("audio"), &json!("audio/wav"), &json!(NAME))
    );
    let listed = fixture.engine.messages("task").await;
    let content = json!({"type": "audio", "media_type": "audio/wav", "name": NAME});
    assert_eq!(listed[0]["content"][1], content);
    let path = format!("/tasks/task/media/{}", block["hash"].as_str().unwrap());
    let fetched = fixture.engine.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(fetched.headers()[CONTENT_TYPE], "audio/wav");
    assert_eq!(fetched.bytes().await.unwrap(), wav(8_000, 1));

    let forked = fixture.engine.post("/tasks/task/fork", &json!({"task_id": "fork"})).await;
    assert!(forked.status < 300, "{}", forked.body);
    fixture.engine.delete("/tasks/task").await.assert_ok("status:text");
    let exported = fixture.engine.request(Method::GET, "/memory/export").send().await.unwrap();
    let exported = exported.text().await.unwrap();
    // Signatures of the provider before mean nothing to this one.
    let other = hearing("openai-audio", []).await;
    let import = other.engine.request(Method::POST, "/memory/import?mode=replace").body(exported.clone());
    assert_eq!(import.send().await.unwrap().status(), 200);
    other.engine.run_turn("fork", "And now?").await;
    other.last_messages().assert_contains(&[&part("openai-audio", "audio/wav", &wav(8_000, 1)), "And now?"]);
    for fixture in [&fixture, &other] {
        assert_eq!(stored_media_count(&fixture.setup), 1);
        fixture.engine.delete("/tasks/fork").await.assert_ok("status:text");
        assert_eq!(stored_media_count(&fixture.setup), 0);
    }
}

#[tokio::test]
async fn an_answer_to_a_question_may_be_spoken() {
    for model in HEARING {
        let replies = [tool_reply("ask_user", json!({"question": "Which?"})), done_reply()];
        let fixture = hearing(model, replies).await;
        // OpenAI's models that take audio refuse requests without.
        let message = message_with(&[audio("audio/mpeg", &mp3())]);
        let (stream, _) = fixture.engine.run_until_hitl_request(&message).await;
        let lie =
            json!({"task_id": "task", "answer": "This.", "content_blocks": [audio("audio/wav", &mp3())]});
        let refused = fixture.engine.respond_with(&lie).await;
        let message = refused.assert_error(400, "INVALID_REQUEST");
        assert!(message.starts_with("`content_blocks[0]`: its media type says"), "{message}");
        let answer = json!({"task_id": "task", "answer": "This.", "content_blocks": [recording()]});
        fixture.engine.respond_with(&answer).await.assert_ok("status:text request_id:hitl");
        stream.collect().await;
        let expected = part(model, "audio/wav", &wav(8_000, 1));
        fixture.last_messages().assert_contains(&["This.", &expected]);
    }
}

#[tokio::test]
async fn a_recording_that_the_provider_refuses_does_not_break_the_conversation() {
    // The operator says that the model takes audio, but it does not.
    let fixture = hearing("compatible-audio", []).await;
    fixture.engine.run_turn_with(&message_with(&[recording()])).await;
    let note = format!("[The audio {NAME} is left out because the model's provider refused it.]");
    fixture.last_messages().assert_contains(&["What is this?", &note]).assert_lacks(&[&recording_base64()]);
    assert_eq!(fixture.provider.take_refusals().len(), 1);
    let fixture = fixture.kill_and_start().await;
    fixture.engine.run_turn("task", "And now?").await;
    fixture.last_messages().assert_contains(&[&note, "And now?"]).assert_lacks(&[&recording_base64()]);
}

#[tokio::test]
async fn a_cassette_has_the_recording() {
    let models = ["gemini", "openai-audio", "anthropic"];
    let fixture = EngineFixture::with_models(&models, [done_reply()], |setup| setup).await;
    let events = fixture.engine.run_turn_with(&message_with(&[recording()])).await;
    let cassette = fixture.cassette("task", turn_of(&events)).await;
    for (model, is_sent) in [("gemini", true), ("openai-audio", true), ("anthropic", false)] {
        fixture.provider.enqueue(done_reply());
        fixture.replay(&cassette, json!({"model": model})).await;
        let messages = fixture.last_messages();
        let note = format!("[The audio {NAME} is of a type that this model does not accept.]");
        let seen = (messages.0.contains(&recording_base64()), messages.0.contains(&note));
        assert_eq!(seen, (is_sent, !is_sent), "{model}");
    }
}
