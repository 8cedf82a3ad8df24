//! Whole turns, as clients see them and as the provider receives them, over every protocol.

use std::sync::atomic::Ordering;

use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use mock_llm::{Gate, Reply, Stop, Usage, Wire};
use pretty_assertions::assert_eq;
use resources::memory_budget::MemoryUse;
use serde_json::{Value, json};
use store::testing::{read_all, read_until};
use testkit::{SseEvent, rendered_text, task_id, with_deadline};
use tools::{Invocation, Tool, ToolError, ToolStep};

use super::harness::{
    AgentHarness, GatedTool, WIRES, check_turn, final_text, streams_tool_input, transcript,
};
use super::*;
use crate::regressions::prompt_caches::assert_prefix;

fn tokens(input: u64, output: u64) -> Usage {
    Usage {
        input: Some(input),
        output: Some(output),
        cache_read: 7,
        cache_write: 0,
        reasoning: Some(3),
        withheld: false,
    }
}

/// The results in the last request: text and whether it is an error.
fn results(harness: &AgentHarness) -> Vec<(String, bool)> {
    let request = harness.last_request();
    let array = ["messages", "input", "contents"].into_iter().find_map(|name| request.body[name].as_array());
    let messages = array.unwrap();
    // If a protocol has no error flag, each result counts as an error.
    let texts = |is_result: fn(&Value) -> bool, text: &str| {
        let results = messages.iter().rev().take_while(|message| is_result(message));
        let mut all: Vec<_> =
            results.map(|message| (message[text].as_str().unwrap().to_owned(), true)).collect();
        all.reverse();
        all
    };
    match request.wire {
        Wire::AnthropicMessages => {
            let result = |block: &Value| {
                (block["content"].as_str().unwrap().to_owned(), block["is_error"].as_bool().unwrap())
            };
            messages.last().unwrap()["content"].as_array().unwrap().iter().map(result).collect()
        }
        Wire::OpenAiChat | Wire::Ollama => texts(|message| message["role"] == "tool", "content"),
        Wire::OpenAiResponses => texts(|item| item["type"] == "function_call_output", "output"),
        Wire::Gemini => {
            let result = |part: &Value| {
                let response = &part["functionResponse"]["response"];
                let text = response["output"].as_str().or(response["error"].as_str()).unwrap();
                (text.to_owned(), response["error"].is_string())
            };
            messages.last().unwrap()["parts"].as_array().unwrap().iter().map(result).collect()
        }
    }
}

#[tokio::test]
async fn a_turn_with_thinking_text_and_parallel_tools() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        std::fs::create_dir(harness.workspace()).unwrap();
        std::fs::write(harness.workspace().join("notes.txt"), "buy milk").unwrap();
        harness.provider.enqueue_all([
            Reply::new()
                .thinking("I keep the colour and read the notes.")
                .text("One moment.")
                .tool_use("working_memory_set", json!({"key": "colour", "value": "green"}))
                .usage(tokens(100, 20)),
            Reply::new().tool_use("read_file", json!({"path": "notes.txt"})).usage(tokens(150, 10)),
            Reply::from_text("Your notes say: buy milk.").usage(tokens(180, 8)),
        ]);
        let request = json!({"task_id": "t", "message": "my colour is green", "super_thinking": true});
        let events = harness.run(request).await;
        insta::assert_snapshot!(format!("turn_{wire:?}"), transcript(&events));
        assert_eq!(rendered_text(&events, true), "One moment.Your notes say: buy milk.");
        assert_eq!(results(&harness)[0].0, "buy milk");
        assert_eq!(harness.replay(0).await, events);
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn parallel_calls_run_at_once_and_are_answered_in_their_order() {
    for wire in WIRES {
        let gated = GatedTool::new(true);
        let harness = AgentHarness::with_tools(wire, vec![gated.clone()]).await;
        harness.provider.enqueue_all([
            Reply::new()
                .tool_use("gated", json!({}))
                .tool_use("list_files", json!({"path": "."}))
                .tool_use("gated", json!({})),
            Reply::from_text("all three"),
        ]);
        let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
        // The second call ends while the first and the third are still running.
        gated.wait_for_runs(2).await;
        let mut events = read_until(&mut reader, |event| event.kind == "tool_result").await;
        assert_eq!(events.last().unwrap().data["tool"], "list_files");
        gated.may_end.add_permits(2);
        events.extend(read_all(reader).await);
        assert_eq!(check_turn(&events), Ok(()));
        let texts: Vec<String> = results(&harness).into_iter().map(|(text, _)| text).collect();
        assert_eq!(texts, ["let go", "(empty)", "let go"]);
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn eight_calls_of_an_answer_run_at_once_and_the_others_begin_as_those_end() {
    let gated = GatedTool::new(true);
    let harness = AgentHarness::with_tools(WIRES[0], vec![gated.clone()]).await;
    let calls =
        (0..20).fold(Reply::new(), |reply, number| reply.tool_use("gated", json!({"number": number})));
    harness.provider.enqueue_all([calls, Reply::from_text("all twenty")]);
    let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    gated.wait_for_runs(8).await;
    gated.may_end.add_permits(1);
    let mut events = read_until(&mut reader, |event| event.kind == "tool_result").await;
    gated.wait_for_runs(9).await;
    // A call that has not begun is not announced: after a crash it cannot be mistaken for one that may have
    // run.
    let call_count = |events: &[SseEvent]| events.iter().filter(|event| event.kind == "tool_call").count();
    assert!((8..=9).contains(&call_count(&events)), "{events:#?}");
    gated.may_end.add_permits(19);
    events.extend(read_all(reader).await);
    assert_eq!((check_turn(&events), call_count(&events), results(&harness).len()), (Ok(()), 20, 20));
}

/// A tool that breaks its promise not to panic.
struct Crashing;

impl Tool for Crashing {
    fn spec(&self) -> ToolSpec {
        let input_schema = json!({"type": "object", "properties": {}});
        ToolSpec { name: "crashing".into(), description: "Crashes.".into(), input_schema }
    }

    fn idempotent(&self) -> bool {
        false
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn run(&self, _: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async { panic!("on purpose") })
    }
}

#[tokio::test]
async fn calls_that_cannot_run_tell_the_model_why_and_the_turn_goes_on() {
    for wire in WIRES.into_iter().filter(|wire| streams_tool_input(*wire)) {
        for (call, reason) in [
            (Reply::new().tool_use("fly", json!({})), "there is no tool called `fly`"),
            (Reply::new().tool_use("crashing", json!({})), "the tool crashed"),
            (Reply::new().tool_use("read_file", json!({})), "at `/`: \"path\" is a required property"),
            (Reply::new().tool_use("read_file", json!({"path": "../x"})), "leads out of the workspace"),
            (
                Reply::new().truncated_tool_use("gated", "{\"a\": [1,").stop(Stop::ToolUse),
                "was not valid JSON",
            ),
            (Reply::new().truncated_tool_use("gated", "[]").stop(Stop::ToolUse), "was not a JSON object"),
            (Reply::new().truncated_tool_use("gated", "{\"a\": ").stop(Stop::MaxTokens), "not run"),
            // Complete by chance: it is still unknown whether the model had finished it.
            (Reply::new().tool_use("gated", json!({})).stop(Stop::MaxTokens), "cut off inside this call"),
        ] {
            let gated = GatedTool::new(true);
            let harness = AgentHarness::with_tools(wire, vec![gated.clone(), Arc::new(Crashing)]).await;
            harness.provider.enqueue_all([call, Reply::from_text("I see.")]);
            let events = harness.send("go").await;
            assert_eq!(final_text(&events), "I see.");
            let result = events.iter().find(|event| event.kind == "tool_result").unwrap();
            let error = result.data["error"].as_str().unwrap();
            assert!(error.contains(reason), "{reason}: {error}");
            assert_eq!(results(&harness), [(error.to_owned(), true)]);
            assert_eq!(gated.runs.load(Ordering::Acquire), 0);
            harness.provider.assert_no_refusals();
        }
    }
}

#[tokio::test]
async fn a_cut_answer_runs_the_calls_before_the_cut() {
    for wire in WIRES.into_iter().filter(|wire| streams_tool_input(*wire)) {
        let harness = AgentHarness::new(wire).await;
        harness.provider.enqueue_all([
            Reply::new()
                .tool_use("list_files", json!({"path": "."}))
                .truncated_tool_use("list_files", "{\"path\": \".")
                .stop(Stop::MaxTokens),
            Reply::from_text("ok"),
        ]);
        assert_eq!(final_text(&harness.send("go").await), "ok");
        let sent = results(&harness);
        assert_eq!(sent[0].0, "(empty)");
        assert!(sent[1].0.contains("not run"), "{sent:?}");
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn over_a_whole_task_each_request_has_the_one_before_as_its_prefix() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        for turn in 0..6 {
            harness.provider.enqueue_all([
                Reply::new()
                    .thinking(format!("turn {turn}"))
                    .text("\n\n")
                    .tool_use("working_memory_set", json!({"key": "n", "value": turn})),
                Reply::new().text(format!("answer {turn}")).tool_use("list_files", json!({"path": "."})),
                Reply::new().thinking("done").text(format!("That was {turn}. ")),
            ]);
            let request =
                json!({"task_id": "t", "message": format!("turn {turn} \u{1F600}"), "super_thinking": true});
            harness.run(request).await;
        }
        assert_eq!(harness.provider.requests().len(), 18);
        for pair in harness.provider.requests().windows(2) {
            assert_prefix(&pair[0], &pair[1]);
        }
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn an_answer_of_nothing_leaves_a_history_that_the_provider_takes() {
    for wire in WIRES {
        let harness = AgentHarness::new(wire).await;
        let list_files = || Reply::new().tool_use("list_files", json!({"path": "."}));
        // After an earlier step, an empty answer means that nothing is left to do.
        harness.provider.enqueue_all([
            list_files(),
            Reply::new(),
            list_files(),
            Reply::from_text(" \n"),
            Reply::from_text("now"),
        ]);
        assert_eq!(final_text(&harness.send("one").await), "");
        assert_eq!(final_text(&harness.send("two").await), " \n");
        assert_eq!(final_text(&harness.send("three").await), "now");
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn one_turn_runs_per_task_and_tasks_run_side_by_side() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let gate = Gate::new();
    harness.provider.enqueue(Reply::from_text("slow").hold(0, &gate));
    let reader = harness.begin(json!({"task_id": "t", "message": "one"})).await.unwrap();
    gate.reached().await;
    let second = harness.begin(json!({"task_id": "t", "message": "two"})).await;
    assert!(matches!(second, Err(AgentError::TaskBusy)));
    let other = harness.run(json!({"task_id": "other", "message": "three"})).await;
    assert_eq!(final_text(&other), "three");
    gate.release();
    let events = read_all(reader).await;
    assert_eq!(final_text(&events), "slow");
    // The task is free as soon as the end of its turn is visible.
    assert_eq!(final_text(&harness.send("four").await), "four");
}

#[tokio::test]
async fn a_turn_goes_on_without_its_client_and_a_replay_gives_exactly_the_rest() {
    let harness = AgentHarness::new(Wire::OpenAiChat).await;
    let gate = Gate::new();
    harness.provider.enqueue(Reply::from_text("one two three four").deltas(8).hold(4, &gate));
    let mut reader = harness.begin(json!({"task_id": "t", "message": "go"})).await.unwrap();
    let seen = read_until(&mut reader, |event| event.kind == "text_delta").await;
    drop(reader);
    gate.reached().await;
    let after = seen.last().unwrap().ts();
    let live = harness.agent.replay(None, after).unwrap();
    gate.release();
    let rest = read_all(live).await;
    assert_eq!(harness.replay(after).await, rest);
    let all: Vec<SseEvent> = seen.into_iter().chain(rest).collect();
    assert_eq!(harness.replay(0).await, all);
    assert_eq!(check_turn(&all), Ok(()));
    assert_eq!(rendered_text(&all, true), "one two three four");
}

#[tokio::test]
async fn a_caller_that_hangs_up_before_it_is_answered_still_has_its_turn() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let request = serde_json::from_value(json!({"task_id": "t", "message": "go"})).unwrap();
    {
        let mut execute = std::pin::pin!(harness.agent.execute(request));
        assert!(futures::poll!(execute.as_mut()).is_pending());
    }
    harness.provider.wait_for_requests(1).await;
    assert_eq!(final_text(&harness.replay(0).await), "go");
}

#[tokio::test]
async fn the_cap_on_model_calls_ends_a_turn_well_with_its_calls_answered() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.provider.set_default_reply(Reply::new().text("on").tool_use("list_files", json!({"path": "."})));
    let events = harness.run(json!({"task_id": "t", "message": "loop", "max_turns": 3})).await;
    assert_eq!(events.last().unwrap().data["stop_reason"], "max_turns");
    assert_eq!(final_text(&events), "on");
    assert_eq!(harness.provider.requests().len(), 3);
    harness.provider.set_default_reply(Reply::echo());
    assert_eq!(final_text(&harness.send("and now?").await), "and now?");
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_name_and_begins_nothing() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let sound = json!([{"type": "document", "media_type": "audio/wav", "data": "aGk="}]);
    for (field, fields) in [
        ("message", json!({"message": ""})),
        ("message", json!({"message": " \n\t"})),
        ("message", json!({"message": "", "edit_message_id": "msg_1"})),
        ("edit_message_id", json!({"edit_message_id": "msg_1", "retry_message_id": "msg_1"})),
        ("media", json!({"retry_message_id": "msg_1", "media": [{"type": "text", "text": "x"}]})),
        ("media[0]", json!({"media": sound})),
    ] {
        let mut request = json!({"task_id": "t", "message": "hi"});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let Err(AgentError::Invalid(message)) = harness.begin(request).await else { panic!("{field}") };
        assert!(message.starts_with(&format!("`{field}`")), "{message}");
    }
    let edit = json!({"task_id": "t", "message": "hi", "edit_message_id": "msg_1"});
    assert!(matches!(harness.begin(edit).await, Err(AgentError::UnknownTask)));
    assert!(matches!(harness.agent.replay(Some(task_id("t")), 0), Err(AgentError::UnknownTask)));
    assert!(matches!(harness.agent.replay(None, 0), Err(AgentError::UnknownTask)));
}

#[tokio::test]
async fn a_stopping_agent_begins_nothing() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.agent.stop(Duration::from_secs(5)).await;
    let refused = harness.begin(json!({"task_id": "t", "message": "hi"})).await;
    assert!(matches!(refused, Err(AgentError::Stopping)));
    assert!(harness.brain.last_task().unwrap().is_none());
}

#[tokio::test]
async fn a_turn_whose_step_cannot_be_written_goes_on_when_it_can() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let connection = rusqlite::Connection::open(harness.brain.file()).unwrap();
    connection
        .execute_batch(
            "CREATE TRIGGER full BEFORE INSERT ON steps WHEN NEW.body LIKE '%answered%'
             BEGIN SELECT RAISE(ABORT, 'the disk is full'); END",
        )
        .unwrap();
    let mut reader = harness.begin(json!({"task_id": "t", "message": "kept"})).await.unwrap();
    let mut events = read_until(&mut reader, |event| event.phase() == Some("resumed")).await;
    connection.execute_batch("DROP TRIGGER full").unwrap();
    events.extend(read_all(reader).await);
    assert_eq!(check_turn(&events), Ok(()));
    assert_eq!(rendered_text(&events, false), "kept");
    assert_eq!(final_text(&events), "kept");
    assert!(harness.brain.open_turns().unwrap().is_empty());
    assert_eq!(harness.brain.check_health(), Ok(()));
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn a_turn_whose_step_can_never_be_written_ends_errored() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let connection = rusqlite::Connection::open(harness.brain.file()).unwrap();
    connection
        .execute_batch(
            "CREATE TRIGGER full BEFORE INSERT ON steps WHEN NEW.body LIKE '%answered%'
             BEGIN SELECT RAISE(ABORT, 'the disk is full'); END",
        )
        .unwrap();
    let events = harness.send("lost").await;
    assert_eq!(events.last().unwrap().data["code"], "INTERNAL_ERROR");
    assert!(harness.provider.requests().len() <= 10, "{}", harness.provider.requests().len());
    connection.execute_batch("DROP TRIGGER full").unwrap();
    assert_eq!(final_text(&harness.send("again").await), "again");
    harness.provider.assert_no_refusals();
}

#[test]
fn the_turn_check_goes_red() {
    let event = |kind: &str, data: Value| {
        let data = api::event::encode_sse(&task_id("t"), TurnId::new(), 1, kind, &data.to_string());
        testkit::parse_sse(data.as_bytes()).remove(0)
    };
    let message_id = MessageId::new();
    let started = event("thread_lifecycle", json!({"phase": "started", "message_id": message_id}));
    let errored = event("thread_lifecycle", json!({"phase": "errored", "message_id": message_id}));
    let error = event("error", json!({"code": "INTERNAL_ERROR", "message": "m", "retryable": false}));
    let start = |index: u32| event("content_block_start", json!({"index": index, "block_type": "text"}));
    let stop = |index: u32| event("content_block_stop", json!({"index": index}));
    let text = event("text_delta", json!({"text": "x"}));
    let thought = event("thinking_delta", json!({"text": "x"}));
    let call = json!({"tool_call_id": api::CallId::new(), "tool": "t", "input": {}});
    let call = event("tool_call", call);
    let turn_with = |middle: &[&SseEvent]| -> Vec<SseEvent> {
        [&started].into_iter().chain(middle.iter().copied()).chain([&errored, &error]).cloned().collect()
    };
    assert_eq!(check_turn(&turn_with(&[&start(0), &text, &stop(0)])), Ok(()));
    for middle in [
        vec![&text],
        vec![&start(0), &text],
        vec![&start(1), &stop(1)],
        vec![&start(0), &thought, &stop(0)],
        vec![&start(0), &stop(1)],
        vec![&call],
        vec![&error],
    ] {
        assert!(check_turn(&turn_with(&middle)).is_err(), "{middle:?}");
    }
    assert!(check_turn(&[started, error]).is_err());
}

#[tokio::test]
async fn a_turn_begins_while_every_other_read_of_the_brain_is_slow() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    let started = Arc::new(tokio::sync::Semaphore::new(0));
    let mut holds = Vec::new();
    for _ in 0..resources::threads::BRAIN_THREADS {
        let (hold, release) = std::sync::mpsc::channel::<()>();
        let (brain, started) = (harness.brain.clone(), Arc::clone(&started));
        holds.push(hold);
        tokio::spawn(async move {
            let slow = move |_: &Brain| {
                started.add_permits(1);
                let _ = release.recv();
            };
            brain.run_blocking(slow).await
        });
    }
    let all = u32::try_from(holds.len()).unwrap();
    drop(with_deadline(started.acquire_many(all)).await.unwrap());
    harness.begin(json!({"task_id": "t", "message": "hello"})).await.unwrap();
    // Only now can searches and lists end.
    drop(holds);
}

#[tokio::test]
async fn a_turn_whose_media_find_no_memory_waits_for_it() {
    let harness = AgentHarness::new(Wire::AnthropicMessages).await;
    harness.provider.enqueue(Reply::from_text("seen"));
    let all_memory =
        harness.agent.services.memory_budget.reserve(MemoryUse::Media, usize::MAX).await.unwrap();
    let image = json!({"type": "image", "media_type": "image/png", "data": "AAAA".repeat(100 << 10)});
    let request = json!({"task_id": "t", "message": "look", "media": [image]});
    let reader = harness.begin(request).await.unwrap();
    // Longer than a single wait for memory lasts.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_mins(2)).await;
    tokio::time::resume();
    drop(all_memory);
    assert_eq!(final_text(&read_all(reader).await), "seen");
}
