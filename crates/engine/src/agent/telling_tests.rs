//! A client that honours `void_after`, and one that knows nothing of it, beside every way a step can break.

use proptest::prelude::*;

use super::*;

fn text(deltas: &[&str]) -> Vec<Part> {
    block(BlockType::Text, deltas)
}

fn block(kind: BlockType, deltas: &[&str]) -> Vec<Part> {
    let deltas = deltas.iter().map(|delta| Part::Delta((*delta).to_owned()));
    std::iter::once(Part::Start(kind)).chain(deltas).chain([Part::Stop]).collect()
}

/// Tells the first `cut` parts of one attempt, and then all of another.
fn broken_then(first: &[Part], cut: usize, second: &[Part]) -> (Vec<Tell>, Vec<Tell>) {
    let mut telling = Telling::default();
    telling.begin_attempt();
    let shown = first.iter().take(cut).flat_map(|part| telling.tell(part.clone())).collect();
    telling.begin_attempt();
    let mut then: Vec<Tell> = second.iter().flat_map(|part| telling.tell(part.clone())).collect();
    then.extend(telling.finish());
    (shown, then)
}

/// The blocks that a client has which drops what is void.
fn client(told: &[Tell]) -> Vec<(BlockType, String, bool)> {
    let mut blocks: Vec<(BlockType, String, bool)> = Vec::new();
    for tell in told {
        match tell {
            Tell::Void => blocks.clear(),
            Tell::Show(Part::Start(kind)) => blocks.push((*kind, String::new(), false)),
            Tell::Show(Part::Delta(text)) => blocks.last_mut().unwrap().1.push_str(text),
            Tell::Show(Part::Stop) => blocks.last_mut().unwrap().2 = true,
            Tell::Show(Part::Done(_)) => panic!("the end is no part to tell"),
        }
    }
    blocks
}

fn as_shown(parts: &[Part]) -> Vec<(BlockType, String, bool)> {
    let told: Vec<Tell> = parts.iter().cloned().map(Tell::Show).collect();
    client(&told)
}

#[test]
fn what_repeats_is_not_told_again_and_what_goes_beyond_is() {
    let whole = text(&["one ", "two ", "three"]);
    let (_, then) = broken_then(&whole, 3, &text(&["one two th", "ree"]));
    let expected = [Part::Delta("th".into()), Part::Delta("ree".into()), Part::Stop].map(Tell::Show);
    assert_eq!(then, expected);
}

#[test]
fn what_departs_voids_and_is_told_whole() {
    let (_, then) = broken_then(&text(&["one ", "two "]), 3, &text(&["one ", "three"]));
    let anew = text(&["one ", "three"]).into_iter().map(Tell::Show);
    assert_eq!(then, std::iter::once(Tell::Void).chain(anew).collect::<Vec<_>>());
}

#[test]
fn what_ends_short_voids() {
    let (_, then) = broken_then(&text(&["one ", "two "]), 3, &text(&["one "]));
    assert_eq!(then.first(), Some(&Tell::Void));
    // Also where a whole block is missing.
    let two = [block(BlockType::Thinking, &["hm"]), text(&["one"])].concat();
    let (_, then) = broken_then(&two, 5, &block(BlockType::Thinking, &["hm"]));
    assert_eq!(then.first(), Some(&Tell::Void));
}

#[test]
fn the_same_again_tells_nothing() {
    let whole =
        [block(BlockType::Thinking, &["hm"]), text(&["one"]), block(BlockType::ToolUse, &[])].concat();
    let (_, then) = broken_then(&whole, whole.len(), &whole);
    assert_eq!(then, []);
}

#[test]
fn what_was_told_is_known_again_from_its_events() {
    let mut blocks = super::super::stream::Blocks::after(0, None);
    let mut events = vec![blocks.start(BlockType::Thinking), blocks.delta("void".into()).unwrap()];
    events.extend(blocks.stop());
    let message_id = contract::MessageId::new();
    events.push(Event::ThreadLifecycle(Lifecycle::Retrying { message_id, void_after: 1, attempt: 2 }));
    events.extend([blocks.start(BlockType::Text), blocks.delta("one ".into()).unwrap()]);
    events.push(Event::ThreadLifecycle(Lifecycle::Resumed { message_id }));
    let mut telling = Telling::of_events(events);
    assert_eq!(telling.open_block(), Some(BlockType::Text));
    telling.begin_attempt();
    let tell: Vec<Tell> = text(&["one two"]).into_iter().flat_map(|part| telling.tell(part)).collect();
    assert_eq!(tell, [Part::Delta("two".into()), Part::Stop].map(Tell::Show));
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let kind = prop_oneof![Just(BlockType::Text), Just(BlockType::Thinking), Just(BlockType::ToolUse)];
    let deltas = prop::collection::vec("[ab]{1,3}", 0..4);
    let block = (kind, deltas).prop_map(|(kind, deltas)| {
        let deltas = if kind == BlockType::ToolUse { Vec::new() } else { deltas };
        block(kind, &deltas.iter().map(String::as_str).collect::<Vec<_>>())
    });
    prop::collection::vec(block, 0..4).prop_map(|blocks| blocks.concat())
}

proptest! {
    /// However often a step breaks, and whatever each attempt says, a client that honours `void_after` ends with
    /// the last answer, and nothing is voided that the last answer merely repeats.
    #[test]
    fn a_client_ends_with_the_last_answer(
        broken in prop::collection::vec((parts(), 0_usize..12), 0..4),
        last in parts(),
    ) {
        let mut telling = Telling::default();
        let mut told = Vec::new();
        for (attempt, cut) in &broken {
            telling.begin_attempt();
            told.extend(attempt.iter().take(*cut).flat_map(|part| telling.tell(part.clone())));
        }
        let before = client(&told);
        telling.begin_attempt();
        let mut then: Vec<Tell> = last.iter().flat_map(|part| telling.tell(part.clone())).collect();
        then.extend(telling.finish());
        told.extend(then.iter().cloned());
        prop_assert_eq!(client(&told), as_shown(&last));

        let repeats = before.iter().enumerate().all(|(at, (kind, text, ended))| {
            as_shown(&last).get(at).is_some_and(|(new_kind, new_text, _)| {
                kind == new_kind && if *ended { text == new_text } else { new_text.starts_with(text.as_str()) }
            })
        });
        prop_assert_eq!(then.contains(&Tell::Void), !repeats);
    }
}
