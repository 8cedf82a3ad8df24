//! Histories that are broken forever. Whatever happened to a task, the provider accepts its history.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::engine::{Role, TaskMessage};
use mock_llm::{Fault, Gate, Refusal, Reply, Stop, Wire};
use proptest::prelude::*;
use serde_json::{Value, json};
use store::event_log::EventReader;
use store::testing::next_events;
use testkit::{SseEvent, task_id, with_deadline};

use crate::agent::harness::{AgentHarness, GatedTool, WIRES, gateway_config, streams_tool_input};

/// An action on a task.
#[derive(Clone, Debug)]
enum Action {
    Turn(TurnPlan),
    /// The engine is configured for this one of two models, over this protocol, with a fallback over the second
    /// protocol.
    Switch(Wire, usize, Wire),
}

#[derive(Clone, Debug)]
struct TurnPlan {
    start_from: StartFrom,
    think: bool,
    steps: Vec<ModelStep>,
    /// Whether the person approves.
    approves: bool,
    outcome: TurnOutcome,
}

/// Where a turn starts from: one of the existing messages, if there are any.
#[derive(Clone, Copy, Debug)]
enum StartFrom {
    End,
    Edit(usize),
    Retry(usize),
}

/// A model step: its calls by number, and the number of deltas after which the provider breaks off first.
#[derive(Clone, Debug)]
struct ModelStep {
    calls: Vec<u8>,
    breaks_after: Option<usize>,
}

/// What happens after the steps.
#[derive(Clone, Copy, Debug)]
enum TurnOutcome {
    /// The model answers.
    Completes,
    /// The model calls a tool, and the turn may not call the model again.
    Capped,
    /// The provider fails permanently.
    Fails,
    /// The first model is refused, and another one answers in its place.
    Fallback,
    /// The provider reports that the conversation is too long.
    TooLong,
    /// The provider rejects the history as invalid.
    BrokenHistory,
    /// The turn is interrupted from outside.
    Interrupted(InterruptPoint, Interruption),
}

#[derive(Clone, Copy, Debug)]
enum InterruptPoint {
    /// While an answer is streamed, after this many deltas.
    Stream(usize),
    /// While a tool runs.
    Tool,
    /// While a person is asked.
    Person,
}

#[derive(Clone, Copy, Debug)]
enum Interruption {
    Cancel,
    Restart,
    Kill,
    Steer,
}

const INTERRUPTIONS: [Interruption; 4] =
    [Interruption::Cancel, Interruption::Restart, Interruption::Kill, Interruption::Steer];
/// The question asked at [`InterruptPoint::Person`].
const PERSON_QUESTION: &str = "And now?";

/// Adds one of the calls that a model may make.
fn add_call(reply: Reply, number: u8) -> Reply {
    match number {
        0 => reply.tool_use("list_files", json!({"path": "."})),
        1 => reply.tool_use("read_file", json!({"path": "nothing"})),
        2 => reply.tool_use("working_memory_set", json!({"key": "k", "value": 1})),
        3 => reply.tool_use("fly", json!({})),
        4 => reply.truncated_tool_use("list_files", "{\"path\": [1,").stop(Stop::ToolUse),
        5 => reply.tool_use("write_file", json!({"path": "a.txt", "content": "a"})),
        _ => reply.tool_use("ask_user", json!({"question": "Which?"})),
    }
}

/// Returns an answer with these calls. Its form depends on the number of calls.
fn answer(calls: &[u8]) -> Reply {
    let start = match calls.len() {
        1 => Reply::new().redacted_thinking().text("I see to it."),
        2 => Reply::new().thinking("Two."),
        _ => Reply::new().thinking("Hm, hm.").text(" \n").text("So."),
    };
    calls.iter().fold(start, |reply, number| add_call(reply, *number))
}

/// Returns an attachment that a person adds now and then.
fn picture() -> Value {
    json!({"type": "image", "media_type": "image/png", "data": "aW1hZ2U="})
}

/// Says on a panic, such as that of an expired deadline, what was under way.
struct UnderWay(String);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// A task, and its history so far.
struct TaskScenario {
    harness: AgentHarness,
    /// The protocol of the default model.
    wire: Wire,
    gated: Arc<GatedTool>,
    gated_begun: usize,
    /// Whether all models that may be called stream the input of their calls.
    streams_tool_input: bool,
    /// How often the conversation was compacted.
    compaction_count: usize,
    /// The number of models.
    model_count: usize,
    steered: BTreeSet<String>,
}

impl TaskScenario {
    async fn begin(wire: Wire) -> Self {
        let gated = GatedTool::new(false);
        let streams_tool_input = streams_tool_input(wire);
        let harness = AgentHarness::with_tools(wire, vec![gated.clone()]).await;
        harness.provider.set_default_reply(Reply::new().thinking("At last.").text("Done."));
        Self {
            harness,
            wire,
            gated,
            gated_begun: 0,
            streams_tool_input,
            compaction_count: 0,
            model_count: 1,
            steered: BTreeSet::new(),
        }
    }

    async fn perform(&mut self, action: &Action) {
        let _under_way = UnderWay(format!("over {:?}: {action:#?}", self.wire));
        match action {
            Action::Turn(turn) => self.turn(turn).await,
            Action::Switch(wire, model, other) => {
                (self.wire, self.model_count) = (*wire, 2);
                self.streams_tool_input = streams_tool_input(*wire) && streams_tool_input(*other);
                let models = [(*wire, ["test-1", "test-2"][*model]), (*other, "test-3")];
                let gateway = gateway_config(&self.harness.provider, &models);
                self.harness.configure_gateway(&gateway).await;
            }
        }
        self.harness.provider.assert_no_refusals();
        assert_eq!(self.harness.provider.pending_replies(), 0);
    }

    async fn plain_turn(&mut self) {
        let turn = TurnPlan {
            start_from: StartFrom::End,
            think: true,
            steps: Vec::new(),
            approves: true,
            outcome: TurnOutcome::Completes,
        };
        self.perform(&Action::Turn(turn)).await;
    }

    async fn turn(&mut self, turn: &TurnPlan) {
        // Long enough that a summary is worth its cost.
        let message = "Go on. ".repeat(if turn.think { 1_500 } else { 1 });
        let mut request = json!({"task_id": "t", "message": message, "super_thinking": turn.think});
        if let Some((field, id)) = self.base(turn.start_from).await {
            request[field] = id.into();
        }
        for ModelStep { calls, breaks_after: breaks } in &turn.steps {
            let calls = &self.possible_calls(calls);
            // Every other time the repeated answer differs.
            let broken = |deltas: usize| answer(&calls[deltas % 2..]).fault(Fault::cut_after(deltas));
            self.harness.provider.enqueue_all(breaks.filter(|_| !calls.is_empty()).map(broken));
            self.harness.provider.enqueue_all((!calls.is_empty()).then(|| answer(calls)));
        }
        if let TurnOutcome::Capped = turn.outcome {
            let answers = turn.steps.iter().filter(|step| !step.calls.is_empty()).count();
            request["max_turns"] = (answers + 1).into();
        }
        if !turn.approves && !matches!(turn.start_from, StartFrom::Retry(_)) {
            request["media"] = json!([picture()]);
        }
        let gate = self.script(turn.outcome);
        let reader = self.harness.begin(request).await.unwrap();
        let end = match turn.outcome {
            TurnOutcome::Completes | TurnOutcome::Capped | TurnOutcome::Fallback => {
                self.read_to_end(reader, turn.approves, "completed").await
            }
            TurnOutcome::Fails => self.read_to_end(reader, turn.approves, "errored").await,
            // Whether there is anything to compact or to leave out is another question.
            TurnOutcome::TooLong | TurnOutcome::BrokenHistory => {
                self.read_to_either_end(reader, turn.approves).await
            }
            TurnOutcome::Interrupted(point, interruption) => {
                self.interrupt(reader, point, interruption, &gate, turn.approves).await
            }
        };
        assert!(end.is_ok(), "{}: {turn:#?}", end.unwrap_err());
    }

    /// Returns the calls that a model can make over this protocol: if calls arrive whole, none is cut off.
    fn possible_calls(&self, calls: &[u8]) -> Vec<u8> {
        calls
            .iter()
            .map(|number| if *number == 4 && !self.streams_tool_input { 3 } else { *number })
            .collect()
    }

    /// Returns the message that a turn starts from.
    async fn base(&self, start_from: StartFrom) -> Option<(&'static str, String)> {
        let (field, at) = match start_from {
            StartFrom::End => return None,
            StartFrom::Edit(at) => ("edit_message_id", at),
            StartFrom::Retry(at) => ("retry_message_id", at),
        };
        let mut messages = self.harness.agent.all_messages(&task_id("t")).await.unwrap_or_default();
        messages.retain(|message| !message.superseded);
        if field == "edit_message_id" {
            let began = |message: &TaskMessage| {
                message.role == Role::User && !self.steered.contains(&message.message_id.to_string())
            };
            messages.retain(began);
        }
        let at = at.checked_rem(messages.len())?;
        Some((field, messages[at].message_id.to_string()))
    }

    /// Scripts the provider after the steps, up to the interruption.
    fn script(&self, outcome: TurnOutcome) -> Gate {
        let gate = Gate::new();
        let provider = &self.harness.provider;
        match outcome {
            TurnOutcome::Completes => {}
            TurnOutcome::Capped => provider.enqueue(answer(&[0, 1])),
            TurnOutcome::Fails => {
                // Each model makes its attempts.
                provider.enqueue_all(vec![
                    Reply::from_fault(Fault::refuse(Refusal::ServerError));
                    5 * self.model_count
                ]);
            }
            TurnOutcome::Fallback => {
                let refused = Reply::from_fault(Fault::refuse(Refusal::Unauthorized));
                provider.enqueue_all((self.model_count > 1).then_some(refused));
            }
            TurnOutcome::TooLong => {
                provider.enqueue(Reply::from_fault(Fault::refuse(Refusal::PromptTooLong)));
            }
            TurnOutcome::BrokenHistory => {
                provider.enqueue(Reply::from_fault(Fault::refuse(Refusal::BrokenHistory)));
            }
            TurnOutcome::Interrupted(InterruptPoint::Stream(deltas), _) => {
                let long = Reply::new().thinking("I wonder.").text("This takes a while.").deltas(4);
                provider.enqueue(long.hold(deltas, &gate));
            }
            TurnOutcome::Interrupted(InterruptPoint::Tool, _) => {
                provider.enqueue(add_call(answer(&[0]).tool_use("gated", json!({})), 2));
            }
            TurnOutcome::Interrupted(InterruptPoint::Person, _) => {
                provider.enqueue(add_call(
                    answer(&[0]).tool_use("ask_user", json!({"question": PERSON_QUESTION})),
                    5,
                ));
            }
        }
        gate
    }

    /// Waits for the interrupt point and interrupts the turn. Returns why the turn did not end as it should, if
    /// so.
    async fn interrupt(
        &mut self,
        mut reader: EventReader,
        point: InterruptPoint,
        interruption: Interruption,
        gate: &Gate,
        approves: bool,
    ) -> Result<(), String> {
        let after = self.wait_for(&mut reader, point, gate, approves).await?;
        match interruption {
            Interruption::Cancel => {
                with_deadline(self.harness.agent.cancel(&task_id("t"))).await.unwrap();
                return self.read_to_end(reader, approves, "cancelled").await;
            }
            Interruption::Restart => self.harness.restart().await,
            Interruption::Kill => self.harness.kill().await,
            Interruption::Steer => {
                let steered =
                    with_deadline(self.harness.agent.steer(&task_id("t"), "Mind the gap.".into())).await;
                self.steered.insert(steered.unwrap().to_string());
            }
        }
        match (interruption, point) {
            (Interruption::Steer, InterruptPoint::Stream(_)) => gate.release(),
            (Interruption::Steer, InterruptPoint::Tool) => self.gated.may_end.add_permits(1),
            (Interruption::Steer, InterruptPoint::Person) => {}
            _ => self.harness.agent.resume().unwrap(),
        }
        for request in self.harness.agent.pending_requests().await.unwrap() {
            self.respond(&request.request_id.to_string(), request.kind.as_str(), approves).await;
        }
        let reader = self.harness.agent.replay(Some(task_id("t")), after).unwrap();
        self.read_to_end(reader, approves, "completed").await
    }

    /// Waits for the interrupt point, which must come before the turn's end. Returns the last `ts` seen.
    async fn wait_for(
        &mut self,
        reader: &mut EventReader,
        point: InterruptPoint,
        gate: &Gate,
        approves: bool,
    ) -> Result<i64, String> {
        let gated = Arc::clone(&self.gated);
        let runs = self.gated_begun + 1;
        let mut reached = std::pin::pin!(async move {
            match point {
                InterruptPoint::Stream(_) => gate.reached().await,
                InterruptPoint::Tool => gated.wait_for_runs(runs).await,
                InterruptPoint::Person => std::future::pending().await,
            }
        });
        let mut after = 0;
        loop {
            let events = tokio::select! {
                biased;
                () = &mut reached => break,
                events = next_events(reader) => events.ok_or(format!("it ended before {point:?}"))?,
            };
            after = events.last().map_or(after, SseEvent::ts);
            if events.iter().any(|event| event.data["question"] == PERSON_QUESTION) {
                break;
            }
            self.respond_to(&events, approves).await;
        }
        self.gated_begun = self.gated.runs.load(std::sync::atomic::Ordering::Acquire);
        Ok(after)
    }

    async fn read_to_end(&self, mut reader: EventReader, approves: bool, phase: &str) -> Result<(), String> {
        let mut all = Vec::new();
        while let Some(events) = next_events(&mut reader).await {
            self.respond_to(&events, approves).await;
            all.extend(events);
        }
        let last = all.iter().rev().find_map(SseEvent::phase);
        if last == Some(phase) { Ok(()) } else { Err(format!("not {phase} but {last:?}: {all:#?}")) }
    }

    /// Reads a turn that may complete or fail.
    async fn read_to_either_end(&mut self, mut reader: EventReader, approves: bool) -> Result<(), String> {
        let mut all = Vec::new();
        while let Some(events) = next_events(&mut reader).await {
            self.respond_to(&events, approves).await;
            all.extend(events);
        }
        self.compaction_count += all.iter().filter(|event| event.kind == "compaction_event").count();
        let last = all.iter().rev().find_map(SseEvent::phase);
        if matches!(last, Some("completed" | "errored")) {
            Ok(())
        } else {
            Err(format!("{last:?}: {all:#?}"))
        }
    }

    async fn respond_to(&self, events: &[SseEvent], approves: bool) {
        for SseEvent { data, .. } in events.iter().filter(|event| event.kind == "hitl_request") {
            let text = |field: &str| data[field].as_str().unwrap();
            self.respond(text("request_id"), text("kind"), approves).await;
        }
    }

    /// Answers a request. A request that a reader sees again was answered before.
    async fn respond(&self, request_id: &str, kind: &str, approves: bool) {
        let answer = match (kind, approves) {
            ("permission", true) => "yes",
            ("permission", false) => "no",
            _ => "The other one.",
        };
        let respond = json!({
            "task_id": "t", "answer": answer, "request_id": request_id, "feedback": "Well.",
            "content_blocks": [picture()],
        });
        let _ = with_deadline(self.harness.agent.respond(serde_json::from_value(respond).unwrap())).await;
    }
}

async fn run_actions(wire: Wire, actions: &[Action]) {
    let mut scenario = TaskScenario::begin(wire).await;
    for action in actions {
        scenario.perform(action).await;
    }
    // Whichever model is called next accepts the history: the previous one, and one of every vendor.
    scenario.plain_turn().await;
    for wire in WIRES {
        scenario.perform(&Action::Switch(wire, 1, wire)).await;
        scenario.plain_turn().await;
    }
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let start_from = prop_oneof![
        4 => Just(StartFrom::End),
        1 => any::<usize>().prop_map(StartFrom::Edit),
        1 => any::<usize>().prop_map(StartFrom::Retry),
    ];
    let calls = prop::collection::vec(0..7_u8, 0..4);
    let step = (calls, prop::option::weighted(0.2, 0..8_usize));
    let steps = prop::collection::vec(
        step.prop_map(|(calls, breaks)| ModelStep { calls, breaks_after: breaks }),
        0..3,
    );
    let point = prop_oneof![
        (0..9_usize).prop_map(InterruptPoint::Stream),
        Just(InterruptPoint::Tool),
        Just(InterruptPoint::Person)
    ];
    let outcome = prop_oneof![
        2 => Just(TurnOutcome::Completes),
        1 => Just(TurnOutcome::Capped),
        1 => Just(TurnOutcome::Fails),
        1 => Just(TurnOutcome::Fallback),
        2 => Just(TurnOutcome::TooLong),
        1 => Just(TurnOutcome::BrokenHistory),
        5 => (point, prop::sample::select(&INTERRUPTIONS)).prop_map(|(point, interruption)| TurnOutcome::Interrupted(point, interruption)),
    ];
    let turn = (start_from, any::<bool>(), steps, any::<bool>(), outcome);
    let turn = turn.prop_map(|(start_from, think, steps, approves, outcome)| TurnPlan {
        start_from,
        think,
        steps,
        approves,
        outcome,
    });
    let switch = (prop::sample::select(&WIRES), 0..2_usize, prop::sample::select(&WIRES))
        .prop_map(|(wire, model, other)| Action::Switch(wire, model, other));
    let action = prop_oneof![5 => turn.prop_map(Action::Turn), 1 => switch];
    prop::collection::vec(action, 1..8)
}

#[test]
fn regression_e04_after_any_sequence_of_events_the_provider_takes_the_history() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // A number of cases that runs quickly, unless more are requested.
    let requested = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = requested.unwrap_or(24);
    let config =
        ProptestConfig { cases, max_shrink_iters: 30, failure_persistence: None, ..Default::default() };
    proptest!(config, |(wire in prop::sample::select(&WIRES), actions in actions())| {
        runtime.block_on(run_actions(wire, &actions));
    });
}

#[tokio::test]
async fn regression_e04_no_deed_in_any_moment_breaks_the_history() {
    for wire in WIRES {
        for point in [
            InterruptPoint::Stream(1),
            InterruptPoint::Stream(6),
            InterruptPoint::Tool,
            InterruptPoint::Person,
        ] {
            let mut scenario = TaskScenario::begin(wire).await;
            for (interruption, think) in INTERRUPTIONS.into_iter().zip([false, true, true, false]) {
                let steps = vec![ModelStep { calls: vec![0, 5], breaks_after: None }];
                let turn = |outcome| TurnPlan {
                    start_from: StartFrom::End,
                    think,
                    steps: steps.clone(),
                    approves: think,
                    outcome,
                };
                scenario.perform(&Action::Turn(turn(TurnOutcome::Interrupted(point, interruption)))).await;
                scenario.perform(&Action::Turn(turn(TurnOutcome::Completes))).await;
            }
        }
    }
}

#[tokio::test]
async fn regression_e04_no_remedy_breaks_the_history() {
    for (wire, other) in WIRES.into_iter().zip(WIRES.into_iter().cycle().skip(1)) {
        let mut scenario = TaskScenario::begin(wire).await;
        let turn = |start_from, think, outcome| {
            let steps = vec![
                ModelStep { calls: vec![0, 5], breaks_after: None },
                ModelStep { calls: vec![2], breaks_after: Some(3) },
            ];
            Action::Turn(TurnPlan { start_from, think, steps, approves: think, outcome })
        };
        let actions = [
            turn(StartFrom::End, true, TurnOutcome::Completes),
            turn(StartFrom::End, true, TurnOutcome::TooLong),
            turn(
                StartFrom::End,
                true,
                TurnOutcome::Interrupted(InterruptPoint::Stream(3), Interruption::Kill),
            ),
            Action::Switch(wire, 1, other),
            turn(StartFrom::End, true, TurnOutcome::Fallback),
            turn(StartFrom::End, true, TurnOutcome::TooLong),
            turn(StartFrom::End, false, TurnOutcome::BrokenHistory),
            turn(StartFrom::End, true, TurnOutcome::Completes),
            // After a compaction, and after messages without their reasoning.
            turn(StartFrom::Retry(3), true, TurnOutcome::Completes),
            turn(StartFrom::Edit(1), true, TurnOutcome::TooLong),
            turn(StartFrom::Edit(0), true, TurnOutcome::Completes),
        ];
        for action in &actions {
            scenario.perform(action).await;
        }
        assert!(scenario.compaction_count >= 2, "{wire:?}: shortened {} times", scenario.compaction_count);
    }
}

/// After a restart the default model is called again, so the fallback model's thinking is left out.
#[tokio::test]
async fn regression_e04_words_behind_results_begin_no_thinking_that_another_model_would_have_to_end() {
    let step = |calls: &[u8]| ModelStep { calls: calls.to_vec(), breaks_after: None };
    let turn = |think, steps: Vec<ModelStep>, approves, outcome| {
        Action::Turn(TurnPlan { start_from: StartFrom::End, think, steps, approves, outcome })
    };
    let wire = Wire::AnthropicMessages;
    let actions = [
        Action::Switch(wire, 0, wire),
        turn(true, vec![step(&[0])], false, TurnOutcome::TooLong),
        turn(false, vec![], false, TurnOutcome::Fails),
        turn(
            true,
            vec![step(&[0]), step(&[6, 3, 1])],
            true,
            TurnOutcome::Interrupted(InterruptPoint::Tool, Interruption::Restart),
        ),
    ];
    run_actions(wire, &actions).await;
}
