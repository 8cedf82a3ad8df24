//! Property tests of memory after any sequence of turns, edits, retries, kills and deletions: exactly the active
//! content is found, and every index matches its table.

#[path = "memory_index/brain_model.rs"]
mod brain_model;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::event::StopReason;
use api::memory::{MemoryKind, Source};
use api::{CallId, MemoryId, MessageId, Timestamp, TurnId};
pub(super) use brain_model::{Action, BrainModel, actions};
use brain_model::{AnswerSpec, KnowledgeSave, TurnEnd, TurnStart, query};
use llm::{Answer, Block, FinishReason, TokenUsage, ToolOutcome, ToolUse};
use proptest::prelude::*;
use rusqlite::Connection;
use serde_json::json;
use store::steps::{Compacted, Opened, PartialAnswer, Replacement, Step, TurnBase, TurnOutcome};
use store::testing::{create_older_version, opened, row_number};
use store::{
    Brain, KnowledgeDraft, MemoryQuery, NewKnowledge, NewTurn, SearchHit, SearchScope, StoreError,
    TaskDeletion, TaskRow, WriteTx,
};
use tempfile::TempDir;
use testkit::task_id;

use super::harness::branch_from_steps;

#[test]
fn what_is_searched_is_what_is_in_force_after_anything() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40);
    let config =
        ProptestConfig { cases, max_shrink_iters: 200, failure_persistence: None, ..Default::default() };
    proptest!(config, |(sequence in actions())| {
        runtime.block_on(async {
            let mut model = BrainModel::new();
            for action in &sequence {
                model.apply(action).await;
            }
        });
    });
}

#[tokio::test]
async fn what_an_earlier_version_left_is_taken_in_bit_by_bit() {
    let mut model = BrainModel::new();
    let plain =
        AnswerSpec { has_words: true, calls: true, steered: (false, true), saves: KnowledgeSave::Nothing };
    for number in 0..12 {
        let from = match number {
            5 => TurnStart::Edit(1),
            8 => TurnStart::Retry(3),
            _ => TurnStart::End,
        };
        let end = if number == 6 { TurnEnd::Killed } else { TurnEnd::Completed };
        model.apply(&Action::Turn { task: number % 2, from, steps: vec![plain; 2], end }).await;
    }
    model.brain.close().await;
    let older = tempfile::tempdir().unwrap();
    let file = older.path().join("brain.sqlite");
    create_older_version(model.brain.file(), &file, 2);
    (model.brain, model.folder) = (Brain::open(&file).unwrap(), older);
    assert!(model.brain.has_ingest_backlog().unwrap());
    let mut commits = 0;
    while model.brain.has_ingest_backlog().unwrap() {
        model.write(|tx| tx.ingest_backlog(2)).await;
        model.check_indexes();
        commits += 1;
        assert!(commits < 20, "the backlog does not shrink");
    }
    assert!(commits > 3, "{commits}");
    for task in model.tasks.into_iter().flatten() {
        model.check_task(task);
    }
}

#[tokio::test]
async fn what_an_earlier_version_indexed_otherwise_is_indexed_anew_bit_by_bit_and_found_meanwhile() {
    let mut model = BrainModel::new();
    let plain =
        AnswerSpec { has_words: true, calls: false, steered: (false, false), saves: KnowledgeSave::Nothing };
    let turn = |task: usize| Action::Turn {
        task,
        from: TurnStart::End,
        steps: vec![plain],
        end: TurnEnd::Completed,
    };
    for number in 0..20 {
        model.apply(&turn(number % 2)).await;
        model.apply(&Action::Save { supersedes: (number == 7).then_some(0) }).await;
    }
    model.brain.close().await;
    let older = tempfile::tempdir().unwrap();
    let file = older.path().join("brain.sqlite");
    create_older_version(model.brain.file(), &file, 8);
    (model.brain, model.folder) = (Brain::open(&file).unwrap(), older);
    let words: Vec<String> = model.words.values().cloned().collect();
    let mut found = 0;
    let mut commits = 0;
    while model.brain.has_index_backlog().unwrap() {
        model.write(|tx| tx.index_backlog(9)).await;
        model.check_indexes();
        let now = words.iter().filter(|word| !model.search(word, SearchScope::Everything).is_empty()).count();
        assert!(now > found, "{now}");
        found = now;
        commits += 1;
        if commits == 2 {
            // A turn is found as soon as it has ended, and its commit indexes no more than its own task.
            let said = model.words.len();
            model.turn(0, TurnStart::End, &[plain], TurnEnd::Completed).await;
            let new = model.words.values().find(|word| **word == format!("word{said}x")).unwrap();
            assert_eq!(model.search(new, SearchScope::Everything).len(), 1);
        }
    }
    assert_eq!((found, commits > 3), (words.len() - 1, true), "all but what was superseded");
    for task in model.tasks.into_iter().flatten() {
        model.check_task(task);
    }
    model.check_knowledge();
}

#[tokio::test]
async fn what_a_shortened_conversation_no_longer_shows_is_found_in_it() {
    let mut model = BrainModel::new();
    let plain =
        AnswerSpec { has_words: true, calls: false, steered: (false, false), saves: KnowledgeSave::Nothing };
    for _ in 0..6 {
        model
            .apply(&Action::Turn {
                task: 0,
                from: TurnStart::End,
                steps: vec![plain],
                end: TurnEnd::Completed,
            })
            .await;
    }
    let task = model.tasks[0].unwrap();
    let found = |model: &BrainModel, word: &str| {
        let conversation = Some((task, TurnBase::End));
        model.brain.search(&query(word, SearchScope::Everything, conversation)).unwrap().len()
    };
    assert_eq!((found(&model, "word1x"), found(&model, "word10x")), (0, 0));
    // The first eight of its messages are covered from here on.
    let (turn_id, at) = (TurnId::new(), model.now());
    let new_turn = NewTurn { turn_id, message_id: MessageId::new(), request: None };
    model.write(move |tx| tx.insert_turn(task, &new_turn, at.unix_ms(), at)).await;
    model.step(task, turn_id, Step::Opened(opened("go on"))).await;
    let instead = Replacement::Summary { text: "So far so good.".into() };
    let compacted = Compacted { covers: 8, instead, results_up_to: None, memory_up_to: None };
    model.step(task, turn_id, Step::Compacted(compacted)).await;
    let outcome = TurnOutcome::Completed { stop_reason: StopReason::EndTurn };
    model.step(task, turn_id, Step::Ended { outcome }).await;
    assert_eq!((found(&model, "word1x"), found(&model, "word10x")), (1, 0));
    // Going back before the compaction shows them in the conversation again.
    model
        .apply(&Action::Turn {
            task: 0,
            from: TurnStart::Retry(3),
            steps: vec![plain],
            end: TurnEnd::Completed,
        })
        .await;
    assert_eq!(found(&model, "word1x"), 0);
}

#[tokio::test]
async fn a_search_gives_up_in_time() {
    let mut model = BrainModel::new();
    model.save(None, None).await;
    let deadline = Instant::now();
    let query = MemoryQuery { deadline, ..query("word0x", SearchScope::Everything, None) };
    // A result without a noticeable delay, or an error, but never a wait.
    let found = model.brain.search(&query);
    assert!(found.is_err() || found.is_ok_and(|found| found.len() == 1));
    assert_eq!(model.search("word0x", SearchScope::Everything).len(), 1);
}

#[tokio::test]
async fn a_word_that_is_in_much_of_it_tells_nothing_to_who_did_not_ask() {
    let mut model = BrainModel::new();
    let plain =
        AnswerSpec { has_words: true, calls: false, steered: (false, false), saves: KnowledgeSave::Nothing };
    model
        .apply(&Action::Turn { task: 0, from: TurnStart::End, steps: vec![plain], end: TurnEnd::Completed })
        .await;
    let conversation = Some((model.tasks[0].unwrap(), TurnBase::End));
    let relevant = |model: &BrainModel, text: &str| {
        let found = model.brain.search(&query(text, SearchScope::Everything, conversation)).unwrap();
        let relevant = found.into_iter().filter(|found| found.is_relevant);
        relevant.map(|found| found.content).collect::<Vec<_>>()
    };
    let save = |content: String| NewKnowledge {
        id: MemoryId::new(),
        draft: KnowledgeDraft { content, tags: Vec::new(), supersedes: None },
        source: Source::User,
    };
    for number in 0..64 {
        if number == 2 {
            assert_eq!(relevant(&model, "the teapot").len(), 2, "rare enough to tell something");
        }
        let record = save(format!("A teapot, the {number}th."));
        model
            .write(move |tx| tx.save_knowledge(&record, None, Timestamp::from_unix_ms(number)))
            .await
            .unwrap();
    }
    assert_eq!(relevant(&model, "the teapot"), Vec::<String>::new());
    assert!(model.search("the teapot", SearchScope::Everything).len() >= 5);
    // Together with a rare word it counts.
    let cracked = save("The cracked teapot.".into());
    model.write(move |tx| tx.save_knowledge(&cracked, None, Timestamp::from_unix_ms(0))).await.unwrap();
    assert_eq!(relevant(&model, "cracked teapot"), ["The cracked teapot."]);
}
