//! Facts: what is listed of them, how they are corrected, and what goes with one that is erased.

use api::{BatchId, TaskId};
use pretty_assertions::assert_eq;
use tempfile::TempDir;
use testkit::{task_id, with_deadline};

use super::*;
use crate::lessons::NewLesson;
use crate::steps::Step;
use crate::{
    BatchEffect, BatchProgress, BatchStage, Brain, FeedbackContent, LessonDraft, MemoryQuery, NewTurn,
    SearchScope, TaskRow,
};

/// A brain, written and read through its own functions.
struct Fixture {
    brain: Brain,
    _folder: TempDir,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_unix_ms(second * 1_000)
}

fn record(content: &str, source: Source, supersedes: Option<MemoryId>) -> NewKnowledge {
    let draft = KnowledgeDraft { content: content.into(), tags: vec!["home".into()], supersedes };
    NewKnowledge { id: MemoryId::new(), draft, source }
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { brain: Brain::open(&folder.path().join("brain.sqlite")).unwrap(), _folder: folder }
    }

    async fn write<T: Send + 'static>(
        &self,
        write: impl Fn(&WriteTx<'_>) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> T {
        with_deadline(self.brain.write(write)).await.unwrap()
    }

    async fn save(
        &self,
        record: NewKnowledge,
        task: Option<TaskRow>,
        second: i64,
    ) -> Result<(), SupersedeError> {
        self.write(move |tx| tx.save_knowledge(&record, task, at(second))).await
    }

    /// Saves statements, each of which replaces the one before it, a second after it.
    async fn save_chain<const N: usize>(&self, contents: [&str; N]) -> [MemoryId; N] {
        let (mut ids, mut second) = (Vec::new(), 0);
        for content in contents {
            let record = record(content, Source::Agent, ids.last().copied());
            ids.push(record.id);
            second += 1;
            self.save(record, None, second).await.unwrap();
        }
        ids.try_into().unwrap()
    }

    /// Begins a task with a turn, and returns its row.
    async fn begin_task(&self, id: TaskId, turn_id: TurnId, message_id: MessageId) -> TaskRow {
        let row = self.brain.reserve_task();
        self.write(move |tx| {
            tx.insert_task(row, &id, at(1))?;
            tx.insert_turn(row, &NewTurn { turn_id, message_id, request: None }, 1, at(1))?;
            tx.insert_step(row, turn_id, at(1), 1, &Step::Opened(crate::testing::opened("q")))
        })
        .await;
        row
    }

    async fn correct(&self, id: MemoryId, content: &str, keeps_tags: bool) -> Result<MemoryId, CorrectError> {
        let draft = KnowledgeDraft { content: content.into(), tags: Vec::new(), supersedes: Some(id) };
        let correction = FactCorrection { id: MemoryId::new(), draft, keeps_tags };
        let new = correction.id;
        self.write(move |tx| tx.correct_fact(&correction, at(100))).await.map(|()| new)
    }

    fn contents(&self, filter: &FactFilter) -> Vec<String> {
        let facts = self.brain.facts(filter, 100, 0).unwrap();
        assert_eq!(facts.total, u64::try_from(facts.facts.len()).unwrap());
        facts.facts.into_iter().map(|fact| fact.content).collect()
    }

    fn finds(&self, text: &str) -> usize {
        let query = MemoryQuery {
            text: text.into(),
            scope: SearchScope::Knowledge,
            offset: 0,
            limit: 10,
            conversation: None,
            deadline: std::time::Instant::now() + std::time::Duration::from_secs(10),
        };
        self.brain.search(&query).unwrap().len()
    }
}

#[tokio::test]
async fn a_fact_shows_what_it_replaced_and_for_how_long_that_held() {
    let fixture = Fixture::new();
    let [bonn, berlin, hamburg] = fixture.save_chain(["In Bonn.", "In Berlin.", "In Hamburg."]).await;
    let fact = fixture.brain.fact(hamburg).unwrap().unwrap();
    assert_eq!((fact.said_at, fact.held_until, fact.replaced_by, fact.origin), (at(3), None, None, None));
    let statement = |id, content: &str, said_at, held_until| Statement {
        id,
        content: content.into(),
        source: Source::Agent,
        said_at,
        held_until: Some(held_until),
    };
    let replaced = [statement(berlin, "In Berlin.", at(2), at(3)), statement(bonn, "In Bonn.", at(1), at(2))];
    assert_eq!((fact.replaced, fact.replaced_total), (replaced.to_vec(), 2));
    // One that is no longer in force shows what replaced it.
    let fact = fixture.brain.fact(bonn).unwrap().unwrap();
    assert_eq!((fact.held_until, fact.replaced_total), (Some(at(2)), 0));
    assert_eq!(fact.replaced_by, Some(statement(berlin, "In Berlin.", at(2), at(3))));
    assert_eq!(fixture.contents(&FactFilter::default()), ["In Hamburg."]);
    assert_eq!(fixture.brain.fact(MemoryId::new()).unwrap(), None);
}

#[tokio::test]
async fn a_list_shows_the_newest_of_a_long_history() {
    let fixture = Fixture::new();
    let contents: [String; 15] = std::array::from_fn(|number| format!("It is {number}."));
    fixture.save_chain(contents.each_ref().map(String::as_str)).await;
    let facts = fixture.brain.facts(&FactFilter::default(), 10, 0).unwrap().facts;
    let [fact] = facts.as_slice() else { panic!("{facts:#?}") };
    assert_eq!((fact.replaced.len(), fact.replaced_total), (MAX_LISTED_REPLACED, 14));
    assert_eq!(fact.replaced.first().unwrap().content, "It is 13.");
    assert_eq!(fixture.brain.fact(fact.id).unwrap().unwrap().replaced.len(), 14);
}

#[tokio::test]
async fn facts_are_filtered_and_the_last_said_comes_first() {
    let fixture = Fixture::new();
    for (content, source, second) in
        [("Late.", Source::User, 9), ("Early.", Source::Tool, 2), ("Between.", Source::Agent, 5)]
    {
        fixture.save(record(content, source, None), None, second).await.unwrap();
    }
    let mut other = record("Ärger mit dem 猫.", Source::User, None);
    other.draft.tags = vec!["Büro".into(), "猫".into()];
    fixture.save(other, None, 1).await.unwrap();
    let all = FactFilter::default();
    assert_eq!(fixture.contents(&all), ["Late.", "Between.", "Early.", "Ärger mit dem 猫."]);
    let tag = |tag: &str| FactFilter { tag: Some(tag.into()), ..FactFilter::default() };
    assert_eq!(fixture.contents(&tag("猫")), ["Ärger mit dem 猫."]);
    assert_eq!(fixture.contents(&tag("Hom")), [""; 0]);
    let user = FactFilter { source: Some(Source::User), ..tag("home") };
    assert_eq!(fixture.contents(&user), ["Late."]);
    let tools = FactFilter { from_tools: Some(true), ..FactFilter::default() };
    assert_eq!(fixture.contents(&tools), ["Early."]);
    let page = fixture.brain.facts(&all, 2, 1).unwrap();
    assert_eq!((page.facts.len(), page.total), (2, 4));
}

#[tokio::test]
async fn a_fact_names_the_turn_that_it_came_from_until_its_task_is_deleted() {
    let fixture = Fixture::new();
    let (turn_id, message_id) = (TurnId::new(), MessageId::new());
    let task = fixture.begin_task(task_id("t"), turn_id, message_id).await;
    let record = record("From a turn.", Source::Agent, None);
    let id = record.id;
    fixture.save(record, Some(task), 2).await.unwrap();
    let origin = FactOrigin { task_id: task_id("t"), turn_id: Some(turn_id), message_id: Some(message_id) };
    assert_eq!(fixture.brain.fact(id).unwrap().unwrap().origin, Some(origin));
    fixture.write(move |tx| tx.delete_task(task, &crate::TaskDeletion::default())).await;
    assert_eq!(fixture.brain.fact(id).unwrap().unwrap().origin, None);
}

#[tokio::test]
async fn a_correction_replaces_what_is_in_force_and_else_names_it() {
    let fixture = Fixture::new();
    let [old, now] = fixture.save_chain(["In Bonn.", "In Berlin."]).await;
    assert_eq!(fixture.correct(old, "In Kiel.", true).await, Err(CorrectError::Replaced(Some(now))));
    let corrected = fixture.correct(now, "In Kiel.", true).await.unwrap();
    assert_eq!(fixture.correct(old, "In Ulm.", true).await, Err(CorrectError::Replaced(Some(corrected))));
    assert_eq!(fixture.correct(MemoryId::new(), "In Ulm.", true).await, Err(CorrectError::Unknown));
    let fact = fixture.brain.fact(corrected).unwrap().unwrap();
    assert_eq!((fact.source, fact.tags, fact.replaced_total), (Source::User, vec!["home".into()], 2));
    let untagged = fixture.correct(corrected, "In Rom.", false).await.unwrap();
    assert_eq!(fixture.brain.fact(untagged).unwrap().unwrap().tags, [""; 0]);
    // Nothing is in force in the place of a record whose successor was deleted.
    fixture.write(move |tx| tx.delete_knowledge(untagged)).await;
    assert_eq!(fixture.correct(old, "In Ulm.", true).await, Err(CorrectError::Replaced(None)));
}

#[tokio::test]
async fn what_a_fact_replaced_goes_with_it_and_what_replaced_it_stays() {
    let fixture = Fixture::new();
    let [bonn, berlin, hamburg] = fixture.save_chain(["In Bonn.", "In Berlin.", "In Hamburg."]).await;
    assert!(!fixture.write(|tx| tx.delete_fact(MemoryId::new())).await);
    assert!(fixture.write(move |tx| tx.delete_fact(berlin)).await);
    let left: Vec<_> = [bonn, berlin, hamburg]
        .into_iter()
        .map(|id| fixture.brain.fact(id).unwrap().map(|fact| fact.replaced_total))
        .collect();
    assert_eq!(left, [None, None, Some(0)]);
    assert!(fixture.write(move |tx| tx.delete_fact(hamburg)).await);
    assert_eq!((fixture.contents(&FactFilter::default()).len(), fixture.finds("Hamburg")), (0, 0));
    assert_eq!(fixture.brain.knowledge_count().unwrap(), 0);
}

#[tokio::test]
async fn a_history_stays_whole_when_a_statement_within_it_is_deleted() {
    let fixture = Fixture::new();
    let [bonn, berlin, hamburg] = fixture.save_chain(["In Bonn.", "In Berlin.", "In Hamburg."]).await;
    assert!(fixture.write(move |tx| tx.delete_knowledge(berlin)).await);
    let fact = fixture.brain.fact(hamburg).unwrap().unwrap();
    assert_eq!(fact.replaced.iter().map(|earlier| earlier.id).collect::<Vec<_>>(), [bonn]);
    let earlier = fixture.brain.fact(bonn).unwrap().unwrap();
    assert_eq!(earlier.replaced_by.map(|later| later.id), Some(hamburg));
    assert!(fixture.write(move |tx| tx.delete_fact(hamburg)).await);
    assert_eq!(fixture.brain.knowledge_count().unwrap(), 0);
}

#[tokio::test]
async fn what_a_record_names_but_did_not_replace_is_a_fact_of_its_own() {
    let fixture = Fixture::new();
    let own = record("In Bonn.", Source::User, None);
    let (own_id, claim) = (own.id, record("In Berlin.", Source::Tool, Some(own.id)));
    fixture.save(own, None, 1).await.unwrap();
    let claim_id = claim.id;
    // As a merging import keeps it.
    fixture
        .write(move |tx| {
            tx.save_knowledge(&claim, None, at(2)).map(drop)?;
            let draft = KnowledgeDraft { supersedes: None, ..claim.draft.clone() };
            tx.save_knowledge(&NewKnowledge { draft, ..claim.clone() }, None, at(2)).map(drop)?;
            let sql = "UPDATE knowledge SET supersedes = ?2 WHERE id = ?1";
            tx.execute(sql, [claim.id.to_string(), own_id.to_string()])
        })
        .await;
    assert_eq!(fixture.brain.fact(claim_id).unwrap().unwrap().replaced_total, 0);
    assert_eq!(fixture.brain.fact(own_id).unwrap().unwrap().replaced_by, None);
    assert!(fixture.write(move |tx| tx.delete_fact(claim_id)).await);
    assert_eq!(fixture.contents(&FactFilter::default()), ["In Bonn."]);
}

#[tokio::test]
async fn records_that_replace_each_other_in_a_circle_are_shown_and_deleted() {
    let fixture = Fixture::new();
    let [first, second] = fixture.save_chain(["One.", "Two."]).await;
    fixture
        .write(move |tx| {
            let sql = "UPDATE knowledge SET supersedes = ?2, valid_until = 9 WHERE id = ?1";
            tx.execute(sql, [first.to_string(), second.to_string()])?;
            tx.execute("UPDATE knowledge SET valid_until = 9 WHERE id = ?1", [second.to_string()])
        })
        .await;
    assert_eq!(fixture.brain.fact(first).unwrap().unwrap().replaced_total, 1);
    assert_eq!(fixture.correct(first, "Three.", true).await, Err(CorrectError::Replaced(None)));
    assert!(fixture.write(move |tx| tx.delete_fact(first)).await);
    assert_eq!(fixture.brain.knowledge_count().unwrap(), 0);
}

#[tokio::test]
async fn the_feedback_that_a_correction_was_given_in_goes_with_it() {
    let fixture = Fixture::new();
    let task = fixture.begin_task(task_id("t"), TurnId::new(), MessageId::new()).await;
    let id = MemoryId::new();
    let feedback = FeedbackContent::Correction { text: "It is seven.".into(), record: id };
    assert!(fixture.write(move |tx| tx.insert_feedback(FeedbackId::new(), task, &feedback, at(2))).await);
    assert_eq!(fixture.contents(&FactFilter::default()), ["It is seven."]);
    assert_eq!(fixture.brain.erased_with(id, 10).unwrap(), (Vec::new(), 0));
    assert!(fixture.write(move |tx| tx.delete_fact(id)).await);
    let count = |tx: &WriteTx<'_>| {
        Ok(tx.transaction.query_row("SELECT COUNT(*) FROM feedback", [], |row| row.get::<_, i64>(0))?)
    };
    assert_eq!(fixture.write(count).await, 0);
}

/// Gives a correction, and adopts a lesson from it, merged with another one.
async fn learn(
    fixture: &Fixture,
    task: TaskRow,
    (correction, lesson): (&str, &str),
    merges: Option<MemoryId>,
    is_tainted: bool,
) -> (MemoryId, MemoryId) {
    let (record, id, feedback_id) = (MemoryId::new(), MemoryId::new(), FeedbackId::new());
    let feedback = FeedbackContent::Correction { text: correction.into(), record };
    let content = lesson.to_owned();
    fixture
        .write(move |tx| {
            assert!(tx.insert_feedback(feedback_id, task, &feedback, at(10))?);
            let (batch, progress) = tx.begin_batch(BatchId::new(), at(11))?;
            let correction = crate::feedback::correction(tx.transaction, feedback_id)?.unwrap();
            let (content, verdicts) = (content.clone(), Vec::new());
            let lesson = NewLesson { id, content, correction, merges, is_tainted, verdicts };
            let adopted = BatchEffect::Adopt(Box::new(lesson));
            tx.advance_batch(batch, &progress, &adopted, &[], at(12))?;
            tx.advance_batch(batch, &progress, &BatchEffect::End, &[], at(13))
        })
        .await;
    (record, id)
}

fn ids(statements: &[Statement]) -> HashSet<MemoryId> {
    statements.iter().map(|statement| statement.id).collect()
}

#[tokio::test]
async fn what_goes_with_a_lesson_is_known_before_it_is_erased() {
    let fixture = Fixture::new();
    let task = fixture.begin_task(task_id("t"), TurnId::new(), MessageId::new()).await;
    let (seven, first) = learn(&fixture, task, ("It is seven.", "Seven it is."), None, false).await;
    let (eight, merged) =
        learn(&fixture, task, ("It is eight.", "Seven or eight it is."), Some(first), false).await;
    let (shown, count) = fixture.brain.erased_with(merged, 10).unwrap();
    assert_eq!((ids(&shown), count), ([seven, eight, first].into(), 3));
    let (shown, count) = fixture.brain.erased_with(merged, 1).unwrap();
    assert_eq!((shown.len(), count), (1, 3));
    // A correction that was merged into a lesson names it.
    for correction in [seven, eight] {
        let replaced_by = fixture.brain.fact(correction).unwrap().unwrap().replaced_by;
        assert!(replaced_by.is_some_and(|later| [first, merged].contains(&later.id)));
    }
    let corrected = fixture.correct(eight, "Nine.", true).await;
    assert_eq!(corrected, Err(CorrectError::Replaced(Some(merged))));
    assert!(fixture.write(move |tx| tx.delete_fact(merged)).await);
    assert_eq!(fixture.brain.knowledge_count().unwrap(), 0);
}

#[tokio::test]
async fn a_lesson_that_quotes_a_tool_takes_no_correction_with_it() {
    let fixture = Fixture::new();
    let task = fixture.begin_task(task_id("t"), TurnId::new(), MessageId::new()).await;
    let (correction, lesson) =
        learn(&fixture, task, ("It is seven.", "Seven, says a page."), None, true).await;
    assert_eq!(fixture.brain.erased_with(lesson, 10).unwrap(), (Vec::new(), 0));
    // The correction takes the lesson with it, which repeats its words.
    let (shown, count) = fixture.brain.erased_with(correction, 10).unwrap();
    assert_eq!((ids(&shown), count), ([lesson].into(), 1));
    assert!(fixture.write(move |tx| tx.delete_fact(lesson)).await);
    assert_eq!(fixture.contents(&FactFilter::default()), ["It is seven."]);
}

#[tokio::test]
async fn a_draft_with_the_words_of_an_erased_lesson_is_given_up() {
    let fixture = Fixture::new();
    let task = fixture.begin_task(task_id("t"), TurnId::new(), MessageId::new()).await;
    let (_, lesson) = learn(&fixture, task, ("It is seven.", "Seven it is."), None, false).await;
    let (record, feedback_id) = (MemoryId::new(), FeedbackId::new());
    let feedback = FeedbackContent::Correction { text: "It is eight.".into(), record };
    let draft = LessonDraft {
        feedback_id,
        lesson: "Seven or eight it is.".into(),
        merges: Some(lesson),
        is_tainted: false,
    };
    fixture
        .write(move |tx| {
            assert!(tx.insert_feedback(feedback_id, task, &feedback, at(20))?);
            let (batch, progress) = tx.begin_batch(BatchId::new(), at(21))?;
            let progress = BatchProgress { stage: BatchStage::Trying(draft.clone()), ..progress };
            tx.advance_batch(batch, &progress, &BatchEffect::None, &[], at(22))
        })
        .await;
    let stage = || fixture.brain.active_batch().unwrap().unwrap().1.stage;
    assert!(matches!(stage(), BatchStage::Trying(_)));
    assert!(fixture.write(move |tx| tx.delete_fact(lesson)).await);
    assert_eq!(stage(), BatchStage::Choosing);
}

#[tokio::test]
async fn what_a_turn_says_again_to_name_what_it_replaces_is_one_fact() {
    let fixture = Fixture::new();
    let task = fixture.begin_task(task_id("t"), TurnId::new(), MessageId::new()).await;
    let [bonn] = fixture.save_chain(["In Bonn."]).await;
    let first = record("In Kiel.", Source::Agent, None);
    let again = record("In Kiel.", Source::Agent, Some(bonn));
    let (first_id, again_id) = (first.id, again.id);
    fixture
        .write(move |tx| {
            tx.save_knowledge_from_turn(&first, task, at(3))?;
            tx.save_knowledge_from_turn(&again, task, at(4))
        })
        .await;
    assert_eq!(fixture.brain.fact(first_id).unwrap(), None);
    assert_eq!(fixture.brain.fact(again_id).unwrap().unwrap().replaced_total, 1);
    assert_eq!(fixture.contents(&FactFilter::default()), ["In Kiel."]);
}
