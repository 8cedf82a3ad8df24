//! Story 1, at the terminal: a person talks to their engine.

use rustix::process::Signal;
use strict_provider::{Gate, Reply, StrictProvider};
use tokio::io::AsyncWriteExt as _;

use crate::support::{Fleet, processes};

#[tokio::test]
async fn ctrl_c_leaves_a_turn_to_itself_and_the_next_message_shows_its_rest() {
    let provider = StrictProvider::start().await.unwrap();
    let gate = Gate::new();
    provider.enqueue_all([
        Reply::of_text("The first half, and the second half.").deltas(4).hold(2, &gate),
        Reply::of_text("And that is all."),
    ]);
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.up().await;
    let folder = fleet.folder();
    let arguments = ["chat", "--user", "ada", "--dir", folder.to_str().unwrap()];
    let (mut chat, mut input) = fleet.home.talk(&arguments, &fleet.variables);

    input.write_all(b"tell me\n").await.unwrap();
    chat.says("The first half").await.unwrap();
    processes::signal(chat.pid(), Signal::INT);
    chat.says("goes on without you").await.unwrap();
    assert!(chat.runs() && !chat.output().contains("second half"), "{}", chat.output());

    gate.release();
    input.write_all(b"is that all?\n").await.unwrap();
    let said = chat.says("And that is all.").await.unwrap();
    let rest = said.find("second half").expect("the rest of the first turn is shown");
    assert!(rest < said.find("And that is all.").unwrap(), "{said}");
    drop(input);
    chat.ended().await.well();
    up.end(Signal::TERM).await.well();
}
