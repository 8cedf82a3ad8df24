//! What a request sets for its turn stays beside its message for that turn, however the conversation is shortened, and
//! for no other one.

use super::*;

const INSTRUCTIONS: &str = "[For this message only, the application gives these instructions:]\nBe brief.";

fn opened_with(notes: &[&str], base: TurnBase) -> Step {
    let Step::Opened(opened) = opened("Where is it?") else { unreachable!() };
    Step::Opened(Opened { notes: notes.iter().map(|&note| note.to_owned()).collect(), base, ..opened })
}

fn shown(thread: &Thread) -> String {
    format!("{:?}", thread.messages())
}

#[test]
fn a_summary_and_a_reset_keep_what_the_turn_was_opened_with_after_it_was_steered() {
    for instead in
        [store::steps::Replacement::Summary { text: "so far".into() }, store::steps::Replacement::Reset]
    {
        let (first, second) = (answer(1), answer(1));
        let calls: Vec<CallId> = [&first, &second]
            .into_iter()
            .flat_map(|answer| answer.calls().map(|call| call.call_id))
            .collect();
        let turn = TurnId::new();
        let steered = Step::Steered { message_id: MessageId::new(), message: "In the north?".into() };
        let steps = vec![
            opened_with(&["[Sent 2026-11-26 12:00 UTC]", INSTRUCTIONS], TurnBase::End),
            answered(first),
            steered,
            resulted(calls[0], done()),
            answered(second),
            resulted(calls[1], done()),
        ];
        for covers in [1, 3, 4, 6] {
            let mut steps = steps.clone();
            steps.push(Step::Compacted(store::steps::Compacted {
                instead: instead.clone(),
                ..compacted(covers)
            }));
            let shown = shown(&fold(&journal(turn, steps)));
            assert_eq!(shown.matches("Be brief.").count(), 1, "{covers} {instead:?} {shown}");
            assert!(covers < 4 || shown.contains("In the north?"), "{shown}");
        }
    }
}

#[test]
fn a_retry_replaces_what_an_earlier_retry_has_set() {
    let Step::Opened(first) = opened_with(&[INSTRUCTIONS], TurnBase::End) else { unreachable!() };
    let retry = TurnBase::Retry { message_id: first.message_id };
    let mut steps = journal(TurnId::new(), [Step::Opened(first), answered(answer(0)), ended()]);
    for (ts, note) in [(10, "[For this message only: be loud.]"), (20, "[For this message only: be kind.]")] {
        let turn = TurnId::new();
        steps.push(stored(turn, ts, opened_with(&[note, "A correction."], retry)));
        steps.push(stored(turn, ts + 1, answered(answer(0))));
        steps.push(stored(turn, ts + 2, ended()));
    }
    steps.push(stored(TurnId::new(), 30, opened_with(&[], retry)));
    let all = shown(&fold(&steps));
    assert_eq!(["Be brief.", "be loud", "be kind"].map(|note| all.matches(note).count()), [1, 0, 0], "{all}");
    steps.truncate(steps.len() - 3);
    let second = shown(&fold(&steps));
    assert_eq!(["be loud", "be kind"].map(|note| second.matches(note).count()), [0, 1], "{second}");
}

fn ended() -> Step {
    Step::Ended { outcome: TurnOutcome::Cancelled { said: None } }
}

fn done() -> ToolOutcome {
    ToolOutcome::new("done".into(), None, 0)
}

/// An opening with two notes, between which what is recalled belongs.
fn opened_to_recall() -> Opened {
    let Step::Opened(opened) =
        opened_with(&["[Sent 2026-11-26 12:00 UTC]", "[A correction.]"], TurnBase::End)
    else {
        unreachable!()
    };
    Opened { recall_at: Some(1), ..opened }
}

fn recalled(source: Source) -> Step {
    Step::Recalled { note: Some("[A memory.]".into()), source: source.into() }
}

#[test]
fn what_is_recalled_behind_the_opening_is_sent_as_if_the_opening_contained_it() {
    let opened = opened_to_recall();
    // So it is in journals of earlier versions.
    let mut notes = opened.notes.clone();
    notes.insert(1, "[A memory.]".into());
    for source in [Source::Agent, Source::Tool] {
        let old =
            Opened { notes: notes.clone(), notes_source: source.into(), recall_at: None, ..opened.clone() };
        let old = fold(&journal(TurnId::new(), [Step::Opened(old)]));
        let new = fold(&journal(TurnId::new(), [Step::Opened(opened.clone()), recalled(source)]));
        assert_eq!(new.messages(), old.messages());
        assert_eq!(new.branch().memory_source(), old.branch().memory_source());
        assert_eq!(new.branch().memory_source() == Source::Tool, source == Source::Tool);
        // The event that reports it is not void if the model call is repeated.
        assert_eq!((old.turn().last_step_ts(), new.turn().last_step_ts()), (1, 2));
    }
    // It is also sent where a compaction has replaced what came before the message.
    let earlier = [self::opened("before"), answered(answer(0)), ended()];
    let mut steps = journal(TurnId::new(), earlier);
    steps.push(stored(TurnId::new(), 10, self::opened("and")));
    steps.push(stored(steps[3].turn_id, 11, Step::Compacted(compacted(2))));
    steps.push(stored(steps[3].turn_id, 12, ended()));
    let turn = TurnId::new();
    let last = [Step::Opened(opened.clone()), recalled(Source::Agent)];
    steps.extend(last.into_iter().map(|step| stored(turn, 20, step)));
    let thread = fold(&steps);
    assert_eq!(shown(&thread).matches("[A memory.]").count(), 1);
    let alone = fold(&journal(turn, [Step::Opened(opened), recalled(Source::Agent)]));
    assert_eq!(thread.messages().last(), alone.messages().last());
}

#[test]
fn memory_is_searched_for_a_turn_only_right_behind_its_opening() {
    let opened = Step::Opened(opened_to_recall());
    let due = |steps: &[Step]| fold(&journal(TurnId::new(), steps.to_vec())).message_to_recall_for();
    assert_eq!(due(std::slice::from_ref(&opened)), Some("Where is it?".into()));
    let only_corrections = Step::Recalled { note: None, source: Source::Agent.into() };
    let spent = Step::Spent { model: "m".into(), tokens: TokenUsage::default(), cost_usd: None };
    for next in [recalled(Source::Agent), only_corrections, spent, answered(answer(1))] {
        assert_eq!(due(&[opened.clone(), next]), None);
    }
    // Earlier versions, retries and sub-agents.
    assert_eq!(due(&[opened_with(&["[A memory.]"], TurnBase::End)]), None);
}
