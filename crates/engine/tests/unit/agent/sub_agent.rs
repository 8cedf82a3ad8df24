//! Sub-agents: their own prompt, tools, call limit and budget, within the calling turn and as durable as it.

use std::sync::atomic::Ordering;

use api::event::{AgentEvent, Event, Usage};
use catalog::AgentSpec;
use catalog::Permission;
use mock_llm::{CapturedRequest, Fault, Gate, Refusal, Reply, Wire};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use store::testing::{next_events, read_all, read_until};
use testkit::{SseEvent, task_id, with_deadline};
use tools::Tool;

use super::super::harness::{
    AgentHarness, GatedTool, WIRES, check_turn, failure, final_text, gateway_config,
};
use super::super::*;

const PROMPT: &str = "You find things.";

fn finder() -> AgentSpec {
    AgentSpec {
        name: "finder".into(),
        description: "Finds things.".into(),
        model: None,
        tools: None,
        max_turns: 5,
        max_tokens: None,
        prompt: PROMPT.into(),
    }
}

/// A harness with the agent and these tools.
async fn harness(wire: Wire, agent: AgentSpec, tools: Vec<Arc<dyn Tool>>) -> AgentHarness {
    let mut harness = AgentHarness::with_tools(wire, tools).await;
    harness.agents = vec![Arc::new(agent)];
    harness.restart().await;
    harness
}

fn execute_request() -> Value {
    json!({"task_id": "t", "message": "go", "direct": true})
}

fn run_agent(reply: Reply) -> Reply {
    reply.tool_use("run_agent", json!({"agent": "finder", "task": "Find the key."}))
}

/// The inner events of the sub-agent.
fn inner_events(events: &[SseEvent]) -> Vec<Event> {
    let agent = |event: &SseEvent| match event.event() {
        Event::AgentEvent(agent) => Some(agent),
        _ => None,
    };
    let agents: Vec<AgentEvent> = events.iter().filter_map(agent).collect();
    assert!(agents.iter().all(|event| event.agent == "finder"));
    agents.iter().map(|event| event.inner().unwrap()).collect()
}

fn inner_text(events: &[Event]) -> String {
    let text = |event: &Event| match event {
        Event::TextDelta(delta) => Some(delta.text.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

fn sent_text(request: &CapturedRequest) -> String {
    String::from_utf8(request.raw.to_vec()).unwrap()
}

#[tokio::test]
async fn a_sub_agent_works_within_the_turn_that_called_it() {
    for wire in WIRES {
        let agent = AgentSpec { tools: Some(vec!["list_*".into()]), ..finder() };
        let harness = harness(wire, agent, Vec::new()).await;
        harness.provider.enqueue_all([
            run_agent(Reply::new().text("Let me see.")),
            Reply::new().text("I look.").tool_use("list_files", json!({"path": "."})),
            Reply::from_text("It is under the mat."),
            Reply::from_text("Under the mat."),
        ]);
        let events = harness.run(execute_request()).await;
        assert_eq!(final_text(&events), "Under the mat.");
        assert_eq!(testkit::rendered_text(&events, true), "Let me see.Under the mat.");

        let inner = inner_events(&events);
        assert_eq!(inner_text(&inner), "I look.It is under the mat.");
        let kinds: Vec<&str> =
            inner.iter().map(Event::kind).filter(|kind| kind.starts_with("tool")).collect();
        assert_eq!(kinds, ["tool_call", "tool_result"]);
        let result = events.iter().find(|event| event.kind == "tool_result").unwrap();
        assert_eq!(result.data["output"], "It is under the mat.");

        let requests = harness.provider.requests();
        assert_eq!(requests.len(), 4);
        for (request, from_sub_agent) in requests.iter().zip([false, true, true, false]) {
            let sent = sent_text(request);
            assert_eq!(sent.contains(PROMPT), from_sub_agent);
            assert_eq!(sent.contains("\"write_file\""), !from_sub_agent, "only the tools of its list");
            assert_eq!(sent.contains("Let me see."), !from_sub_agent && requests[0].raw != request.raw);
            // It receives its task and nothing of the conversation, and cannot run agents of its own.
            if from_sub_agent {
                assert!(sent.contains("Find the key.") && !sent.contains("run_agent"));
            }
        }
        // All of it is billed to the turn.
        let usages: Vec<Usage> = events
            .iter()
            .filter_map(|event| match event.event() {
                Event::Usage(usage) => Some(usage),
                _ => None,
            })
            .collect();
        assert_eq!(usages.len(), 4);
        assert!(usages.windows(2).all(|pair| pair[0].input_tokens < pair[1].input_tokens));
        // Its messages are not part of the conversation.
        let listed = harness.agent.all_messages(&task_id("t")).await.unwrap();
        let listed = serde_json::to_string(&listed).unwrap();
        assert!(listed.contains("Under the mat.") && !listed.contains("I look."));
        harness.provider.assert_no_refusals();
    }
}

/// The replies to the agent and its sub-agent, which depend only on the request.
fn reply_by_request(request: &CapturedRequest) -> Reply {
    let sent = sent_text(request);
    let results = sent.matches("appended").count();
    match (sent.contains(PROMPT), results) {
        (false, _) if sent.contains("It is done twice.") => Reply::from_text("done"),
        (false, _) => run_agent(Reply::new().text("Go on.")),
        (true, 0) => Reply::new().text("First.").deltas(3).tool_use("append", json!({})),
        (true, 1) => Reply::new().text("Second.").tool_use("append", json!({})),
        (true, _) => Reply::from_text("It is done twice.").deltas(4),
    }
}

/// A tool that counts its runs and is not idempotent.
struct AppendTool(std::sync::atomic::AtomicUsize);

impl Tool for AppendTool {
    fn spec(&self) -> llm::ToolSpec {
        let input_schema = json!({"type": "object", "properties": {}});
        llm::ToolSpec { name: "append".into(), description: "Appends.".into(), input_schema }
    }

    fn idempotent(&self) -> bool {
        false
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn run(
        &self,
        _: tools::Invocation,
    ) -> futures::future::BoxFuture<'_, Result<tools::ToolStep, tools::ToolError>> {
        self.0.fetch_add(1, Ordering::AcqRel);
        let text = "appended".into();
        let output = tools::ToolOutput { text, ..Default::default() };
        Box::pin(async { Ok(tools::ToolStep::Done(output)) })
    }
}

#[tokio::test]
async fn killed_at_any_event_a_sub_agent_goes_on_where_it_was() {
    let mut kills_in_agent = 0;
    for count in 1..=40 {
        let appends = Arc::new(AppendTool(0.into()));
        let mut harness = harness(Wire::AnthropicMessages, finder(), vec![appends.clone()]).await;
        harness.provider.set_responder(reply_by_request);
        let mut reader = harness.begin(execute_request()).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < count
            && let Some(events) = next_events(&mut reader).await
        {
            seen.extend(events);
        }
        let ended = seen.iter().any(|event| event.event().ends_turn());
        kills_in_agent += usize::from(!ended && seen.last().is_some_and(|event| event.kind == "agent_event"));
        harness.kill().await;
        harness.agent.resume().unwrap();
        let events = harness.replay(0).await;
        assert_eq!(check_turn(&events), Ok(()), "{count}: {events:#?}");
        assert_eq!(final_text(&events), "done");
        let called = events.iter().filter(|event| event.kind == "tool_call").count();
        assert_eq!(called, 1, "the sub-agent is started once");
        // Its calls take effect once each, unless one was interrupted.
        assert!(appends.0.load(Ordering::Acquire) <= 3, "{count}");
        let row = harness.brain.task(&task_id("t")).unwrap().unwrap().row;
        let opened = format!("{:?}", harness.brain.steps(row).unwrap()).matches("Find the key.").count();
        assert!(opened >= 1);
        harness.provider.assert_no_refusals();
        if ended {
            assert!(kills_in_agent >= 3, "killed inside the sub-agent {kills_in_agent} times");
            return;
        }
    }
}

#[tokio::test]
async fn a_sub_agent_asks_a_person_and_goes_on_after_a_restart() {
    for (answer, runs) in [("yes", 1), ("no", 0)] {
        let gated = GatedTool::with(false, Permission::Ask);
        let mut harness = harness(Wire::AnthropicMessages, finder(), vec![gated.clone()]).await;
        harness.provider.enqueue_all([
            run_agent(Reply::new()),
            Reply::new().tool_use("gated", json!({})),
            Reply::from_text("It is open."),
            Reply::from_text("Open."),
        ]);
        let mut reader = harness.begin(execute_request()).await.unwrap();
        read_until(&mut reader, |event| event.kind == "hitl_request").await;
        harness.restart().await;
        harness.agent.resume().unwrap();
        gated.may_end.add_permits(1);
        let respond = json!({"task_id": "t", "answer": answer, "feedback": "Mind the dog."});
        with_deadline(harness.agent.respond(serde_json::from_value(respond).unwrap())).await.unwrap();
        let events = harness.replay(0).await;
        assert_eq!(check_turn(&events), Ok(()));
        assert_eq!(final_text(&events), "Open.");
        assert_eq!(gated.runs.load(Ordering::Acquire), runs);
        let requests = harness.provider.requests();
        assert!(
            sent_text(&requests[2]).contains("Mind the dog."),
            "the feedback reaches the agent that asked"
        );
        assert!(inner_events(&events).iter().any(|event| matches!(event, Event::ToolResult(_))));
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn cancelled_in_a_sub_agent_nothing_is_left_open() {
    let harness = harness(Wire::AnthropicMessages, finder(), Vec::new()).await;
    let gate = Gate::new();
    harness.provider.enqueue_all([
        run_agent(Reply::new().text("Let me see.")),
        Reply::from_text("I am still looking.").deltas(6).hold(2, &gate),
        Reply::from_text("Good."),
    ]);
    let mut reader = harness.begin(execute_request()).await.unwrap();
    let is_delta = |event: &SseEvent| event.kind == "agent_event" && event.data["event"] == "text_delta";
    let mut events = read_until(&mut reader, is_delta).await;
    let started = std::time::Instant::now();
    with_deadline(harness.agent.cancel(&task_id("t"), None)).await.unwrap();
    assert!(started.elapsed() < std::time::Duration::from_millis(250));
    events.extend(read_all(reader).await);
    assert_eq!(check_turn(&events), Ok(()));
    let opened =
        inner_events(&events).iter().filter(|event| matches!(event, Event::ContentBlockStart(_))).count();
    let stopped =
        inner_events(&events).iter().filter(|event| matches!(event, Event::ContentBlockStop(_))).count();
    assert_eq!((opened, stopped), (1, 1));
    // The next turn works, and the sub-agent's partial text is not attributed to the agent.
    assert_eq!(final_text(&harness.run(execute_request()).await), "Good.");
    assert!(!sent_text(&harness.last_request()).contains("still looking"));
    harness.provider.assert_no_refusals();
}

#[tokio::test]
async fn a_sub_agent_has_a_cap_and_a_budget_of_its_own() {
    let capped = AgentSpec { max_turns: 1, ..finder() };
    let low_budget = AgentSpec { max_tokens: Some(3_000), ..finder() };
    for (agent, reason) in [(capped, "as often as it may"), (low_budget, "budget was used up")] {
        let harness = harness(Wire::AnthropicMessages, agent, Vec::new()).await;
        let usage = mock_llm::Usage { input: Some(2_900), ..Default::default() };
        harness.provider.enqueue_all([
            run_agent(Reply::new()),
            Reply::new().text("I look.").tool_use("list_files", json!({"path": "."})).usage(usage),
            Reply::from_text("It gave up."),
        ]);
        let events = harness.run(execute_request()).await;
        assert_eq!(final_text(&events), "It gave up.");
        let result = events.iter().find(|event| event.kind == "tool_result").unwrap();
        let output = result.data["output"].as_str().unwrap();
        assert!(output.starts_with("I look.") && output.contains(reason), "{output}");
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn the_cap_of_a_turn_holds_for_its_sub_agents() {
    let harness = harness(Wire::AnthropicMessages, finder(), Vec::new()).await;
    let list_files = || Reply::new().tool_use("list_files", json!({"path": "."}));
    harness.provider.enqueue_all([
        run_agent(Reply::new()),
        list_files(),
        list_files(),
        Reply::from_text("Enough."),
    ]);
    let mut request = execute_request();
    request["max_turns"] = 4.into();
    let events = harness.run(request.clone()).await;
    assert_eq!(final_text(&events), "Enough.");
    assert_eq!(harness.provider.requests().len(), 4);
    // If no model call would be left for the agent itself, no sub-agent is run.
    harness.provider.enqueue_all([run_agent(Reply::new()), Reply::from_text("Alone.")]);
    request["max_turns"] = 2.into();
    let events = harness.run(request).await;
    assert_eq!(final_text(&events), "Alone.");
    assert!(
        events
            .iter()
            .any(|event| event.data["error"].as_str().is_some_and(|error| error.contains("no agent")))
    );
}

#[tokio::test]
async fn a_sub_agent_that_fails_or_is_not_there_is_told_to_who_called_it() {
    let harness = harness(Wire::OpenAiChat, finder(), Vec::new()).await;
    let refused = Fault::refuse(Refusal::Other {
        status: 400,
        error_type: "invalid_request_error".into(),
        message: "no such thing".into(),
        headers: std::collections::BTreeMap::new(),
    });
    harness.provider.enqueue_all([
        run_agent(Reply::new().tool_use("run_agent", json!({"agent": "ghost", "task": "Boo."}))),
        Reply::from_fault(refused),
        Reply::from_text("I do it myself."),
    ]);
    let events = harness.run(execute_request()).await;
    assert_eq!(final_text(&events), "I do it myself.");
    let mut errors: Vec<&str> = events.iter().filter_map(|event| event.data["error"].as_str()).collect();
    errors.sort_unstable();
    assert!(errors[0].starts_with("the agent failed"), "{errors:?}");
    assert!(errors[1].contains(r#"at `/agent`: it is not one of "finder""#), "{errors:?}");
}

#[tokio::test]
async fn a_new_message_is_planned_once_and_the_plan_is_kept() {
    for wire in WIRES {
        let mut harness = harness(wire, finder(), Vec::new()).await;
        let plan = "{\"agent\": \"finder\", \"steps\": [\"Look under the mat.\"]}";
        harness.provider.enqueue_all([
            Reply::from_text(plan),
            Reply::new().tool_use("list_files", json!({"path": "."})),
            Reply::from_text("Done."),
            Reply::from_text("no plan at all"),
            Reply::from_text("Hello."),
        ]);
        let events = harness.send("find the key").await;
        assert_eq!(final_text(&events), "Done.");
        let update = events.iter().find(|event| event.data["key"] == "plan").unwrap();
        assert_eq!(update.kind, "working_memory_update");
        assert_eq!(update.data["value"]["steps"], json!(["Look under the mat."]));
        let requests = harness.provider.requests();
        let planned = |request: &CapturedRequest| sent_text(request).contains("1. Look under the mat.");
        assert_eq!(requests.iter().map(planned).collect::<Vec<_>>(), [false, true, true]);
        assert!(
            sent_text(&requests[0]).contains("finder: Finds things.")
                && !sent_text(&requests[0]).contains("list_files")
        );

        // An unusable plan stops nothing, and the earlier plan stays in the history.
        harness.restart().await;
        assert_eq!(final_text(&harness.send("hello").await), "Hello.");
        assert!(planned(&harness.last_request()));
        // A request with `direct` gets no plan.
        harness.run(execute_request()).await;
        assert_eq!(harness.provider.requests().len(), 6);
        harness.provider.assert_no_refusals();
    }
}

#[tokio::test]
async fn a_planner_that_fails_stops_nobody() {
    let harness = harness(Wire::AnthropicMessages, finder(), Vec::new()).await;
    harness.provider.enqueue_all([
        Reply::from_fault(Fault::refuse(Refusal::ServerError)),
        Reply::from_text("All the same."),
    ]);
    assert_eq!(final_text(&harness.send("hello").await), "All the same.");
    // If the provider rejects both calls, the turn's own call reports the error.
    harness.provider.enqueue_all([
        Reply::from_fault(Fault::refuse(Refusal::Unauthorized)),
        Reply::from_fault(Fault::refuse(Refusal::Unauthorized)),
    ]);
    let events = harness.send("hello?").await;
    assert_eq!(failure(&events).code, api::event::FailureCode::ProviderAuth);
}

#[tokio::test]
async fn a_plan_counts_for_the_budget_of_its_turn_and_not_for_its_model_calls() {
    let mut harness = harness(Wire::AnthropicMessages, finder(), Vec::new()).await;
    let mut gateway = gateway_config(&harness.provider, &[(Wire::AnthropicMessages, "first")]);
    gateway["budgets"] = json!({"tokens_per_turn": 10_000});
    harness.configure_gateway(&gateway).await;
    let tokens = mock_llm::Usage { input: Some(9_000), output: Some(900), ..Default::default() };
    harness.provider.enqueue(Reply::from_text("No plan.").usage(tokens));
    let events = harness.send("go").await;
    assert_eq!(events.last().unwrap().data["stop_reason"], "budget");
    let usage = events.iter().find(|event| event.kind == "usage").unwrap();
    assert_eq!((&usage.data["input_tokens"], &usage.data["output_tokens"]), (&json!(9_000), &json!(900)));
    assert_eq!(harness.provider.requests().len(), 1, "only a plan was requested");

    harness.provider.enqueue_all([Reply::from_text("No plan."), Reply::from_text("Done.")]);
    let events = harness.run(json!({"task_id": "u", "message": "go", "max_turns": 1})).await;
    assert_eq!((final_text(&events).as_str(), harness.provider.requests().len()), ("Done.", 3));
}
