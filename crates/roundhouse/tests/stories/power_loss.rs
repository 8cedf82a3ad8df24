//! Durability: what is acknowledged survives a power loss. Power cannot be cut in a test, but a preloaded library
//! can record each `fsync` and `fdatasync` of a program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mock_llm::{Gate, Reply};
use serde_json::json;

use crate::support::engine_calls::direct_message;
use crate::support::engine_fixture::{memory_set_reply, wait_gate_reached};
use crate::support::tool_programs::{done_reply, shell_reply, tool_reply};
use crate::support::turn::assert_completed;
use crate::support::{Deployment, EngineFixture, TestEnv, is_installed};

/// A library for `LD_PRELOAD` that records the file of each `fsync` and `fdatasync`.
const SYNC_RECORDER_SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void note(int fd) {
    char link[64], line[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, line, PATH_MAX);
    const char *notes = getenv("NOTES_OF_SYNCS");
    int file = notes && length > 0 ? open(notes, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (file < 0) return;
    line[length] = '\n';
    if (write(file, line, length + 1) < 0) abort();
    close(file);
}

int fsync(int fd) { note(fd); return syscall(SYS_fsync, fd); }
int fdatasync(int fd) { note(fd); return syscall(SYS_fdatasync, fd); }
"#;

/// The compiled library, and the file that it records to.
struct SyncRecorder {
    library: PathBuf,
    notes: PathBuf,
}

impl SyncRecorder {
    /// Builds the library in a folder; `None` without a C compiler.
    fn new(home: &TestEnv) -> Option<Self> {
        if !is_installed("cc") {
            return None;
        }
        let (source, library) = (home.path().join("syncs.c"), home.path().join("syncs.so"));
        fs::write(&source, SYNC_RECORDER_SOURCE).unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        assert!(built.unwrap().success());
        Some(Self { library, notes: home.path().join("notes-of-syncs") })
    }

    fn variables(&self) -> [(&'static str, String); 2] {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        [("LD_PRELOAD", text(&self.library)), ("NOTES_OF_SYNCS", text(&self.notes))]
    }

    /// How often the write-ahead log of this database was synced.
    fn sync_count(&self, database: &str) -> usize {
        let log = format!("/{database}-wal");
        fs::read_to_string(&self.notes)
            .unwrap_or_default()
            .lines()
            .filter(|line| line.ends_with(&log))
            .count()
    }
}

#[tokio::test]
async fn what_an_orchestrator_acknowledges_is_on_the_disk() {
    let deployment = Deployment::process_and_sqlite();
    let Some(syncs) = SyncRecorder::new(&deployment.fleet.test_env) else { return };
    let deployment = syncs
        .variables()
        .into_iter()
        .fold(deployment, |deployment, (name, value)| deployment.with_env(name, value));
    let (orchestrator, product) = deployment.start_with_product().await;
    let mut before = syncs.sync_count("registry.sqlite");
    assert!(before > 0);
    let mut assert_synced = |what: &str| {
        let now = syncs.sync_count("registry.sqlite");
        assert!(now > before, "{what} was acknowledged before it was on the disk");
        before = now;
    };
    orchestrator.register("other", json!({})).await;
    assert_synced("a registration");
    product.engine("ada").await;
    assert_synced("a provision");
    product.rotate_key("ada").await.assert_ok("new_api_key:engine-key");
    assert_synced("a key rotation");
    product.stop("ada").await.assert_ok("status:text");
    assert_synced("a stop");
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert_synced("a deletion");
}

#[tokio::test]
async fn what_an_engine_must_not_do_twice_is_on_the_disk_before_it_is_done() {
    let gate = Gate::new();
    let replies =
        [memory_set_reply("colour", "green"), done_reply(), Reply::from_text("Hello.").hold(0, &gate)];
    let home = TestEnv::new();
    let Some(syncs) = SyncRecorder::new(&home) else { return };
    let fixture = EngineFixture::with_setup("anthropic", replies, |setup| {
        let permissions = r#"{"tools": {"shell": "allow", "write_file": "ask"}}"#;
        let setup = setup.allowing_unconfined().with_catalog_file("permissions.json", permissions);
        syncs.variables().into_iter().fold(setup, |setup, (name, value)| setup.with_env(name, value))
    })
    .await;
    let sync_count = || syncs.sync_count("brain.sqlite");
    // The first commits create the log.
    fixture.engine.run_turn("task", "Note my colour.").await;

    // Neither the opening of a turn nor a repeatable tool call waits for the disk.
    let before = sync_count();
    let stream = fixture.engine.execute_with(&direct_message("task", "Hello!")).await;
    wait_gate_reached(&gate).await;
    assert_eq!(sync_count(), before, "the model is called without waiting for the disk");
    gate.release();
    assert_completed(&stream.collect().await);
    fixture.provider.enqueue_all([tool_reply("list_files", json!({"path": "."})), done_reply()]);
    fixture.engine.run_turn("task", "What is there?").await;
    assert_eq!(sync_count(), before);

    // A tool call that cannot be repeated is on the disk before it is made, and so is the user's answer.
    fixture.provider.enqueue_all([shell_reply("echo once >> list"), done_reply()]);
    let mut stream = fixture.engine.execute_with(&direct_message("task", "Count.")).await;
    stream.read_until("the call", |event| event.kind == "tool_call").await;
    let after_call = sync_count();
    assert!(after_call > before, "the call was sent before it was on the disk");
    assert_completed(&stream.collect().await);

    let write = json!({"path": "notes.txt", "content": "x"});
    fixture.provider.enqueue_all([tool_reply("write_file", write), done_reply()]);
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    let before_answer = sync_count();
    fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    assert!(sync_count() > before_answer, "an answer was accepted before it was on the disk");
    assert_completed(&stream.collect().await);
}
