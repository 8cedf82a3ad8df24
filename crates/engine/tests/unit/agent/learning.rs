//! Learning from feedback, checked by what the model is sent.

use api::Timestamp;
use api::learning::{Check, Lesson};
use api::memory::{ListMemory, Source};
use mock_llm::{CapturedRequest, Reply, Wire};
use serde_json::{Value, json};
use testkit::{task_id, with_deadline};

use super::harness::{AgentHarness, WIRES, final_text};
use super::learning::BatchStatus;
use super::*;

/// How the model of a test behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelBehavior {
    /// It follows the lesson, and only where it applies.
    FollowsLesson,
    /// It answers as before.
    IgnoresLesson,
    /// It applies the opposite of the correction.
    InvertsLesson,
    /// It applies the lesson to everything.
    OverappliesLesson,
    /// Its draft cannot be parsed.
    UnreadableDraft,
    /// Its verdict cannot be parsed.
    UnreadableVerdict,
}

pub(super) const QUESTION: &str = "What is the capital of Australia?";
pub(super) const CORRECTION: &str = "It is Canberra.";

/// The heading of the corrections note.
const CORRECTIONS_HEADING: &str = "What the user taught you";

/// The whole request as one text.
fn sent_text(request: &CapturedRequest) -> String {
    format!("{} {}", request.body["system"], request.body["messages"])
}

/// The user's last message in the request.
pub(super) fn last_user_text(request: &CapturedRequest) -> String {
    match &request.body["messages"].as_array().unwrap().last().unwrap()["content"] {
        Value::String(text) => text.clone(),
        blocks => blocks.as_array().unwrap().last().unwrap()["text"].as_str().unwrap_or_default().to_owned(),
    }
}

/// The JSON input of a learning call.
fn query_json(request: &CapturedRequest) -> Value {
    serde_json::from_str(&last_user_text(request)).unwrap()
}

pub(crate) fn is_draft(request: &CapturedRequest) -> bool {
    sent_text(request).contains("turn a user's correction of an assistant's answer into a lesson")
}

fn is_judge(request: &CapturedRequest) -> bool {
    sent_text(request).contains("You judge whether")
}

pub(super) fn text(text: &str) -> Reply {
    Reply::from_text(text)
}

/// The reply of a model with this behaviour.
pub(crate) fn answer(behavior: ModelBehavior, request: &CapturedRequest) -> Reply {
    if is_draft(request) {
        let query = query_json(request);
        let correction = query["correction"].as_str().unwrap();
        let known = query["known_lessons"].as_array().unwrap();
        let merges = known.first().map_or(Value::Null, |known| known["id"].clone());
        let before = known.first().and_then(|known| known["lesson"].as_str()).unwrap_or_default();
        return match behavior {
            ModelBehavior::UnreadableDraft => text("I would rather not."),
            ModelBehavior::InvertsLesson => {
                text(&json!({"lesson": "LESSON The capital is Sydney."}).to_string())
            }
            _ => text(
                &json!({"lesson": format!("LESSON {before} {correction}"), "merges": merges}).to_string(),
            ),
        };
    }
    if is_judge(request) {
        let query = query_json(request);
        let text_of = |field: &str| query[field].as_str().unwrap_or_default().to_owned();
        let passed = if query["former_answer"].is_null() {
            // "It is X." is satisfied by an answer with X.
            text_of("correction")
                .split(' ')
                .all(|word| word == "It" || word == "is" || text_of("new_answer").contains(word))
        } else {
            text_of("former_answer") == text_of("new_answer")
        };
        return match behavior {
            ModelBehavior::UnreadableVerdict => text("It seems fine."),
            _ => text(&json!({"passed": passed, "reason": "as it is"}).to_string()),
        };
    }
    let (sent, question) = (sent_text(request), last_user_text(request));
    let has_correction = sent.contains("LESSON") || sent.contains(CORRECTIONS_HEADING);
    text(match behavior {
        ModelBehavior::OverappliesLesson if has_correction => "Canberra.",
        ModelBehavior::IgnoresLesson | ModelBehavior::InvertsLesson if question.contains("Australia") => {
            "Sydney."
        }
        _ if question.contains("Australia") => {
            if has_correction {
                "Canberra."
            } else {
                "Sydney."
            }
        }
        _ if question.contains("New Zealand") => {
            if sent.contains("Wellington") {
                "Wellington."
            } else {
                "Auckland."
            }
        }
        _ => "As ever.",
    })
}

pub(crate) fn script_model(harness: &AgentHarness, behavior: ModelBehavior) {
    harness.provider.set_responder(move |request| answer(behavior, request));
}

/// A harness whose model behaves like this and has answered two questions, one of them wrongly.
pub(super) async fn learning_harness(behavior: ModelBehavior) -> AgentHarness {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    script_model(&harness, behavior);
    send_to_task(&harness, "other", "Sing me a song.").await;
    assert_eq!(send_to_task(&harness, "t", QUESTION).await, "Sydney.");
    harness
}

pub(super) async fn send_to_task(harness: &AgentHarness, task: &str, message: &str) -> String {
    final_text(&harness.run(json!({"task_id": task, "message": message})).await)
}

/// The last request as one text.
fn last_sent(harness: &AgentHarness) -> String {
    sent_text(&harness.last_request())
}

pub(crate) async fn feedback(harness: &AgentHarness, body: Value) {
    with_deadline(harness.agent.give_feedback(serde_json::from_value(body).unwrap())).await.unwrap();
}

pub(crate) async fn correct(harness: &AgentHarness, task: &str, text: &str) {
    let body = json!({"task_id": task, "feedback_type": "correction", "correction_text": text});
    feedback(harness, body).await;
}

/// Runs a batch stage by stage until it ends or waits. Returns the number of stages.
pub(crate) async fn run_batch(harness: &AgentHarness) -> usize {
    with_deadline(harness.agent.start_batch()).await.unwrap();
    run_remaining_stages(harness).await
}

pub(super) async fn run_remaining_stages(harness: &AgentHarness) -> usize {
    for stages in 0..100 {
        match with_deadline(harness.agent.learner.step()).await.unwrap() {
            BatchStatus::Continue => {}
            BatchStatus::Wait(_) | BatchStatus::Idle => return stages,
        }
    }
    panic!("the batch does not end");
}

pub(crate) async fn lessons(harness: &AgentHarness) -> Vec<Lesson> {
    with_deadline(harness.agent.lessons(ListMemory::default())).await.unwrap().lessons
}

async fn first_message(harness: &AgentHarness, task: &str) -> String {
    harness.agent.all_messages(&task_id(task)).await.unwrap()[0].message_id.to_string()
}

/// The number of corrections that no lesson has replaced.
pub(super) fn corrections_in_force(harness: &AgentHarness) -> usize {
    let known = harness.brain.knowledge(100, 0).unwrap();
    known.iter().filter(|known| known.source == Source::Feedback && known.valid_until.is_none()).count()
}

#[tokio::test]
async fn a_correction_changes_the_next_turn_of_its_task_and_of_others_and_is_told_once() {
    let harness = learning_harness(ModelBehavior::FollowsLesson).await;
    assert!(!last_sent(&harness).contains(CORRECTIONS_HEADING));
    correct(&harness, "t", CORRECTION).await;
    for task in ["t", "new", "other"] {
        assert_eq!(send_to_task(&harness, task, QUESTION).await, "Canberra.", "{task}");
        let texts = last_sent(&harness);
        assert!(
            texts.contains("> When asked “What is the capital of Australia?”: It is Canberra."),
            "{texts}"
        );
        assert!(!harness.last_request().body["system"].to_string().contains("Canberra"), "{task}");
        send_to_task(&harness, task, "And now?").await;
        assert_eq!(last_sent(&harness).matches("It is Canberra.").count(), 1, "{task}");
    }
}

#[tokio::test]
async fn a_rating_or_an_error_report_changes_no_prompt_and_costs_no_call() {
    let harness = learning_harness(ModelBehavior::FollowsLesson).await;
    feedback(&harness, json!({"task_id": "t", "feedback_type": "rating", "rating": 1})).await;
    feedback(&harness, json!({"task_id": "t", "feedback_type": "error_report", "comment": "NONSENSE"})).await;
    send_to_task(&harness, "t", "And now?").await;
    let texts = last_sent(&harness);
    assert!(!texts.contains(CORRECTIONS_HEADING) && !texts.contains("NONSENSE"), "{texts}");
    let calls = harness.provider.requests().len();
    let batch = with_deadline(harness.agent.start_batch()).await.unwrap();
    assert_eq!(batch.trajectory_count, 3);
    assert_eq!(run_remaining_stages(&harness).await, 0);
    assert_eq!(harness.provider.requests().len(), calls);
    assert_eq!(with_deadline(harness.agent.start_batch()).await.unwrap().trajectory_count, 0);
}

#[tokio::test]
async fn a_correction_that_was_given_is_told_to_an_answer_that_is_given_anew() {
    let harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    let retry =
        json!({"task_id": "t", "message": "", "retry_message_id": first_message(&harness, "t").await});
    for _ in 0..2 {
        assert_eq!(final_text(&harness.run(retry.clone()).await), "Canberra.");
        assert_eq!(last_sent(&harness).matches("It is Canberra.").count(), 1);
    }
    send_to_task(&harness, "t", "And now?").await;
    assert_eq!(last_sent(&harness).matches("It is Canberra.").count(), 1);
}

#[tokio::test]
async fn a_lesson_is_adopted_with_its_evidence_and_told_in_the_place_of_the_correction() {
    let harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    let before = harness.provider.requests().len();
    run_batch(&harness).await;
    // A draft, two replays and two verdicts.
    assert_eq!(harness.provider.requests().len() - before, 5);
    let learned = lessons(&harness).await;
    let [Lesson { content, evidence, .. }] = &learned[..] else { panic!("{learned:#?}") };
    assert_eq!(content, "LESSON  It is Canberra.");
    assert_eq!(evidence.corrections.len(), 1);
    assert_eq!(evidence.corrections[0].task_id, task_id("t"));
    assert_eq!(evidence.corrections[0].correction_text, CORRECTION);
    let checks: Vec<_> =
        evidence.verdicts.iter().map(|verdict| (verdict.check, verdict.passed, &*verdict.answer)).collect();
    assert_eq!(checks, [(Check::Corrected, true, "Canberra."), (Check::Unharmed, true, "As ever.")]);
    assert_eq!(evidence.verdicts[1].task_id, task_id("other"));
    let known = harness.brain.knowledge(10, 0).unwrap();
    assert_eq!((known[0].source, known[0].supersedes), (Source::Learned, Some(known[1].id)));
    assert_eq!(corrections_in_force(&harness), 0);

    assert_eq!(send_to_task(&harness, "new", QUESTION).await, "Canberra.");
    assert_eq!(last_sent(&harness).matches("LESSON").count(), 1);
    // The correction is not processed again.
    let calls = harness.provider.requests().len();
    run_batch(&harness).await;
    assert_eq!((harness.provider.requests().len(), lessons(&harness).await.len()), (calls, 1));
    // The calls are included in the usage.
    let hour_ago = Timestamp::from_unix_ms(harness.clock.now().unix_ms() - 3_600_000);
    let usage = harness.brain.usage_since(hour_ago).unwrap();
    assert_eq!(usage.iter().map(|usage| usage.calls).sum::<u64>(), u64::try_from(calls).unwrap());
}

#[tokio::test]
async fn where_there_is_no_other_turn_that_a_lesson_could_harm_the_correction_waits() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    script_model(&harness, ModelBehavior::FollowsLesson);
    send_to_task(&harness, "t", QUESTION).await;
    correct(&harness, "t", CORRECTION).await;
    let calls = harness.provider.requests().len();
    run_batch(&harness).await;
    assert_eq!((harness.provider.requests().len(), lessons(&harness).await), (calls, Vec::new()));
    assert_eq!(corrections_in_force(&harness), 1);
    // Any other turn will do, and the least related one is chosen.
    send_to_task(&harness, "related", &format!("{QUESTION} {CORRECTION}")).await;
    send_to_task(&harness, "other", "Count to three.").await;
    send_to_task(&harness, "related", &format!("Again: {QUESTION} {CORRECTION}")).await;
    run_batch(&harness).await;
    let learned = lessons(&harness).await;
    let checks: Vec<_> = learned[0]
        .evidence
        .verdicts
        .iter()
        .map(|verdict| (verdict.check, verdict.task_id.as_str()))
        .collect();
    assert_eq!(checks, [(Check::Corrected, "t"), (Check::Unharmed, "other")]);
}

#[tokio::test]
async fn a_lesson_that_is_ignored_contradicts_or_goes_too_far_is_not_adopted_and_the_correction_holds() {
    for behavior in [
        ModelBehavior::IgnoresLesson,
        ModelBehavior::InvertsLesson,
        ModelBehavior::OverappliesLesson,
        ModelBehavior::UnreadableDraft,
        ModelBehavior::UnreadableVerdict,
    ] {
        let harness = learning_harness(behavior).await;
        correct(&harness, "t", CORRECTION).await;
        run_batch(&harness).await;
        assert_eq!(lessons(&harness).await, [], "{behavior:?}");
        assert_eq!(corrections_in_force(&harness), 1, "{behavior:?}");
        send_to_task(&harness, "new", QUESTION).await;
        assert!(last_sent(&harness).contains("It is Canberra."), "{behavior:?}");
        // It is not tried again.
        let calls = harness.provider.requests().len();
        run_batch(&harness).await;
        assert_eq!(harness.provider.requests().len(), calls, "{behavior:?}");
    }
}

#[tokio::test]
async fn a_turn_with_tools_is_asked_again_for_its_last_answer_over_every_protocol() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        std::fs::create_dir_all(harness.workspace()).unwrap();
        std::fs::write(harness.workspace().join("capitals.txt"), "Australia: Sydney").unwrap();
        let read = Reply::new().tool_use("read_file", json!({"path": "capitals.txt"}));
        harness.provider.enqueue_all([read.clone(), text("Noted."), read, text("Sydney.")]);
        harness.run(json!({"task_id": "t", "message": "Look it up.", "super_thinking": true})).await;
        harness.run(json!({"task_id": "t", "message": QUESTION, "super_thinking": true})).await;
        correct(&harness, "t", CORRECTION).await;
        let before = harness.provider.requests().len();
        harness.provider.enqueue_all([
            text(&json!({"lesson": "The capital of Australia is Canberra."}).to_string()),
            text("Canberra."),
            text(r#"{"passed": true, "reason": "it says so"}"#),
            text("Noted."),
            text(r#"{"passed": true, "reason": "the same"}"#),
        ]);
        run_batch(&harness).await;
        assert_eq!(lessons(&harness).await.len(), 1, "{wire:?}");
        let requests = harness.provider.requests();
        let replayed = requests[before + 1].body.to_string();
        // The tool's result is included, and the tool is not run again.
        assert_eq!(replayed.matches("Australia: Sydney").count(), 2, "{wire:?}: {replayed}");
        assert!(replayed.contains("The capital of Australia is Canberra."), "{wire:?}");
        assert_eq!(requests.len() - before, 5, "{wire:?}");
    }
}

#[tokio::test]
async fn an_undone_lesson_gives_way_to_what_it_replaced_and_does_not_come_back() {
    let harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    run_batch(&harness).await;
    let first = lessons(&harness).await.remove(0);
    send_to_task(&harness, "nz", "What is the capital of New Zealand?").await;
    correct(&harness, "nz", "It is Wellington.").await;
    run_batch(&harness).await;
    let second = lessons(&harness).await.remove(0);
    assert_eq!(second.evidence.corrections.len(), 2);
    // A lesson that is no longer in effect cannot be undone.
    let error = with_deadline(harness.agent.undo_lesson(&first.id.to_string())).await.unwrap_err();
    assert!(matches!(error, AgentError::UnknownRecord(_)));

    with_deadline(harness.agent.undo_lesson(&second.id.to_string())).await.unwrap();
    assert_eq!((lessons(&harness).await, corrections_in_force(&harness)), (vec![first.clone()], 1));
    let calls = harness.provider.requests().len();
    run_batch(&harness).await;
    assert_eq!((lessons(&harness).await, harness.provider.requests().len()), (vec![first.clone()], calls));
    with_deadline(harness.agent.undo_lesson(&first.id.to_string())).await.unwrap();
    assert_eq!((lessons(&harness).await.len(), corrections_in_force(&harness)), (0, 2));
    send_to_task(&harness, "new", QUESTION).await;
    let texts = last_sent(&harness);
    assert!(texts.contains("It is Canberra.") && texts.contains("It is Wellington."), "{texts}");
    assert!(!texts.contains("LESSON"), "{texts}");
}

#[tokio::test]
async fn an_edit_takes_out_what_was_learned_behind_it_from_merged_lessons_too() {
    let harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    run_batch(&harness).await;
    send_to_task(&harness, "nz", "What is the capital of New Zealand?").await;
    correct(&harness, "nz", "It is Wellington.").await;
    run_batch(&harness).await;
    assert_eq!(lessons(&harness).await[0].evidence.corrections.len(), 2);
    let edit = json!({
        "task_id": "t", "message": "Never mind.", "edit_message_id": first_message(&harness, "t").await,
    });
    harness.run(edit).await;
    let texts = last_sent(&harness);
    assert!(!texts.contains("Canberra") && texts.contains("It is Wellington."), "{texts}");
    // The correction that was merged with it is on its own again, and a lesson is drawn anew.
    assert_eq!((lessons(&harness).await.len(), corrections_in_force(&harness)), (0, 1));
    run_batch(&harness).await;
    let learned = lessons(&harness).await;
    assert_eq!((learned.len(), &*learned[0].content), (1, "LESSON  It is Wellington."));
    let feedback: i64 =
        harness.open_connection().query_row("SELECT COUNT(*) FROM feedback", [], |row| row.get(0)).unwrap();
    assert_eq!(feedback, 1);
}

#[tokio::test]
async fn an_edit_of_a_later_message_and_a_deleted_task_take_nothing_back() {
    let harness = learning_harness(ModelBehavior::FollowsLesson).await;
    correct(&harness, "t", CORRECTION).await;
    send_to_task(&harness, "t", "And now?").await;
    let listed = harness.agent.all_messages(&task_id("t")).await.unwrap();
    let id = listed[2].message_id.to_string();
    harness.run(json!({"task_id": "t", "message": "Or now?", "edit_message_id": id})).await;
    assert_eq!(last_sent(&harness).matches("It is Canberra.").count(), 1);
    run_batch(&harness).await;
    assert_eq!(lessons(&harness).await.len(), 1);
    with_deadline(harness.agent.delete(&task_id("t"), false)).await.unwrap();
    assert_eq!(send_to_task(&harness, "new", QUESTION).await, "Canberra.");
    with_deadline(harness.agent.undo_lesson(&lessons(&harness).await[0].id.to_string())).await.unwrap();
    assert_eq!(corrections_in_force(&harness), 1);
    run_batch(&harness).await;
    assert_eq!(lessons(&harness).await, []);
}

#[tokio::test]
async fn what_is_not_data_is_merged_with_nothing_that_is() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    std::fs::create_dir_all(harness.workspace()).unwrap();
    std::fs::write(harness.workspace().join("capitals.txt"), "Australia: Sydney").unwrap();
    script_model(&harness, ModelBehavior::FollowsLesson);
    send_to_task(&harness, "other", "Sing me a song.").await;
    let read = Reply::new().tool_use("read_file", json!({"path": "capitals.txt"}));
    harness.provider.enqueue_all([read, text("Sydney.")]);
    send_to_task(&harness, "t", QUESTION).await;
    correct(&harness, "t", CORRECTION).await;
    harness.provider.enqueue_all([
        text(r#"{"lesson": "LESSON  It is Canberra."}"#),
        text("Canberra."),
        text(r#"{"passed": true}"#),
        text("As ever."),
        text(r#"{"passed": true}"#),
    ]);
    run_batch(&harness).await;
    send_to_task(&harness, "nz", "What is the capital of New Zealand?").await;
    correct(&harness, "nz", "It is Wellington.").await;
    run_batch(&harness).await;
    let learned = lessons(&harness).await;
    let contents: Vec<&str> = learned.iter().map(|lesson| &*lesson.content).collect();
    assert_eq!(contents, ["LESSON  It is Wellington.", "LESSON  It is Canberra."]);
    let known = harness.brain.knowledge(10, 0).unwrap();
    let sources = known.iter().filter(|known| known.content.starts_with("LESSON")).map(|known| known.source);
    assert_eq!(sources.collect::<Vec<_>>(), [Source::Learned, Source::Tool]);
    assert_eq!(corrections_in_force(&harness), 1);
}
