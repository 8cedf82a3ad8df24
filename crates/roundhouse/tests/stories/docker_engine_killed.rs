//! Story 42 (lesson e09) in a container: an engine that is killed takes along what its agent runs, and goes on where it was.

use std::fs;

use rusqlite::{Connection, OpenFlags};
use strict_provider::{Reply, StrictProvider};

use crate::support::calls::message;
use crate::support::programs::{CLINGERS, CLINGING, done, results, shell, write_into};
use crate::support::turn::completed;
use crate::support::{Deployment, eventually, processes};

/// Who gets the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    /// The container, which is its first process: the kernel ends all others with it.
    Container,
    /// The engine's own process, whose end the first process follows.
    Engine,
}

#[tokio::test]
async fn a_container_that_is_killed_leaves_no_program_behind() {
    leaves_nothing_behind(Killed::Container).await;
}

#[tokio::test]
async fn lesson_e09_an_engine_that_is_killed_in_its_container_leaves_no_program_behind() {
    leaves_nothing_behind(Killed::Engine).await;
}

async fn leaves_nothing_behind(killed: Killed) {
    let Some(place) = Deployment::docker() else { return };
    let provider = StrictProvider::builder().bind_thinking(true).start().await.unwrap();
    provider.enqueue_all([shell(&format!("echo began >> runs\n{CLINGING}")), done()]);
    provider.set_default_reply(Reply::of_text("I am here."));
    let place = place.with_provider(&provider).with("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    write_into(&place.catalog(), "permissions.json", r#"{"default": "allow"}"#);
    let (_orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    let container = place.container_of(&engine).await.unwrap();
    let stream = engine.execute_with(&message("task", "Stay.")).await;
    // All of them are seen from outside, however they hide within.
    let clinging = || {
        let inside = processes::in_container(&container);
        let mut found = processes::called_with("clings\0/data/workspace\0".as_ref());
        found.retain(|process| inside.contains(process));
        found
    };
    eventually("the programs run", async || (clinging().len() == CLINGERS).then_some(())).await;

    match killed {
        Killed::Container => drop(place.daemon().run(&["kill", "--signal", "KILL", &container]).await),
        Killed::Engine => drop(place.kill_engine(&engine)),
    }
    drop(stream.until_broken().await);
    eventually("nothing of the container is left", async || {
        processes::in_container(&container).is_empty().then_some(())
    })
    .await;
    eventually("it is back in another container", async || {
        place.container_of(&engine).await.filter(|now| *now != container)
    })
    .await;
    // The turn goes on: nobody knows what the command did, and it is not run again.
    let engine = product.engine("ada").await;
    let events = engine.replay("task", 0).await.rest().await;
    assert_eq!(completed(&events), "Done.");
    assert!(results(&events)[0].unwrap_err().contains("unknown"), "{events:#?}");
    let folder = place.fleet.engine_folder(&engine.id);
    assert_eq!(fs::read_to_string(folder.join("workspace/runs")).unwrap(), "began\n");
    let messages = engine.messages("task").await;
    engine.tell("task", "Are you there?").await;
    assert_eq!(engine.messages("task").await[..messages.len()], messages);

    product.stop("ada").await.ok("status:text");
    let brain =
        Connection::open_with_flags(folder.join("brain.sqlite"), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let found: String = brain.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(found, "ok", "the brain is whole");
}
