//! A task to which anything may happen, and the check of its history after each event.

use super::*;

/// An action on a task.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Turn(TurnPlan),
    /// The engine is configured for this one of two models, over this protocol, with a fallback over the second
    /// protocol.
    Switch(Wire, usize, Wire),
}

#[derive(Clone, Debug)]
pub(super) struct TurnPlan {
    pub(super) start_from: StartFrom,
    pub(super) think: bool,
    pub(super) steps: Vec<ModelStep>,
    /// Whether the person approves.
    pub(super) approves: bool,
    pub(super) outcome: TurnOutcome,
}

/// Where a turn starts from: one of the existing messages, if there are any.
#[derive(Clone, Copy, Debug)]
pub(super) enum StartFrom {
    End,
    Edit(usize),
    Retry(usize),
}

/// A model step: its calls by number, and the number of deltas after which the provider breaks off first.
#[derive(Clone, Debug)]
pub(super) struct ModelStep {
    pub(super) calls: Vec<u8>,
    pub(super) breaks_after: Option<usize>,
}

/// What happens after the steps.
#[derive(Clone, Copy, Debug)]
pub(super) enum TurnOutcome {
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
pub(super) enum InterruptPoint {
    /// While an answer is streamed, after this many deltas.
    Stream(usize),
    /// While a tool runs.
    Tool,
    /// While a person is asked.
    Person,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Interruption {
    Cancel,
    Restart,
    Kill,
    Steer,
}

pub(super) const INTERRUPTIONS: [Interruption; 4] =
    [Interruption::Cancel, Interruption::Restart, Interruption::Kill, Interruption::Steer];
/// The question asked at [`InterruptPoint::Person`].
pub(super) const PERSON_QUESTION: &str = "And now?";

/// Adds one of the calls that a model may make.
pub(super) fn add_call(reply: Reply, number: u8) -> Reply {
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
pub(super) fn answer(calls: &[u8]) -> Reply {
    let start = match calls.len() {
        1 => Reply::new().redacted_thinking().text("I see to it."),
        2 => Reply::new().thinking("Two."),
        _ => Reply::new().thinking("Hm, hm.").text(" \n").text("So."),
    };
    calls.iter().fold(start, |reply, number| add_call(reply, *number))
}

/// Returns an attachment that a person adds now and then.
pub(super) fn picture() -> Value {
    json!({"type": "image", "media_type": "image/png", "data": "aW1hZ2U="})
}

/// Says on a panic, such as that of an expired deadline, what was under way.
pub(super) struct UnderWay(String);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// A task, and its history so far.
pub(super) struct TaskScenario {
    pub(super) harness: AgentHarness,
    /// The protocol of the default model.
    pub(super) wire: Wire,
    pub(super) gated: Arc<GatedTool>,
    pub(super) gated_begun: usize,
    /// Whether all models that may be called stream the input of their calls.
    pub(super) streams_tool_input: bool,
    /// How often the conversation was compacted.
    pub(super) compaction_count: usize,
    /// The number of models.
    pub(super) model_count: usize,
    pub(super) steered: BTreeSet<String>,
}

impl TaskScenario {
    pub(super) async fn begin(wire: Wire) -> Self {
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

    pub(super) async fn perform(&mut self, action: &Action) {
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

    pub(super) async fn plain_turn(&mut self) {
        let turn = TurnPlan {
            start_from: StartFrom::End,
            think: true,
            steps: Vec::new(),
            approves: true,
            outcome: TurnOutcome::Completes,
        };
        self.perform(&Action::Turn(turn)).await;
    }

    pub(super) async fn turn(&mut self, turn: &TurnPlan) {
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
    pub(super) fn possible_calls(&self, calls: &[u8]) -> Vec<u8> {
        calls
            .iter()
            .map(|number| if *number == 4 && !self.streams_tool_input { 3 } else { *number })
            .collect()
    }

    /// Returns the message that a turn starts from.
    pub(super) async fn base(&self, start_from: StartFrom) -> Option<(&'static str, String)> {
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
    pub(super) fn script(&self, outcome: TurnOutcome) -> Gate {
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
    pub(super) async fn interrupt(
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
                with_deadline(self.harness.agent.cancel(&task_id("t"), None)).await.unwrap();
                return self.read_to_end(reader, approves, "cancelled").await;
            }
            Interruption::Restart => self.harness.restart().await,
            Interruption::Kill => self.harness.kill().await,
            Interruption::Steer => {
                let steered =
                    with_deadline(self.harness.agent.steer(&task_id("t"), None, "Mind the gap.".into()))
                        .await;
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
    pub(super) async fn wait_for(
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

    pub(super) async fn read_to_end(
        &self,
        mut reader: EventReader,
        approves: bool,
        phase: &str,
    ) -> Result<(), String> {
        let mut all = Vec::new();
        while let Some(events) = next_events(&mut reader).await {
            self.respond_to(&events, approves).await;
            all.extend(events);
        }
        let last = all.iter().rev().find_map(SseEvent::phase);
        if last == Some(phase) { Ok(()) } else { Err(format!("not {phase} but {last:?}: {all:#?}")) }
    }

    /// Reads a turn that may complete or fail.
    pub(super) async fn read_to_either_end(
        &mut self,
        mut reader: EventReader,
        approves: bool,
    ) -> Result<(), String> {
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

    pub(super) async fn respond_to(&self, events: &[SseEvent], approves: bool) {
        for SseEvent { data, .. } in events.iter().filter(|event| event.kind == "hitl_request") {
            let text = |field: &str| data[field].as_str().unwrap();
            self.respond(text("request_id"), text("kind"), approves).await;
        }
    }

    /// Answers a request. A request that a reader sees again was answered before.
    pub(super) async fn respond(&self, request_id: &str, kind: &str, approves: bool) {
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
