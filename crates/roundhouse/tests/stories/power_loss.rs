//! What is on the disk for good when it is acknowledged. Power cannot be cut here; whether a program waits for the disk
//! can be seen: a library that is loaded before all others notes each time it does.

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

/// Notes the file of each `fsync` and `fdatasync`.
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

/// The library, and where it notes what it sees.
struct SyncRecorder {
    library: PathBuf,
    notes: PathBuf,
}

impl SyncRecorder {
    /// Builds the library in a folder; none where no C compiler is.
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

    /// How often it was waited for the log of this database.
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
    let place = Deployment::process_and_sqlite();
    let Some(syncs) = SyncRecorder::new(&place.fleet.test_env) else { return };
    let place = syncs.variables().into_iter().fold(place, |place, (name, value)| place.with_env(name, value));
    let (orchestrator, product) = place.start_with_product().await;
    let mut before = syncs.sync_count("registry.sqlite");
    assert!(before > 0);
    let mut grew = |what: &str| {
        let now = syncs.sync_count("registry.sqlite");
        assert!(now > before, "{what} was acknowledged and not on the disk");
        before = now;
    };
    orchestrator.register("other", json!({})).await;
    grew("a registration");
    product.engine("ada").await;
    grew("a provision");
    product.rotate_key("ada").await.assert_ok("new_api_key:engine-key");
    grew("another key");
    product.stop("ada").await.assert_ok("status:text");
    grew("a stop");
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    grew("an end");
}

#[tokio::test]
async fn what_an_engine_must_not_do_twice_is_on_the_disk_before_it_is_done() {
    let gate = Gate::new();
    let replies =
        [memory_set_reply("colour", "green"), done_reply(), Reply::from_text("Hello.").hold(0, &gate)];
    let home = TestEnv::new();
    let Some(syncs) = SyncRecorder::new(&home) else { return };
    let rig = EngineFixture::with_setup("anthropic", replies, |place| {
        let permissions = r#"{"tools": {"shell": "allow", "write_file": "ask"}}"#;
        let place = place.allowing_unconfined().with_catalog_file("permissions.json", permissions);
        syncs.variables().into_iter().fold(place, |place, (name, value)| place.with_env(name, value))
    })
    .await;
    let now = || syncs.sync_count("brain.sqlite");
    // The first commits begin the log.
    rig.engine.run_turn("task", "Note my colour.").await;

    // Neither the opening of a turn nor what can be done again waits for the disk.
    let before = now();
    let stream = rig.engine.execute_with(&direct_message("task", "Hello!")).await;
    wait_gate_reached(&gate).await;
    assert_eq!(now(), before, "the model is asked at once");
    gate.release();
    assert_completed(&stream.collect().await);
    rig.provider.enqueue_all([tool_reply("list_files", json!({"path": "."})), done_reply()]);
    rig.engine.run_turn("task", "What is there?").await;
    assert_eq!(now(), before);

    // What cannot be done again is on the disk before it is done, and so is what a person answers.
    rig.provider.enqueue_all([shell_reply("echo once >> list"), done_reply()]);
    let mut stream = rig.engine.execute_with(&direct_message("task", "Count.")).await;
    stream.read_until("the call", |event| event.kind == "tool_call").await;
    let called = now();
    assert!(called > before, "the call is told of before it is on the disk");
    assert_completed(&stream.collect().await);

    let write = json!({"path": "notes.txt", "content": "x"});
    rig.provider.enqueue_all([tool_reply("write_file", write), done_reply()]);
    let (stream, _) = rig.engine.run_until_hitl_request(&direct_message("task", "Write.")).await;
    let asked = now();
    rig.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    assert!(now() > asked, "an answer was taken and is not on the disk");
    assert_completed(&stream.collect().await);
}
