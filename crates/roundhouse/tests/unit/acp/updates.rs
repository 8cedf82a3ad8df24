use api::event::{Compaction, CompactionReason, Delta};
use api::{MessageId, TaskId, TurnId};
use pretty_assertions::assert_eq;

use super::*;

const ALL: ClientFeatures = ClientFeatures { forms: true, notices: true, compaction: true };

fn updates(features: ClientFeatures, events: Vec<Event>) -> (TurnUpdates, Vec<Value>) {
    let (turn_id, mut updates) = (TurnId::new(), TurnUpdates::new(features));
    let mut shown = Vec::new();
    for (at, event) in events.into_iter().enumerate() {
        let task_id = TaskId::new("task").unwrap();
        shown.extend(updates.apply(&SentEvent { task_id, turn_id, ts: i64::try_from(at).unwrap(), event }));
    }
    (updates, shown)
}

fn text(text: &str) -> Event {
    Event::TextDelta(Delta { text: text.into() })
}

fn block(index: u32) -> Event {
    Event::ContentBlockStart(BlockStart { index, block_type: api::event::BlockType::Text })
}

fn completed(stop_reason: StopReason) -> Event {
    let message_id = MessageId::new();
    Event::ThreadLifecycle(Lifecycle::Completed {
        message_id,
        answer_message_id: message_id,
        text: String::new(),
        stop_reason,
    })
}

#[test]
fn chunks_of_one_block_are_one_message() {
    let (_, shown) = updates(ALL, vec![block(0), text("a"), text("b"), block(2), text("c")]);
    let ids: Vec<_> = shown.iter().map(|update| &update["messageId"]).collect();
    assert!(ids[0] == ids[1] && ids[1] != ids[2], "{shown:?}");
    let texts: Vec<_> = shown.iter().map(|update| update["content"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["a", "b", "c"]);
}

#[test]
fn a_client_gets_only_what_it_knows() {
    let compaction = Compaction {
        reason: CompactionReason::Threshold,
        messages_collapsed: 1,
        tokens_before: 2,
        tokens_after: 1,
    };
    let retrying = Lifecycle::Retrying { message_id: MessageId::new(), void_after: 0, attempt: 2 };
    let events = || vec![Event::CompactionEvent(compaction), Event::ThreadLifecycle(retrying.clone())];
    let kinds: Vec<Value> =
        updates(ALL, events()).1.into_iter().map(|update| update["sessionUpdate"].clone()).collect();
    assert_eq!(kinds, ["compaction_update", "notice"]);
    assert_eq!(updates(ClientFeatures::default(), events()).1, Vec::<Value>::new());
}

#[test]
fn a_plan_is_its_steps() {
    let plan =
        |value| Event::WorkingMemoryUpdate(api::event::WorkingMemoryUpdate { key: "plan".into(), value });
    let (_, shown) =
        updates(ALL, vec![plan(json!({"steps": ["Look.", "Write."]})), plan(json!({"steps": []}))]);
    assert_eq!(shown.len(), 1);
    assert_eq!(
        shown[0]["entries"][1],
        json!({"content": "Write.", "priority": "medium", "status": "pending"})
    );
}

#[test]
fn the_outcome_is_that_of_the_turn() {
    for (reason, expected) in [
        (StopReason::EndTurn, "end_turn"),
        (StopReason::Budget, "max_tokens"),
        (StopReason::MaxTurns, "max_turn_requests"),
        (StopReason::Loop, "max_turn_requests"),
    ] {
        let (updates, _) = updates(ALL, vec![completed(reason)]);
        assert_eq!(updates.outcome().unwrap()["stopReason"], expected);
    }
    let cancelled = Event::ThreadLifecycle(Lifecycle::Cancelled { message_id: MessageId::new() });
    assert_eq!(updates(ALL, vec![cancelled]).0.outcome(), Ok(json!({"stopReason": "cancelled"})));
    let failure = Failure {
        code: api::event::FailureCode::ProviderAuth,
        message: "The key is wrong.".into(),
        retryable: false,
    };
    let failed = format!("{:?}", updates(ALL, vec![Event::Error(failure)]).0.outcome().unwrap_err());
    assert!(failed.contains("The key is wrong.") && failed.contains("PROVIDER_AUTH"), "{failed}");
    assert!(updates(ALL, vec![]).0.outcome().is_err());
}
