//! Story 40: the catalog says which models an engine asks. It speaks to each vendor in its words, asks another model
//! where one fails, spends no more than it may, hands work to sub-agents, and shortens what has become too long.

use std::fs;

use serde_json::{Value, json};
use strict_provider::{CapturedRequest, Fault, Gate, Refusal, Reply, StrictProvider, Usage};

use crate::support::calls::{message, message_id, said, with};
use crate::support::model::{Act as _, reached};
use crate::support::turn::{completed, errored, of_kind, phases, shown};
use crate::support::{Event, LoneEngine, Rig};

/// The models of the catalog, by what they are called there: one for each wire.
const MODELS: [&str; 5] = ["anthropic", "openai", "responses", "gemini", "ollama"];

/// A model as `gateway.json` has it.
fn model(provider: &StrictProvider, name: &str) -> Value {
    let (vendor, base, model) = match name {
        "anthropic" => (name, provider.base_url(), "claude-sonnet-4-5"),
        "openai" | "responses" => ("openai", provider.openai_base_url(), "gpt-5"),
        // The vendor refuses calls of this one that come back without their signatures.
        "gemini" => (name, provider.gemini_base_url(), "gemini-3-pro"),
        "ollama" => (name, provider.ollama_base_url(), "qwen3"),
        _ => panic!("no model is called {name:?}"),
    };
    let mut model = json!({"provider": vendor, "model": model, "base_url": base, "context_window": 200_000});
    if name == "responses" {
        model["api"] = "responses".into();
        model["model"] = "gpt-5-mini".into();
    }
    model
}

/// An engine whose catalog has these models, the first of which answers, and what else `more` says.
async fn rig(models: &[&str], more: impl FnOnce(&mut Value)) -> Rig {
    rig_with(models, more, |_| {}).await
}

/// An engine with such a catalog whose place was made ready before it started.
async fn rig_with(models: &[&str], more: impl FnOnce(&mut Value), ready: impl FnOnce(&LoneEngine)) -> Rig {
    let provider = StrictProvider::builder().bind_thinking(true).start().await.unwrap();
    let mut gateway = json!({"models": {}, "default": models[0], "fallbacks": models[1..]});
    for name in models {
        gateway["models"][name] = model(&provider, name);
    }
    more(&mut gateway);
    let keys = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"];
    let place = keys.into_iter().fold(LoneEngine::new(), |place, key| place.with(key, format!("of {key}")));
    fs::write(place.home.path().join("catalog/gateway.json"), gateway.to_string()).unwrap();
    ready(&place);
    let (program, engine) = place.start().await;
    Rig { provider, place, program, engine }
}

fn refused(refusal: Refusal) -> Reply {
    Reply::of_fault(Fault::refuse(refusal))
}

/// A message that wants thinking, and no plan.
fn thoughtful(text: &str) -> Value {
    with(message("task", text), json!({"super_thinking": true}))
}

fn sent(request: &CapturedRequest) -> String {
    String::from_utf8(request.raw.to_vec()).unwrap()
}

/// The models that were asked, in their order.
fn asked(rig: &Rig) -> Vec<String> {
    rig.provider.requests().into_iter().map(|request| request.model).collect()
}

/// The last `usage` of a turn.
fn usage(events: &[Event]) -> &Value {
    &of_kind(events, "usage").last().expect("a turn says what it used").data
}

#[tokio::test]
async fn a_turn_thinks_speaks_and_acts_over_each_wire() {
    for name in MODELS {
        let rig = rig(&[name], |_| {}).await;
        rig.provider.enqueue_all([
            Reply::new().thinking("Two notes.").text("A moment.").notes("a", "1").notes("b", "2"),
            Reply::new().thinking("That is all.").text("Noted."),
            Reply::new().thinking("Another one.").text("Sure.").notes("c", "3"),
            Reply::of_text("Also noted."),
        ]);
        let first = rig.engine.tell_with(&thoughtful("Note two things.")).await;
        assert_eq!(completed(&first), "Noted.", "{name}");
        assert_eq!(shown(&first, "text_delta"), "A moment.Noted.", "{name}");
        // Chat Completions tells nothing of what a model thinks.
        let thoughts = if name == "openai" { "" } else { "Two notes.That is all." };
        assert_eq!(shown(&first, "thinking_delta"), thoughts, "{name}");
        let inputs: Vec<&Value> =
            of_kind(&first, "tool_call").iter().map(|call| &call.data["input"]).collect();
        assert_eq!(
            inputs,
            [&json!({"key": "a", "value": "1"}), &json!({"key": "b", "value": "2"})],
            "{name}"
        );
        assert_eq!(of_kind(&first, "tool_result").len(), 2, "{name}");
        assert!(usage(&first)["input_tokens"].as_u64() > Some(0), "{name}");

        let second = rig.engine.tell_with(&thoughtful("And a third.")).await;
        assert_eq!((completed(&second), rig.calls()), ("Also noted.", 4), "{name}");
        let last = sent(&rig.provider.requests()[3]);
        for words in ["Note two things.", "A moment.", "Noted.", "And a third.", "Sure."] {
            assert!(last.contains(words), "{name}: no {words:?} in {last}");
        }
        let replayed = rig.engine.replay("task", 0).await.rest().await;
        assert_eq!(replayed, [first, second].concat(), "{name}");
        rig.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn a_key_is_that_of_the_models_own_vendor() {
    for (name, key) in [
        ("anthropic", Some("of ANTHROPIC_API_KEY")),
        ("responses", Some("of OPENAI_API_KEY")),
        ("gemini", Some("of GEMINI_API_KEY")),
        ("ollama", None),
    ] {
        let rig = rig(&[name], |_| {}).await;
        rig.engine.tell("task", "Hello!").await;
        assert_eq!(rig.provider.requests()[0].api_key(), key, "{name}");
    }
}

#[tokio::test]
async fn another_model_answers_where_one_fails_for_good() {
    for first in MODELS {
        let spare = if first == "gemini" { "responses" } else { "gemini" };
        let twice = || [refused(Refusal::Overloaded), refused(Refusal::Overloaded)];
        for failures in [vec![refused(Refusal::Unauthorized)], twice().into()] {
            let attempts = failures.len();
            let what = format!("{first}, {attempts} attempts");
            let rig = rig(&[first, spare], |gateway| gateway["retry"] = json!({"max_attempts": 2})).await;
            // What the first model thought and did before is no riddle to the second.
            let step = Reply::new().thinking("A note.").text("A moment.").notes("a", "1").notes("b", "2");
            rig.provider.enqueue(step);
            rig.provider.enqueue_all(failures);
            rig.provider
                .enqueue_all([Reply::new().thinking("Mine.").notes("c", "3"), Reply::of_text("Done.")]);
            let events = rig.engine.tell_with(&thoughtful("Note it.")).await;
            assert_eq!(completed(&events), "Done.", "{what}");
            assert_eq!(phases(&events), ["started", "completed"], "{what}");
            let name = |name: &str| model(&rig.provider, name)["model"].as_str().unwrap().to_owned();
            assert_eq!(usage(&events)["model"], json!(name(spare)), "{what}");
            let expected = [vec![name(first); 1 + attempts], vec![name(spare); 2]].concat();
            assert_eq!(asked(&rig), expected, "{what}");

            // For a while the next turns ask it first.
            rig.provider.enqueue(Reply::of_text("Again."));
            let events = rig.engine.tell_with(&thoughtful("And now?")).await;
            assert_eq!(usage(&events)["model"], json!(name(spare)), "{what}");
            rig.provider.assert_no_refusals();
        }
    }
}

#[tokio::test]
async fn where_all_models_fail_the_error_says_what_each_of_them_said() {
    let rig = rig(&["anthropic", "responses", "ollama"], |_| {}).await;
    rig.provider.enqueue_all([
        refused(Refusal::Unauthorized),
        refused(Refusal::QuotaExhausted),
        refused(Refusal::UnknownModel),
    ]);
    let events = rig.engine.execute("task", "Hello!").await.rest().await;
    let error = errored(&events);
    let said = error["message"].as_str().unwrap();
    for name in ["anthropic: ", "responses: ", "ollama: "] {
        assert!(said.contains(name), "{said}");
    }
    assert!(!error.to_string().contains("_API_KEY"), "no key is shown: {error}");
    assert_eq!(rig.calls(), 3);
    rig.provider.enqueue(Reply::of_text("Hello."));
    assert_eq!(completed(&rig.engine.tell("task", "Hello?").await), "Hello.");
}

/// What a call used, of the prompt nothing from a cache.
fn used(input: u64, output: u64) -> Usage {
    Usage { input: Some(input), output: Some(output), ..Usage::default() }
}

#[tokio::test]
async fn a_budget_ends_a_turn_well_and_the_next_one_begins_anew() {
    for name in MODELS {
        let budget = |gateway: &mut Value| gateway["budgets"] = json!({"tokens_per_turn": 20_000});
        let rig = rig(&[name], budget).await;
        rig.provider.enqueue_all([
            Reply::new().text("A moment.").notes("a", "1").usage(used(10_000, 100)),
            Reply::of_text("Here I am."),
        ]);
        // Another prompt of ten thousand tokens is more than is left.
        let events = rig.engine.tell("task", "Note it.").await;
        assert_eq!(events.last().unwrap().data["stop_reason"], "budget", "{name}");
        assert_eq!((of_kind(&events, "tool_result").len(), rig.calls()), (1, 1), "{name}");

        let events = rig.engine.tell("task", "Are you there?").await;
        assert_eq!((completed(&events), rig.calls()), ("Here I am.", 2), "{name}");
        assert_eq!(events.last().unwrap().data["stop_reason"], "end_turn", "{name}");
        rig.provider.assert_no_refusals();
    }
}

/// Asserts that two sums of money are the same.
#[track_caller]
fn assert_costs(usage: &Value, expected: f64) {
    let told = usage["cost_usd"].as_f64().unwrap_or_else(|| panic!("no costs in {usage}"));
    assert!((told - expected).abs() < 1e-9, "{told} in place of {expected}");
}

#[tokio::test]
async fn a_turn_costs_what_its_models_cost() {
    let million = 1e6;
    let prices = |gateway: &mut Value| {
        gateway["models"]["anthropic"]["prices"] =
            json!({"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75});
        gateway["models"]["openai"]["prices"] = json!({"input": 1.25, "output": 10});
    };
    let rig = rig(&["anthropic", "openai"], prices).await;
    rig.provider.enqueue_all([
        Reply::new().notes("a", "1").usage(Usage { cache_read: 7_000, cache_write: 501, ..used(1_234, 567) }),
        Reply::new().notes("b", "2").usage(Usage { cache_read: 8_001, ..used(89, 77) }),
        refused(Refusal::Forbidden),
        Reply::of_text("Done.").usage(Usage { cache_read: 1_000, ..used(2_345, 678) }),
        Reply::of_text("Again.").usage(used(1, 1)),
    ]);
    let events = rig.engine.tell("task", "Note it.").await;
    let first = (1_234.0 * 3.0 + 567.0 * 15.0 + 7_000.0 * 0.3 + 501.0 * 3.75) / million;
    let second = (89.0 * 3.0 + 77.0 * 15.0 + 8_001.0 * 0.3) / million;
    // Without a price of its own what a cache served costs as much as the rest.
    let third = (3_345.0 * 1.25 + 678.0 * 10.0) / million;
    let told: Vec<&Value> = of_kind(&events, "usage").into_iter().map(|event| &event.data).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert_costs(told[0], first);
    assert_costs(told[1], first + second);
    assert_costs(told[2], first + second + third);
    assert_eq!(told[2]["input_tokens"], 1_234 + 7_000 + 501 + 89 + 8_001 + 3_345);
    // Each turn is a bill of its own.
    assert_costs(usage(&rig.engine.tell("task", "Again!").await), (1.25 + 10.0) / million);
}

const FINDER: &str =
    "---\ndescription: Finds things.\nmax_turns: 5\n---\nYou find things, and write down where.\n";
/// What the sub-agent answers.
const FOUND: &str = "The key is under the mat, as ever.";

/// What the planner says.
fn plan() -> Value {
    json!({"agent": "finder", "steps": ["Look under the mat."]})
}

/// An engine whose catalog has an agent, which edits a file, and whose last answer is held in its middle.
async fn rig_with_finder(model: &str, gate: &Gate) -> Rig {
    let with_agent = |place: &LoneEngine| {
        let agents = place.home.path().join("catalog/agents");
        fs::create_dir(&agents).unwrap();
        fs::write(agents.join("finder.md"), FINDER).unwrap();
        fs::create_dir_all(place.workspace()).unwrap();
        fs::write(place.workspace().join("list.txt"), "END").unwrap();
    };
    let rig = rig_with(&[model], |_| {}, with_agent).await;
    let look = json!({"agent": "finder", "task": "Find the key."});
    let edit = json!({"path": "list.txt", "old": "END", "new": "once END"});
    rig.provider.enqueue_all([
        Reply::of_text(plan().to_string()),
        Reply::new().text("Let me see.").tool_use("run_agent", look),
        Reply::new().text("I look.").tool_use("edit_file", edit).notes("mat", "looked under"),
        Reply::of_text(FOUND).chars_per_delta(4).hold(3, gate),
    ]);
    rig
}

/// The sub-agent's events of a type, as its own.
fn of_agent<'a>(events: &'a [Event], kind: &str) -> Vec<&'a Value> {
    let agents = of_kind(events, "agent_event").into_iter().map(|event| &event.data);
    agents.filter(|data| data["event"] == kind).map(|data| &data["data"]).collect()
}

/// Asserts that a turn tells its plan, what its sub-agent did, once, and what came of it.
#[track_caller]
fn assert_delegated(events: &[Event], model: &str) {
    assert_eq!(completed(events), "Under the mat.", "{model}");
    let planned = of_kind(events, "working_memory_update")[0];
    assert_eq!((&planned.data["key"], &planned.data["value"]), (&json!("plan"), &plan()), "{model}");
    assert_eq!(shown(events, "text_delta"), "Let me see.Under the mat.", "{model}");
    let own = of_kind(events, "tool_result");
    assert_eq!((own.len(), &own[0].data["output"]), (1, &json!(FOUND)), "{model}");
    for event in of_kind(events, "agent_event") {
        let of = (&event.data["agent"], &event.data["tool_call_id"]);
        assert_eq!(of, (&json!("finder"), &own[0].data["tool_call_id"]), "{model}");
    }
    let texts: String =
        of_agent(events, "text_delta").iter().map(|data| data["text"].as_str().unwrap()).collect();
    assert_eq!(texts, format!("I look.{FOUND}"), "{model}");
    for kind in ["tool_call", "tool_result"] {
        let mut tools: Vec<&str> =
            of_agent(events, kind).iter().map(|data| data["tool"].as_str().unwrap()).collect();
        tools.sort_unstable();
        assert_eq!(tools, ["edit_file", "working_memory_set"], "{model}: each {kind} comes once");
    }
}

/// An engine that was killed in the middle of its sub-agent's answer and started again, and what a client saw before.
/// The answer, which is asked for again, is now `answer`.
async fn killed_in_its_agent(model: &str, answer: &str) -> (Rig, Vec<Event>) {
    let gate = Gate::new();
    let rig = rig_with_finder(model, &gate).await;
    let body = json!({"task_id": "task", "message": "Where is the key?"});
    // Whom its sub-agent needs, the turn asks.
    let (mut stream, _) = rig.engine.until_asked(&body).await;
    rig.engine.respond("task", "yes").await.ok("status:text request_id:hitl");
    let in_its_answer = |event: &Event| event.data["data"]["text"] == FOUND[..4];
    stream.until("the beginning of the sub-agent's answer", in_its_answer).await;
    reached(&gate).await;
    rig.provider.enqueue_all([answer, "Under the mat."].map(Reply::of_text));
    (rig.kill_and_start().await, stream.seen)
}

#[tokio::test]
async fn a_sub_agent_that_says_something_else_after_a_kill_takes_back_what_it_said() {
    let (rig, _) = killed_in_its_agent("anthropic", "Nowhere.").await;
    let events = rig.engine.replay("task", 0).await.rest().await;
    assert_eq!(
        (completed(&events), phases(&events)),
        ("Under the mat.", vec!["started", "resumed", "completed"])
    );
    let retrying = of_agent(&events, "thread_lifecycle");
    assert_eq!(retrying.len(), 1, "{retrying:?}");
    let void_after = retrying[0]["void_after"].as_i64().unwrap();
    let at = events.iter().position(|event| event.data["data"]["phase"] == "retrying").unwrap();
    let shown = |event: &&Event| event.data["event"] == "text_delta";
    let before = events[..at].iter().filter(shown).filter(|event| event.ts() <= void_after);
    let texts = before.chain(events[at..].iter().filter(shown));
    let texts: String = texts.map(|event| event.data["data"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, "I look.Nowhere.");
}

#[tokio::test]
async fn a_sub_agent_that_was_planned_for_outlives_a_kill_in_its_midst() {
    for name in MODELS {
        let (rig, seen) = killed_in_its_agent(name, FOUND).await;
        let events = rig.engine.replay("task", 0).await.rest().await;
        assert_delegated(&events, name);
        assert_eq!(events[..seen.len()], seen, "{name}: what was seen before has its place");
        let list = fs::read_to_string(rig.place.workspace().join("list.txt")).unwrap();
        assert_eq!((list.as_str(), rig.calls()), ("once END", 6), "{name}: one answer was asked for twice");
        assert_eq!(rig.engine.replay("task", 0).await.rest().await, events, "{name}");
        let messages = json!(rig.engine.messages("task").await).to_string();
        assert!(!messages.contains("I look."), "{name}: a sub-agent's words are not the agent's: {messages}");
        rig.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn a_conversation_that_is_too_long_for_the_model_is_shortened_and_nothing_is_lost() {
    for name in MODELS {
        let rig = rig(&[name], |_| {}).await;
        let long = "All this I have to tell you. ".repeat(400);
        let mut turns = Vec::new();
        for number in 0..6 {
            rig.provider.enqueue(Reply::new().thinking("I see.").text(format!("Answer {number}.")));
            turns.push(rig.engine.tell_with(&thoughtful(&format!("Question {number}. {long}"))).await);
        }
        let before = rig.engine.messages("task").await;
        rig.provider.enqueue_all([
            refused(Refusal::PromptTooLong),
            Reply::of_text("Many questions were asked."),
            Reply::of_text("Forty-two."),
        ]);
        let events = rig.engine.tell_with(&thoughtful("And now?")).await;
        assert_eq!(completed(&events), "Forty-two.", "{name}");
        let [compaction] = of_kind(&events, "compaction_event")[..] else { panic!("{name}: {events:#?}") };
        let tokens = |field: &str| compaction.data[field].as_u64().unwrap();
        assert_eq!(compaction.data["reason"], "reactive", "{name}");
        assert!(tokens("messages_collapsed") > 0, "{name}: {compaction:?}");
        assert!(tokens("tokens_after") * 10 <= tokens("tokens_before") * 8, "{name}: {compaction:?}");
        let last = sent(rig.provider.requests().last().unwrap());
        assert!(last.contains("Many questions were asked.") && last.contains("And now?"), "{name}: {last}");
        assert!(!last.contains("Question 0."), "{name}: {last}");

        // It is only not sent.
        let rig = rig.kill_and_start().await;
        let after = rig.engine.messages("task").await;
        assert_eq!((&after[..before.len()], after.len()), (&before[..], 14), "{name}");
        rig.provider.enqueue(Reply::of_text("Something else, then."));
        let edit = with(message("task", "Anew?"), json!({"edit_message_id": message_id(&turns[0])}));
        assert_eq!(completed(&rig.engine.tell_with(&edit).await), "Something else, then.", "{name}");
        let last = sent(rig.provider.requests().last().unwrap());
        assert!(
            last.contains("Anew?") && !last.contains("Question") && !last.contains("Many questions"),
            "{last}"
        );
        let messages = rig.engine.messages("task").await;
        assert_eq!(said(&messages), [("user", "Anew?"), ("assistant", "Something else, then.")], "{name}");
        rig.provider.assert_no_refusals();
    }
}
