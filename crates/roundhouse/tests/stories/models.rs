//! Story 40: the catalog configures the models of an engine. The engine speaks each vendor's protocol, falls back
//! to another model, keeps to its budgets, delegates to sub-agents, and compacts long conversations.

use std::fs;

use mock_llm::{CapturedRequest, Fault, Gate, MockProvider, Refusal, Reply, Usage, Wire};
use serde_json::{Value, json};

use crate::support::engine_calls::{direct_message, message_id, roles_and_texts, with_fields};
use crate::support::engine_fixture::{ReplyExt as _, wait_gate_reached};
use crate::support::turn::{assert_completed, assert_errored, memory_values, of_kind, phases, visible_text};
use crate::support::{EngineFixture, Event, StandaloneEngine};

/// The names of the catalog's models, one for each wire.
const MODELS: [&str; Wire::COUNT] = ["anthropic", "openai", "responses", "gemini", "ollama"];

/// A model's entry in `gateway.json`.
fn model(provider: &MockProvider, name: &str) -> Value {
    let (vendor, base, model) = match name {
        "anthropic" => (name, provider.base_url(), "claude-sonnet-4-5"),
        "openai" | "responses" => ("openai", provider.openai_base_url(), "gpt-5"),
        // The vendor refuses this model's tool calls if they are sent back without their signatures.
        "gemini" => (name, provider.gemini_base_url(), "gemini-3-pro"),
        "ollama" => (name, provider.ollama_base_url(), "qwen3"),
        _ => panic!("no model has the name {name:?}"),
    };
    let mut model = json!({"provider": vendor, "model": model, "base_url": base, "context_window": 200_000});
    if name == "responses" {
        model["api"] = "responses".into();
        model["model"] = "gpt-5-mini".into();
    }
    model
}

/// An engine whose catalog has these models, the first of them as the default; `more` edits its `gateway.json`.
async fn new_fixture(models: &[&str], more: impl FnOnce(&mut Value)) -> EngineFixture {
    fixture_with(models, more, |_| {}).await
}

/// As [`new_fixture`]; `prepare` edits the setup before the engine starts.
async fn fixture_with(
    models: &[&str],
    more: impl FnOnce(&mut Value),
    prepare: impl FnOnce(&StandaloneEngine),
) -> EngineFixture {
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    let mut gateway = json!({"models": {}, "default": models[0], "fallbacks": models[1..]});
    for name in models {
        gateway["models"][name] = model(&provider, name);
    }
    more(&mut gateway);
    let keys = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"];
    let setup =
        keys.into_iter().fold(StandaloneEngine::new(), |setup, key| setup.with_env(key, format!("of {key}")));
    fs::write(setup.test_env.path().join("catalog/gateway.json"), gateway.to_string()).unwrap();
    prepare(&setup);
    let (program, engine) = setup.start().await;
    EngineFixture { provider, setup, program, engine }
}

fn refused(refusal: Refusal) -> Reply {
    Reply::from_fault(Fault::refuse(refusal))
}

/// A direct message that asks for thinking.
fn thinking_message(text: &str) -> Value {
    with_fields(direct_message("task", text), json!({"super_thinking": true}))
}

fn raw_text(request: &CapturedRequest) -> String {
    String::from_utf8(request.raw.to_vec()).unwrap()
}

/// The models of the provider's requests, in order.
fn requested_models(fixture: &EngineFixture) -> Vec<String> {
    fixture.provider.requests().into_iter().map(|request| request.model).collect()
}

/// The data of a turn's last `usage` event.
fn usage(events: &[Event]) -> &Value {
    &of_kind(events, "usage").last().expect("a turn has a usage event").data
}

#[tokio::test]
async fn a_turn_thinks_speaks_and_acts_over_each_wire() {
    for name in MODELS {
        let fixture = new_fixture(&[name], |_| {}).await;
        fixture.provider.enqueue_all([
            Reply::new().thinking("Two notes.").text("A moment.").memory_set("a", "1").memory_set("b", "2"),
            Reply::new().thinking("That is all.").text("Noted."),
            Reply::new().thinking("Another one.").text("Sure.").memory_set("c", "3"),
            Reply::from_text("Also noted."),
        ]);
        let first = fixture.engine.run_turn_with(&thinking_message("Note two things.")).await;
        assert_eq!(assert_completed(&first), "Noted.", "{name}");
        assert_eq!(visible_text(&first, "text_delta"), "A moment.Noted.", "{name}");
        let thoughts = match name {
            // Chat Completions does not return a model's thinking.
            "openai" => "",
            "anthropic" | "responses" | "gemini" | "ollama" => "Two notes.That is all.",
            _ => panic!("does the wire of {name:?} return a model's thinking?"),
        };
        assert_eq!(visible_text(&first, "thinking_delta"), thoughts, "{name}");
        let inputs: Vec<&Value> =
            of_kind(&first, "tool_call").iter().map(|call| &call.data["input"]).collect();
        assert_eq!(
            inputs,
            [&json!({"key": "a", "value": "1"}), &json!({"key": "b", "value": "2"})],
            "{name}"
        );
        assert_eq!(of_kind(&first, "tool_result").len(), 2, "{name}");
        assert!(usage(&first)["input_tokens"].as_u64() > Some(0), "{name}");

        let second = fixture.engine.run_turn_with(&thinking_message("And a third.")).await;
        assert_eq!((assert_completed(&second), fixture.model_calls()), ("Also noted.", 4), "{name}");
        let last = raw_text(&fixture.provider.requests()[3]);
        for words in ["Note two things.", "A moment.", "Noted.", "And a third.", "Sure."] {
            assert!(last.contains(words), "{name}: no {words:?} in {last}");
        }
        let replayed = fixture.engine.replay("task", 0).await.collect().await;
        assert_eq!(replayed, [first, second].concat(), "{name}");
        fixture.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn a_key_is_that_of_the_models_own_vendor() {
    for name in MODELS {
        let key = match name {
            "anthropic" => Some("of ANTHROPIC_API_KEY"),
            "openai" | "responses" => Some("of OPENAI_API_KEY"),
            "gemini" => Some("of GEMINI_API_KEY"),
            "ollama" => None,
            _ => panic!("which key has {name:?}?"),
        };
        let fixture = new_fixture(&[name], |_| {}).await;
        fixture.engine.run_turn("task", "Hello!").await;
        assert_eq!(fixture.provider.requests()[0].api_key(), key, "{name}");
    }
}

#[tokio::test]
async fn another_model_answers_where_one_fails_for_good() {
    for first in MODELS {
        let fallback = if first == "gemini" { "responses" } else { "gemini" };
        let overloaded_twice = || [refused(Refusal::Overloaded), refused(Refusal::Overloaded)];
        for failures in [vec![refused(Refusal::Unauthorized)], overloaded_twice().into()] {
            let attempts = failures.len();
            let what = format!("{first}, {attempts} attempts");
            let fixture =
                new_fixture(&[first, fallback], |gateway| gateway["retry"] = json!({"max_attempts": 2}))
                    .await;
            // The second model can continue from the first model's thinking and tool calls.
            let step =
                Reply::new().thinking("A note.").text("A moment.").memory_set("a", "1").memory_set("b", "2");
            fixture.provider.enqueue(step);
            fixture.provider.enqueue_all(failures);
            fixture.provider.enqueue_all([
                Reply::new().thinking("Mine.").memory_set("c", "3"),
                Reply::from_text("Done."),
            ]);
            let events = fixture.engine.run_turn_with(&thinking_message("Note it.")).await;
            assert_eq!(assert_completed(&events), "Done.", "{what}");
            assert_eq!(phases(&events), ["started", "completed"], "{what}");
            let name = |name: &str| model(&fixture.provider, name)["model"].as_str().unwrap().to_owned();
            assert_eq!(usage(&events)["model"], json!(name(fallback)), "{what}");
            let expected = [vec![name(first); 1 + attempts], vec![name(fallback); 2]].concat();
            assert_eq!(requested_models(&fixture), expected, "{what}");

            // For a while the next turns use the fallback first.
            fixture.provider.enqueue(Reply::from_text("Again."));
            let events = fixture.engine.run_turn_with(&thinking_message("And now?")).await;
            assert_eq!(usage(&events)["model"], json!(name(fallback)), "{what}");
            fixture.provider.assert_no_refusals();
        }
    }
}

#[tokio::test]
async fn where_all_models_fail_the_error_says_what_each_of_them_said() {
    let fixture = new_fixture(&["anthropic", "responses", "ollama"], |_| {}).await;
    fixture.provider.enqueue_all([
        refused(Refusal::Unauthorized),
        refused(Refusal::QuotaExhausted),
        refused(Refusal::UnknownModel),
    ]);
    let events = fixture.engine.execute("task", "Hello!").await.collect().await;
    let error = assert_errored(&events);
    let message = error["message"].as_str().unwrap();
    for name in ["anthropic: ", "responses: ", "ollama: "] {
        assert!(message.contains(name), "{message}");
    }
    assert!(!error.to_string().contains("_API_KEY"), "no key is shown: {error}");
    assert_eq!(fixture.model_calls(), 3);
    fixture.provider.enqueue(Reply::from_text("Hello."));
    assert_eq!(assert_completed(&fixture.engine.run_turn("task", "Hello?").await), "Hello.");
}

/// The usage of a call without cached tokens.
fn uncached_usage(input: u64, output: u64) -> Usage {
    Usage { input: Some(input), output: Some(output), ..Usage::default() }
}

#[tokio::test]
async fn a_budget_ends_a_turn_well_and_the_next_one_begins_anew() {
    for name in MODELS {
        let budget = |gateway: &mut Value| gateway["budgets"] = json!({"tokens_per_turn": 20_000});
        let fixture = new_fixture(&[name], budget).await;
        fixture.provider.enqueue_all([
            Reply::new().text("A moment.").memory_set("a", "1").usage(uncached_usage(10_000, 100)),
            Reply::from_text("Here I am."),
        ]);
        // Another prompt of 10,000 tokens exceeds what is left of the budget.
        let events = fixture.engine.run_turn("task", "Note it.").await;
        assert_eq!(events.last().unwrap().data["stop_reason"], "budget", "{name}");
        assert_eq!((of_kind(&events, "tool_result").len(), fixture.model_calls()), (1, 1), "{name}");

        let events = fixture.engine.run_turn("task", "Are you there?").await;
        assert_eq!((assert_completed(&events), fixture.model_calls()), ("Here I am.", 2), "{name}");
        assert_eq!(events.last().unwrap().data["stop_reason"], "end_turn", "{name}");
        fixture.provider.assert_no_refusals();
    }
}

/// Asserts that a `usage` event reports these costs.
#[track_caller]
fn assert_costs(usage: &Value, expected: f64) {
    let cost = usage["cost_usd"].as_f64().unwrap_or_else(|| panic!("no costs in {usage}"));
    assert!((cost - expected).abs() < 1e-9, "{cost} instead of {expected}");
}

#[tokio::test]
async fn a_turn_costs_what_its_models_cost() {
    let million = 1e6;
    let prices = |gateway: &mut Value| {
        gateway["models"]["anthropic"]["prices"] =
            json!({"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75});
        gateway["models"]["openai"]["prices"] = json!({"input": 1.25, "output": 10});
    };
    let fixture = new_fixture(&["anthropic", "openai"], prices).await;
    fixture.provider.enqueue_all([
        Reply::new().memory_set("a", "1").usage(Usage {
            cache_read: 7_000,
            cache_write: 501,
            ..uncached_usage(1_234, 567)
        }),
        Reply::new().memory_set("b", "2").usage(Usage { cache_read: 8_001, ..uncached_usage(89, 77) }),
        refused(Refusal::Forbidden),
        Reply::from_text("Done.").usage(Usage { cache_read: 1_000, ..uncached_usage(2_345, 678) }),
        Reply::from_text("Again.").usage(uncached_usage(1, 1)),
    ]);
    let events = fixture.engine.run_turn("task", "Note it.").await;
    let first = (1_234.0 * 3.0 + 567.0 * 15.0 + 7_000.0 * 0.3 + 501.0 * 3.75) / million;
    let second = (89.0 * 3.0 + 77.0 * 15.0 + 8_001.0 * 0.3) / million;
    // Without its own price, cached input costs as much as other input.
    let third = (3_345.0 * 1.25 + 678.0 * 10.0) / million;
    let reported: Vec<&Value> = of_kind(&events, "usage").into_iter().map(|event| &event.data).collect();
    assert_eq!(reported.len(), 3, "{reported:?}");
    assert_costs(reported[0], first);
    assert_costs(reported[1], first + second);
    assert_costs(reported[2], first + second + third);
    assert_eq!(reported[2]["input_tokens"], 1_234 + 7_000 + 501 + 89 + 8_001 + 3_345);
    // Costs are counted per turn.
    assert_costs(usage(&fixture.engine.run_turn("task", "Again!").await), (1.25 + 10.0) / million);
}

const FINDER: &str =
    "---\ndescription: Finds things.\nmax_turns: 5\n---\nYou find things, and write down where.\n";
/// The sub-agent's answer.
const FINDER_ANSWER: &str = "The key is under the mat, as ever.";

/// The planner's answer.
fn plan() -> Value {
    json!({"agent": "finder", "steps": ["Look under the mat."]})
}

/// An engine whose catalog has an agent `finder`. It edits a file, and its last answer is held in its middle.
async fn fixture_with_finder(model: &str, gate: &Gate) -> EngineFixture {
    let with_agent = |setup: &StandaloneEngine| {
        let agents = setup.test_env.path().join("catalog/agents");
        fs::create_dir(&agents).unwrap();
        fs::write(agents.join("finder.md"), FINDER).unwrap();
        fs::create_dir_all(setup.workspace()).unwrap();
        fs::write(setup.workspace().join("list.txt"), "END").unwrap();
    };
    let fixture = fixture_with(&[model], |_| {}, with_agent).await;
    let look = json!({"agent": "finder", "task": "Find the key."});
    let edit = json!({"path": "list.txt", "old": "END", "new": "once END"});
    fixture.provider.enqueue_all([
        Reply::from_text(plan().to_string()),
        Reply::new().text("Let me see.").tool_use("run_agent", look),
        Reply::new().text("I look.").tool_use("edit_file", edit).memory_set("mat", "looked under"),
        Reply::from_text(FINDER_ANSWER).chars_per_delta(4).hold(3, gate),
    ]);
    fixture
}

/// The data of the sub-agent's own events of one kind.
fn of_agent<'a>(events: &'a [Event], kind: &str) -> Vec<&'a Value> {
    let agents = of_kind(events, "agent_event").into_iter().map(|event| &event.data);
    agents.filter(|data| data["event"] == kind).map(|data| &data["data"]).collect()
}

/// Asserts that a turn reports its plan, its sub-agent's events (each once), and the sub-agent's result.
#[track_caller]
fn assert_delegated(events: &[Event], model: &str) {
    assert_eq!(assert_completed(events), "Under the mat.", "{model}");
    assert_eq!(memory_values(events, "plan"), [&plan()], "{model}");
    assert_eq!(visible_text(events, "text_delta"), "Let me see.Under the mat.", "{model}");
    let own = of_kind(events, "tool_result");
    assert_eq!((own.len(), &own[0].data["output"]), (1, &json!(FINDER_ANSWER)), "{model}");
    for event in of_kind(events, "agent_event") {
        let source = (&event.data["agent"], &event.data["tool_call_id"]);
        assert_eq!(source, (&json!("finder"), &own[0].data["tool_call_id"]), "{model}");
    }
    let texts: String =
        of_agent(events, "text_delta").iter().map(|data| data["text"].as_str().unwrap()).collect();
    assert_eq!(texts, format!("I look.{FINDER_ANSWER}"), "{model}");
    for kind in ["tool_call", "tool_result"] {
        let mut tools: Vec<&str> =
            of_agent(events, kind).iter().map(|data| data["tool"].as_str().unwrap()).collect();
        tools.sort_unstable();
        assert_eq!(tools, ["edit_file", "working_memory_set"], "{model}: each {kind} is sent once");
    }
}

/// An engine that was killed in the middle of its sub-agent's answer and restarted, and the events before that.
/// The repeated request is answered with `answer`.
async fn fixture_killed_in_sub_agent(model: &str, answer: &str) -> (EngineFixture, Vec<Event>) {
    let gate = Gate::new();
    let fixture = fixture_with_finder(model, &gate).await;
    let body = json!({"task_id": "task", "message": "Where is the key?"});
    // The sub-agent's question is asked in the turn.
    let (mut stream, _) = fixture.engine.run_until_hitl_request(&body).await;
    fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    let in_its_answer = |event: &Event| event.data["data"]["text"] == FINDER_ANSWER[..4];
    stream.read_until("the beginning of the sub-agent's answer", in_its_answer).await;
    wait_gate_reached(&gate).await;
    fixture.provider.enqueue_all([answer, "Under the mat."].map(Reply::from_text));
    (fixture.kill_and_start().await, stream.received)
}

#[tokio::test]
async fn a_sub_agent_that_says_something_else_after_a_kill_takes_back_what_it_said() {
    let (fixture, _) = fixture_killed_in_sub_agent("anthropic", "Nowhere.").await;
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(
        (assert_completed(&events), phases(&events)),
        ("Under the mat.", vec!["started", "resumed", "completed"])
    );
    let retrying = of_agent(&events, "thread_lifecycle");
    assert_eq!(retrying.len(), 1, "{retrying:?}");
    let void_after = retrying[0]["void_after"].as_i64().unwrap();
    let retry_index = events.iter().position(|event| event.data["data"]["phase"] == "retrying").unwrap();
    let is_text = |event: &&Event| event.data["event"] == "text_delta";
    let before = events[..retry_index].iter().filter(is_text).filter(|event| event.ts() <= void_after);
    let texts = before.chain(events[retry_index..].iter().filter(is_text));
    let texts: String = texts.map(|event| event.data["data"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, "I look.Nowhere.");
}

#[tokio::test]
async fn a_sub_agent_that_was_planned_for_outlives_a_kill_in_its_midst() {
    for name in MODELS {
        let (fixture, received) = fixture_killed_in_sub_agent(name, FINDER_ANSWER).await;
        let events = fixture.engine.replay("task", 0).await.collect().await;
        assert_delegated(&events, name);
        assert_eq!(events[..received.len()], received, "{name}: the events before the kill are unchanged");
        let list = fs::read_to_string(fixture.setup.workspace().join("list.txt")).unwrap();
        assert_eq!(
            (list.as_str(), fixture.model_calls()),
            ("once END", 6),
            "{name}: one answer was requested twice"
        );
        assert_eq!(fixture.engine.replay("task", 0).await.collect().await, events, "{name}");
        let messages = json!(fixture.engine.messages("task").await).to_string();
        assert!(
            !messages.contains("I look."),
            "{name}: the sub-agent's text is not among the messages: {messages}"
        );
        fixture.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn a_conversation_that_is_too_long_for_the_model_is_shortened_and_nothing_is_lost() {
    for name in MODELS {
        let fixture = new_fixture(&[name], |_| {}).await;
        let long = "All this I have to tell you. ".repeat(400);
        let mut turns = Vec::new();
        for number in 0..6 {
            fixture.provider.enqueue(Reply::new().thinking("I see.").text(format!("Answer {number}.")));
            turns.push(
                fixture.engine.run_turn_with(&thinking_message(&format!("Question {number}. {long}"))).await,
            );
        }
        let before = fixture.engine.messages("task").await;
        fixture.provider.enqueue_all([
            refused(Refusal::PromptTooLong),
            Reply::from_text("Many questions were asked."),
            Reply::from_text("Forty-two."),
        ]);
        let events = fixture.engine.run_turn_with(&thinking_message("And now?")).await;
        assert_eq!(assert_completed(&events), "Forty-two.", "{name}");
        let [compaction] = of_kind(&events, "compaction_event")[..] else { panic!("{name}: {events:#?}") };
        let tokens = |field: &str| compaction.data[field].as_u64().unwrap();
        assert_eq!(compaction.data["reason"], "reactive", "{name}");
        assert!(tokens("messages_collapsed") > 0, "{name}: {compaction:?}");
        assert!(tokens("tokens_after") * 10 <= tokens("tokens_before") * 8, "{name}: {compaction:?}");
        let last = raw_text(fixture.provider.requests().last().unwrap());
        assert!(last.contains("Many questions were asked.") && last.contains("And now?"), "{name}: {last}");
        assert!(!last.contains("Question 0."), "{name}: {last}");

        // The messages are still stored; they are only not sent.
        let fixture = fixture.kill_and_start().await;
        let after = fixture.engine.messages("task").await;
        assert_eq!((&after[..before.len()], after.len()), (&before[..], 14), "{name}");
        fixture.provider.enqueue(Reply::from_text("Something else, then."));
        let edit =
            with_fields(direct_message("task", "Anew?"), json!({"edit_message_id": message_id(&turns[0])}));
        assert_eq!(
            assert_completed(&fixture.engine.run_turn_with(&edit).await),
            "Something else, then.",
            "{name}"
        );
        let last = raw_text(fixture.provider.requests().last().unwrap());
        assert!(
            last.contains("Anew?") && !last.contains("Question") && !last.contains("Many questions"),
            "{last}"
        );
        let messages = fixture.engine.messages("task").await;
        assert_eq!(
            roles_and_texts(&messages),
            [("user", "Anew?"), ("assistant", "Something else, then.")],
            "{name}"
        );
        fixture.provider.assert_no_refusals();
    }
}
