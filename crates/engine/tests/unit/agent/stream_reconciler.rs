//! A client that honours `void_after` and one that ignores it, for every way a step can break.

use proptest::prelude::*;

use super::*;

fn text(deltas: &[&str]) -> Vec<StreamEvent> {
    block(BlockType::Text, deltas)
}

fn block(kind: BlockType, deltas: &[&str]) -> Vec<StreamEvent> {
    let deltas = deltas.iter().map(|delta| StreamEvent::Delta((*delta).to_owned()));
    std::iter::once(StreamEvent::BlockStart(kind)).chain(deltas).chain([StreamEvent::BlockStop]).collect()
}

/// Feeds the first `cut` events of one attempt, then all of another. Returns what was sent for each.
fn replay_after_break(first: &[StreamEvent], cut: usize, second: &[StreamEvent]) -> (Vec<Emit>, Vec<Emit>) {
    let mut reconciler = StreamReconciler::default();
    reconciler.begin_attempt();
    let first_emits = first.iter().take(cut).flat_map(|event| reconciler.reconcile(event.clone())).collect();
    reconciler.begin_attempt();
    let mut second_emits: Vec<Emit> =
        second.iter().flat_map(|event| reconciler.reconcile(event.clone())).collect();
    second_emits.extend(reconciler.finish());
    (first_emits, second_emits)
}

/// The blocks of a client that drops void ones.
fn client_blocks(sent: &[Emit]) -> Vec<(BlockType, String, bool)> {
    let mut blocks: Vec<(BlockType, String, bool)> = Vec::new();
    for emit in sent {
        match emit {
            Emit::Void => blocks.clear(),
            Emit::Event(StreamEvent::BlockStart(kind)) => blocks.push((*kind, String::new(), false)),
            Emit::Event(StreamEvent::Delta(text)) => blocks.last_mut().unwrap().1.push_str(text),
            Emit::Event(StreamEvent::BlockStop) => blocks.last_mut().unwrap().2 = true,
            Emit::Event(StreamEvent::Done(_)) => panic!("`Done` is not sent to clients"),
        }
    }
    blocks
}

fn blocks_if_all_sent(events: &[StreamEvent]) -> Vec<(BlockType, String, bool)> {
    let sent: Vec<Emit> = events.iter().cloned().map(Emit::Event).collect();
    client_blocks(&sent)
}

#[test]
fn what_repeats_is_not_told_again_and_what_goes_beyond_is() {
    let answer = text(&["one ", "two ", "three"]);
    let (_, emits) = replay_after_break(&answer, 3, &text(&["one two th", "ree"]));
    let expected =
        [StreamEvent::Delta("th".into()), StreamEvent::Delta("ree".into()), StreamEvent::BlockStop]
            .map(Emit::Event);
    assert_eq!(emits, expected);
}

#[test]
fn what_departs_voids_and_is_told_whole() {
    let (_, emits) = replay_after_break(&text(&["one ", "two "]), 3, &text(&["one ", "three"]));
    let resent = text(&["one ", "three"]).into_iter().map(Emit::Event);
    assert_eq!(emits, std::iter::once(Emit::Void).chain(resent).collect::<Vec<_>>());
}

#[test]
fn what_ends_short_voids() {
    let (_, emits) = replay_after_break(&text(&["one ", "two "]), 3, &text(&["one "]));
    assert_eq!(emits.first(), Some(&Emit::Void));
    // Also if a whole block is missing.
    let two = [block(BlockType::Thinking, &["hm"]), text(&["one"])].concat();
    let (_, emits) = replay_after_break(&two, 5, &block(BlockType::Thinking, &["hm"]));
    assert_eq!(emits.first(), Some(&Emit::Void));
}

#[test]
fn the_same_again_tells_nothing() {
    let answer =
        [block(BlockType::Thinking, &["hm"]), text(&["one"]), block(BlockType::ToolUse, &[])].concat();
    let (_, emits) = replay_after_break(&answer, answer.len(), &answer);
    assert_eq!(emits, []);
}

#[test]
fn what_was_told_is_known_again_from_its_events() {
    let mut blocks = super::super::stream::Blocks::after(0, None);
    let mut events = vec![blocks.start(BlockType::Thinking), blocks.delta("void".into()).unwrap()];
    events.extend(blocks.stop());
    let message_id = api::MessageId::new();
    events.push(Event::ThreadLifecycle(Lifecycle::Retrying { message_id, void_after: 1, attempt: 2 }));
    events.extend([blocks.start(BlockType::Text), blocks.delta("one ".into()).unwrap()]);
    events.push(Event::ThreadLifecycle(Lifecycle::Resumed { message_id }));
    let mut reconciler = StreamReconciler::from_events(events);
    assert_eq!(reconciler.open_block(), Some(BlockType::Text));
    reconciler.begin_attempt();
    let emits: Vec<Emit> =
        text(&["one two"]).into_iter().flat_map(|event| reconciler.reconcile(event)).collect();
    assert_eq!(emits, [StreamEvent::Delta("two".into()), StreamEvent::BlockStop].map(Emit::Event));
}

fn stream_events() -> impl Strategy<Value = Vec<StreamEvent>> {
    let kind = prop_oneof![Just(BlockType::Text), Just(BlockType::Thinking), Just(BlockType::ToolUse)];
    let deltas = prop::collection::vec("[ab]{1,3}", 0..4);
    let block = (kind, deltas).prop_map(|(kind, deltas)| {
        let deltas = if kind == BlockType::ToolUse { Vec::new() } else { deltas };
        block(kind, &deltas.iter().map(String::as_str).collect::<Vec<_>>())
    });
    prop::collection::vec(block, 0..4).prop_map(|blocks| blocks.concat())
}

proptest! {
    /// However often a step breaks, and whatever each attempt says, a client that honours `void_after` ends
    /// with the last answer, and nothing is voided that the last answer merely repeats.
    #[test]
    fn a_client_ends_with_the_last_answer(
        broken in prop::collection::vec((stream_events(), 0_usize..12), 0..4),
        last in stream_events(),
    ) {
        let mut reconciler = StreamReconciler::default();
        let mut sent = Vec::new();
        for (attempt, cut) in &broken {
            reconciler.begin_attempt();
            sent.extend(attempt.iter().take(*cut).flat_map(|event| reconciler.reconcile(event.clone())));
        }
        let before = client_blocks(&sent);
        reconciler.begin_attempt();
        let mut emits: Vec<Emit> = last.iter().flat_map(|event| reconciler.reconcile(event.clone())).collect();
        emits.extend(reconciler.finish());
        sent.extend(emits.iter().cloned());
        prop_assert_eq!(client_blocks(&sent), blocks_if_all_sent(&last));

        let repeats = before.iter().enumerate().all(|(at, (kind, text, ended))| {
            blocks_if_all_sent(&last).get(at).is_some_and(|(new_kind, new_text, _)| {
                kind == new_kind && if *ended { text == new_text } else { new_text.starts_with(text.as_str()) }
            })
        });
        prop_assert_eq!(emits.contains(&Emit::Void), !repeats);
    }
}
