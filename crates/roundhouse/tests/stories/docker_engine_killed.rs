//! Story 42 (lesson e09) in a container: killing an engine ends the programs of its agent, and the turn continues
//! after the restart.

use std::fs;

use mock_llm::{MockProvider, Reply};
use rusqlite::{Connection, OpenFlags};

use crate::support::engine_calls::direct_message;
use crate::support::tool_programs::{
    LINGERING_PROGRAM_COUNT, LINGERING_PROGRAMS, done_reply, shell_reply, tool_results, write_catalog_file,
};
use crate::support::turn::assert_completed;
use crate::support::{Deployment, eventually, processes};

/// The target of the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KillTarget {
    /// The container, which is its first process: the kernel ends all others with it.
    Container,
    /// The engine's own process, whose end the first process follows.
    Engine,
}

#[tokio::test]
async fn a_container_that_is_killed_leaves_no_program_behind() {
    assert_nothing_left_behind(KillTarget::Container).await;
}

#[tokio::test]
async fn regression_e09_an_engine_that_is_killed_in_its_container_leaves_no_program_behind() {
    assert_nothing_left_behind(KillTarget::Engine).await;
}

async fn assert_nothing_left_behind(killed: KillTarget) {
    let Some(deployment) = Deployment::docker() else { return };
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    provider.enqueue_all([shell_reply(&format!("echo began >> runs\n{LINGERING_PROGRAMS}")), done_reply()]);
    provider.set_default_reply(Reply::from_text("I am here."));
    let deployment = deployment.with_provider(&provider).with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    write_catalog_file(&deployment.catalog(), "permissions.json", r#"{"default": "allow"}"#);
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    let container = deployment.container_of(&engine).await.unwrap();
    let stream = engine.execute_with(&direct_message("task", "Stay.")).await;
    // From outside the container, all programs are visible.
    let lingering_processes = || {
        let inside = processes::in_container(&container);
        let mut found = processes::with_command_line_text("clings\0/data/workspace\0".as_ref());
        found.retain(|process| inside.contains(process));
        found
    };
    eventually("the programs run", async || {
        (lingering_processes().len() == LINGERING_PROGRAM_COUNT).then_some(())
    })
    .await;

    match killed {
        KillTarget::Container => {
            drop(deployment.docker_daemon().run(&["kill", "--signal", "KILL", &container]).await);
        }
        KillTarget::Engine => drop(deployment.kill_engine(&engine)),
    }
    drop(stream.collect_until_broken().await);
    eventually("nothing of the container is left", async || {
        processes::in_container(&container).is_empty().then_some(())
    })
    .await;
    eventually("it is back in another container", async || {
        deployment.container_of(&engine).await.filter(|now| *now != container)
    })
    .await;
    // The turn continues: the effect of the command is unknown, and it is not run again.
    let engine = product.engine("ada").await;
    let events = engine.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "Done.");
    assert!(tool_results(&events)[0].unwrap_err().contains("unknown"), "{events:#?}");
    let folder = deployment.fleet.engine_folder(&engine.id);
    assert_eq!(fs::read_to_string(folder.join("workspace/runs")).unwrap(), "began\n");
    let messages = engine.messages("task").await;
    engine.run_turn("task", "Are you there?").await;
    assert_eq!(engine.messages("task").await[..messages.len()], messages);

    product.stop("ada").await.assert_ok("status:text");
    let brain =
        Connection::open_with_flags(folder.join("brain.sqlite"), OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let found: String = brain.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(found, "ok", "the brain is whole");
}
