//! What hooks decided about a call, folded from the journal.

use super::*;

fn hooked(call_id: CallId, input: Option<serde_json::Value>, notes: &[&str], source: Source) -> Step {
    let notes = notes.iter().map(|note| (*note).to_owned()).collect();
    Step::Hooked { call_id, input, notes, source: source.into() }
}

fn returned(call_id: CallId, output: &str) -> Step {
    Step::Returned { call_id, outcome: outcome(output), memory: Vec::new(), source: Source::Tool.into() }
}

fn outcome(output: &str) -> ToolOutcome {
    ToolOutcome::new(output.into(), None, 1)
}

/// A thread with one call, and the id of that.
fn thread_with_call() -> (Thread, CallId) {
    let answer = answer(1);
    let call_id = answer.calls().next().unwrap().call_id;
    let Step::Opened(opened) = opened("Go.") else { unreachable!() };
    let mut thread = Thread::open(Branch::default(), opened, 1..=1);
    thread.apply(answered(answer), 2);
    (thread, call_id)
}

fn open_call(thread: &Thread) -> OpenCall {
    let NextAction::RunTools(calls) = thread.next_action() else { panic!("{:?}", thread.next_action()) };
    calls[0].clone()
}

fn reply(thread: &Thread) -> String {
    let Some(Message::Results(replies)) = thread.messages().last() else { panic!("no results") };
    replies[0].text.clone()
}

#[test]
fn a_changed_input_runs_while_the_models_own_words_stay_as_they_were() {
    let (mut thread, call_id) = thread_with_call();
    assert!(!open_call(&thread).hooked);
    let before = thread.messages().to_vec();
    thread.apply(hooked(call_id, Some(json!({"b": 2})), &["changed"], Source::Tool), 3);
    let open = open_call(&thread);
    assert_eq!((open.hooked, open.stage, &open.call.input), (true, OpenStage::New, &json!({"b": 2})));
    assert_eq!(thread.call(call_id).unwrap().input, json!({"b": 2}));
    assert_eq!(thread.messages(), before, "a provider is sent what its model said");
    assert_eq!(thread.source_of_call(call_id), Source::Tool);
    thread.apply(Step::Intended { call_id }, 4);
    thread.apply(resulted(call_id, outcome("done")), 5);
    assert_eq!(reply(&thread), "done\n\nchanged");
    // What a hook says is data, although the tool is trusted.
    assert_eq!(thread.branch().memory_source(), Source::Tool);
}

#[test]
fn a_returned_call_waits_for_the_hooks_after_it_and_shows_nothing_before_them() {
    let (mut thread, call_id) = thread_with_call();
    thread.apply(Step::Intended { call_id }, 3);
    thread.apply(returned(call_id, "a secret"), 4);
    let open = open_call(&thread);
    assert_eq!((open.stage, open.returned), (OpenStage::Returned, Some((outcome("a secret"), Source::Tool))));
    thread.apply(hooked(call_id, None, &["masked"], Source::Tool), 5);
    thread.apply(resulted(call_id, outcome("***")), 6);
    assert_eq!((reply(&thread), thread.next_action()), ("***\n\nmasked".into(), NextAction::CallModel));
    // A turn that ends in between withholds the result.
    let (mut thread, call_id) = thread_with_call();
    thread.apply(Step::Intended { call_id }, 3);
    thread.apply(returned(call_id, "a secret"), 4);
    thread.apply(Step::Ended { outcome: TurnOutcome::Cancelled { said: None } }, 5);
    assert!(reply(&thread).contains("withheld") && !reply(&thread).contains("secret"), "{}", reply(&thread));
}
