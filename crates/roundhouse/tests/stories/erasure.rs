//! Deleted data is erased: no byte of it remains in any file of the engine, even if the engine is killed
//! meanwhile.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use mock_llm::Reply;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, with_fields};
use crate::support::engine_fixture::ReplyExt as _;
use crate::support::http::send;
use crate::support::synthetic_export::SyntheticExport;
use crate::support::tool_programs::shell_reply;
use crate::support::turn::assert_completed;
use crate::support::{EngineFixture, eventually};

/// Secrets, each for a different kind of data. The full-text index strips prefixes that words share, so each
/// secret is searched for by its end.
const SECRETS: [&str; 13] = [
    "ambermessage7q41x",
    "birchanswer8w52y",
    "cedarmedia9e63z",
    "dahliasmall1r74k",
    "elderspilled2t85j",
    "fernworking3y96h",
    "gingersaved4u17g",
    "hazelcorrected5i28f",
    "ivyreported6o39d",
    "junipernoted7p40s",
    "kelpreplaced8l29r",
    "lotustitled9z18w",
    "maplelabelled1n47v",
];

/// The length of the part of a secret that is searched for.
const TAIL_LEN: usize = 7;

fn tail(secret: &str) -> &str {
    &secret[secret.len() - TAIL_LEN..]
}

/// All files in a folder and its subfolders.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|entry| if entry.is_dir() && !entry.is_symlink() { files(&entry) } else { vec![entry] })
        .collect()
}

/// The files that contain a secret.
fn files_with_secret(fixture: &EngineFixture, secret: &str) -> Vec<PathBuf> {
    let contains_secret = |file: &PathBuf| {
        // The file may be gone by now.
        let bytes = fs::read(file).unwrap_or_default();
        String::from_utf8_lossy(&bytes).to_ascii_lowercase().contains(tail(secret))
    };
    files(fixture.setup.test_env.path()).into_iter().filter(contains_secret).collect()
}

/// The secrets that are still in a file, with these files.
fn remaining_secrets(fixture: &EngineFixture) -> Vec<(&'static str, Vec<PathBuf>)> {
    let found = SECRETS.into_iter().map(|secret| (secret, files_with_secret(fixture, secret)));
    found.filter(|(_, files)| !files.is_empty()).collect()
}

#[track_caller]
fn assert_erased(fixture: &EngineFixture) {
    assert_eq!(remaining_secrets(fixture), []);
}

/// Stores all secrets by running a task.
async fn tell_secrets(fixture: &EngineFixture, task: &str) {
    let [asked, answered, attached, small, spilled, working, saved, corrected, reported, noted, replaced, ..] =
        SECRETS;
    let [.., titled, labelled] = SECRETS;
    let knowledge = json!({"content": format!("The harbour is called {replaced}.")});
    let wrong = fixture.engine.post("/memory/knowledge", &knowledge).await;
    assert_eq!(wrong.status, 200);
    let path = format!("/memory/facts/{}", wrong.body["id"].as_str().unwrap());
    let right = json!({"content": format!("The harbour is called {noted}.")});
    assert_eq!(send(fixture.engine.request(Method::PUT, &path).json(&right)).await.status, 200);
    let known = Reply::new()
        .memory_set("plan", working)
        .tool_use("memory_save", json!({"content": format!("The user likes {saved}.")}));
    let runs = shell_reply(&format!("echo {small}")).tool_use(
        "shell",
        json!({"command": format!("head -c 100000 /dev/zero | tr '\\0' x; echo; echo {spilled}; seq 20000")}),
    );
    fixture.provider.enqueue_all([known, runs, Reply::from_text(format!("It is {answered}."))]);
    let media = json!([{
        "type": "document", "media_type": "text/plain", "name": "a.txt", "data": BASE64.encode(format!("Of {attached}.")),
    }]);
    let body = with_fields(
        direct_message(task, &format!("What of the harbour and {asked}?")),
        json!({"media": media}),
    );
    assert_completed(&fixture.engine.run_turn_with(&body).await);
    for number in 0..5 {
        fixture.engine.run_turn(task, &format!("And the {number}th?")).await;
    }
    for feedback in [
        json!({"task_id": task, "feedback_type": "correction", "correction_text": format!("It is {corrected}.")}),
        json!({"task_id": task, "feedback_type": "error_report", "comment": format!("It said {reported}.")}),
    ] {
        fixture.engine.post("/feedback", &feedback).await.assert_ok("status:text feedback_id:text");
    }
    let shown = json!({"title": titled, "metadata": {"label": labelled}});
    let path = format!("/tasks/{task}/conversation");
    assert_eq!(send(fixture.engine.request(Method::PATCH, &path).json(&shown)).await.status, 200);
    // A copy of the brain, as an orchestrator makes before it moves the engine to another version.
    let brain = Path::new(&fixture.setup.variables["SQLITE_DB_PATH"]);
    let copy = brain.with_file_name("brain.before");
    fs::create_dir_all(&copy).unwrap();
    for file in ["brain.sqlite", "brain.sqlite-wal"] {
        fs::copy(brain.with_file_name(file), copy.join(file)).unwrap();
    }
    assert_eq!(remaining_secrets(fixture).len(), SECRETS.len(), "each secret is in some file");
}

/// Deletes a task with the knowledge that was learned from it.
async fn delete_task(fixture: &EngineFixture, task: &str) {
    fixture.engine.delete(&format!("/tasks/{task}?forget=knowledge")).await.assert_ok("status:text");
    delete_notes(fixture).await;
}

/// Erases the facts that were stored outside the task, each with what it replaced.
async fn delete_notes(fixture: &EngineFixture) {
    let facts = fixture.engine.get("/memory/facts").await.assert_ok("facts:array total:int");
    for fact in facts["facts"].as_array().unwrap() {
        if fact["content"].as_str().unwrap().contains("harbour") {
            assert_eq!(fact["replaced_total"], 1);
            let path = format!("/memory/facts/{}", fact["id"].as_str().unwrap());
            fixture.engine.delete(&path).await.assert_ok("status:text");
        }
    }
}

async fn knowledge(fixture: &EngineFixture) -> Vec<Value> {
    let list = fixture.engine.get("/memory/knowledge").await.assert_ok("knowledge:array total:int");
    list["knowledge"].as_array().unwrap().clone()
}

#[tokio::test]
async fn nothing_is_left_of_a_deleted_task_in_any_file() {
    let fixture = EngineFixture::allowing_all_tools([]).await;
    fixture.engine.run_turn("kept", "Do you know the way?").await;
    fixture.engine.run_turn("kept", "And back again?").await;
    tell_secrets(&fixture, "confided").await;
    let kept = fixture.engine.messages("kept").await;
    // A copy from before an upgrade.
    let copy = fixture.setup.test_env.path().join("brain.sqlite.before-1");
    fs::write(&copy, SECRETS[0]).unwrap();
    delete_task(&fixture, "confided").await;
    assert_erased(&fixture);
    assert!(!copy.exists());

    let fixture = fixture.stop_and_start().await;
    assert_erased(&fixture);
    assert_eq!(fixture.engine.messages("kept").await, kept);
    let found = fixture.engine.rpc_result("memory.search", json!({"query": "the way back"})).await;
    assert!(found.to_string().contains("Do you know the way?"), "{found}");
}

#[tokio::test]
async fn nothing_is_left_of_a_deleted_task_though_the_engine_is_killed_meanwhile() {
    let mut fixture = EngineFixture::allowing_all_tools([]).await;
    let document = SyntheticExport::with_mib(2).document();
    send(fixture.engine.request(Method::POST, "/memory/import").body(document))
        .await
        .assert_ok("status:text mode:text counts:object");
    for round in 0..4_u32 {
        let task = format!("confided-{round}");
        tell_secrets(&fixture, &task).await;
        let (request, pause) =
            (fixture.engine.request(Method::DELETE, &format!("/tasks/{task}?forget=knowledge")), round * 40);
        let deleting = tokio::spawn(async move { drop(request.send().await) });
        // The kill falls anywhere in the deletion.
        tokio::time::sleep(Duration::from_millis(u64::from(pause))).await;
        fixture = fixture.kill_and_start().await;
        deleting.await.unwrap();
        if fixture.engine.get(&format!("/tasks/{task}")).await.status == 200 {
            // The deletion had not begun.
            fixture.engine.delete(&format!("/tasks/{task}?forget=knowledge")).await.assert_ok("status:text");
        }
        delete_notes(&fixture).await;
        eventually("nothing is left", async || remaining_secrets(&fixture).is_empty().then_some(())).await;
    }
    assert_eq!(fixture.engine.tasks("").await.1, 9);
}

#[tokio::test]
async fn what_was_learned_from_a_deleted_task_stays_without_a_word_of_its_conversation() {
    let fixture = EngineFixture::allowing_all_tools([]).await;
    tell_secrets(&fixture, "confided").await;
    fixture.engine.delete("/tasks/confided").await.assert_ok("status:text");
    let [_, _, _, _, _, _, saved, corrected, _, noted, replaced, ..] = SECRETS;
    let left: Vec<_> = remaining_secrets(&fixture).into_iter().map(|(secret, _)| secret).collect();
    assert_eq!(left, [saved, corrected, noted, replaced]);
    let contents: Vec<String> = knowledge(&fixture)
        .await
        .iter()
        .map(|record| record["content"].as_str().unwrap().to_owned())
        .collect();
    assert!(
        contents.contains(&format!("It is {corrected}.")),
        "the correction is kept without its question: {contents:?}"
    );
    let search = json!({"query": corrected});
    let found = fixture.engine.post("/memory/knowledge/search", &search).await.assert_ok("results:array");
    assert_eq!(found["results"][0]["content"], format!("It is {corrected}."));
    let refused = fixture.engine.delete("/tasks/other?forget=everything").await;
    assert!(refused.assert_error(400, "INVALID_REQUEST").contains("forget"));
}

#[tokio::test]
async fn nothing_is_left_of_what_an_import_replaces() {
    let fixture = EngineFixture::allowing_all_tools([]).await;
    tell_secrets(&fixture, "confided").await;
    let import = fixture.engine.request(Method::POST, "/memory/import?mode=replace");
    send(import.body(r#"{"version":1}"#)).await.assert_ok("status:text mode:text counts:object");
    assert_erased(&fixture);
}

#[tokio::test]
async fn the_disk_gets_back_what_a_deleted_task_took_and_files_are_private() {
    const MIB: u64 = 1 << 20;
    let fixture = EngineFixture::allowing_all_tools([]).await;
    let brain = fixture.setup.brain();
    let size = || {
        files(fixture.setup.test_env.path())
            .iter()
            .map(|file| fs::metadata(file).map_or(0, |file| file.len()))
            .sum::<u64>()
    };
    fixture.engine.run_turn("kept", "Hi!").await;
    let before = size();
    for number in 0..3_u8 {
        let picture = vec![number; 5 << 20];
        let media = json!([{"type": "image", "media_type": "image/png", "data": BASE64.encode(picture)}]);
        let body = with_fields(direct_message("large", "Read."), json!({"media": media}));
        fixture.provider.enqueue_all([Reply::from_text("Read.")]);
        fixture.engine.run_turn_with(&body).await;
    }
    assert!(size() > before + 15 * MIB);
    fixture.engine.delete("/tasks/large").await.assert_ok("status:text");
    assert!(size() < before + MIB, "the size was {before}, and is {}", size());
    for suffix in ["", "-wal", "-shm"] {
        let file = format!("{}{suffix}", brain.display());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
    }
}
