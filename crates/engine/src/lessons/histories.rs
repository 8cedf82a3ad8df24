//! Histories that are broken for ever. Whatever happened to a task, the provider takes its history.

use std::collections::BTreeSet;
use std::sync::Arc;

use contract::engine::{Role, TaskMessage};
use proptest::prelude::*;
use serde_json::{Value, json};
use strict_provider::{Fault, Gate, Refusal, Reply, Stop, Wire};

use crate::agent::rig::{Gated, Rig, SPELLING, WIRES, gateway_of};
use crate::channel::Reader;
use crate::testing::{Seen, next_events, task_id, within};

/// What happens to a task.
#[derive(Clone, Debug)]
enum Act {
    Turn(Turn),
    /// The engine is configured for this one of two models, over this protocol; another one stands in for it over
    /// the second.
    Switch(Wire, usize, Wire),
}

#[derive(Clone, Debug)]
struct Turn {
    from: From,
    think: bool,
    steps: Vec<Step>,
    /// Whether the person gives leave.
    yes: bool,
    then: Then,
}

/// From where a turn goes on: one of the messages that are there, if there are some.
#[derive(Clone, Copy, Debug)]
enum From {
    End,
    Edit(usize),
    Retry(usize),
}

/// A model step: calls by their number, and after how many deltas the provider breaks off first.
#[derive(Clone, Debug)]
struct Step {
    calls: Vec<u8>,
    breaks: Option<usize>,
}

/// What happens after the steps.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// The model answers.
    Well,
    /// The model calls a tool, and the turn may not call the model again.
    Capped,
    /// The provider fails for good.
    Fails,
    /// The first model is refused, and another one answers in its place.
    StandIn,
    /// The provider says that the conversation is too long.
    TooLong,
    /// The provider takes the history for broken.
    Broken,
    /// Something happens from outside.
    In(Moment, Deed),
}

#[derive(Clone, Copy, Debug)]
enum Moment {
    /// While an answer is streamed, after so many deltas.
    Stream(usize),
    /// While a tool runs.
    Tool,
    /// While a person is asked.
    Person,
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Cancel,
    Restart,
    Kill,
    Steer,
}

const DEEDS: [Deed; 4] = [Deed::Cancel, Deed::Restart, Deed::Kill, Deed::Steer];
/// The question that is asked in [`Moment::Person`].
const NOW: &str = "And now?";

/// One of the calls that a model may make.
fn call(reply: Reply, number: u8) -> Reply {
    match number {
        0 => reply.tool_use("list_files", json!({"path": "."})),
        1 => reply.tool_use("read_file", json!({"path": "nothing"})),
        2 => reply.tool_use("working_memory_set", json!({"key": "k", "value": 1})),
        3 => reply.tool_use("fly", json!({})),
        4 => reply.tool_use_cut("list_files", "{\"path\": [1,").stop(Stop::ToolUse),
        5 => reply.tool_use("write_file", json!({"path": "a.txt", "content": "a"})),
        _ => reply.tool_use("ask_user", json!({"question": "Which?"})),
    }
}

/// An answer with these calls. Its form is another one for each number of calls.
fn answer(calls: &[u8]) -> Reply {
    let begun = match calls.len() {
        1 => Reply::new().redacted_thinking().text("I see to it."),
        2 => Reply::new().thinking("Two."),
        _ => Reply::new().thinking("Hm, hm.").text(" \n").text("So."),
    };
    calls.iter().fold(begun, |reply, number| call(reply, *number))
}

/// What a person attaches now and then.
fn picture() -> Value {
    json!({"type": "image", "media_type": "image/png", "data": "aW1hZ2U="})
}

/// A task, and what has happened to it.
struct Life {
    rig: Rig,
    gated: Arc<Gated>,
    gated_begun: usize,
    /// Whether all models that may be asked stream the input of their calls.
    spelling: bool,
    /// How often the conversation was shortened.
    shortened: usize,
    /// How many models there are.
    models: usize,
    steered: BTreeSet<String>,
}

impl Life {
    async fn begin(wire: Wire) -> Self {
        let gated = Gated::new(false);
        let spelling = SPELLING.contains(&wire);
        let rig = Rig::with_tools(wire, vec![gated.clone()]).await;
        rig.provider.set_default_reply(Reply::new().thinking("At last.").text("Done."));
        Self { rig, gated, gated_begun: 0, spelling, shortened: 0, models: 1, steered: BTreeSet::new() }
    }

    async fn act(&mut self, act: &Act) {
        match act {
            Act::Turn(turn) => self.turn(turn).await,
            Act::Switch(wire, model, other) => {
                self.models = 2;
                self.spelling = [wire, other].into_iter().all(|wire| SPELLING.contains(wire));
                let models = [(*wire, ["test-1", "test-2"][*model]), (*other, "test-3")];
                let gateway = gateway_of(&self.rig.provider, &models);
                self.rig.configure(&gateway).await;
            }
        }
        self.rig.provider.assert_no_refusals();
        assert_eq!(self.rig.provider.pending_replies(), 0);
    }

    async fn plain_turn(&mut self) {
        let plain = Turn { from: From::End, think: true, steps: Vec::new(), yes: true, then: Then::Well };
        self.act(&Act::Turn(plain)).await;
    }

    async fn turn(&mut self, turn: &Turn) {
        // Long enough that a summary is worth its price.
        let message = "Go on. ".repeat(if turn.think { 1_500 } else { 1 });
        let mut request = json!({"task_id": "t", "message": message, "super_thinking": turn.think});
        if let Some((field, id)) = self.base(turn.from).await {
            request[field] = id.into();
        }
        for Step { calls, breaks } in &turn.steps {
            let calls = &self.sayable(calls);
            // What comes again is another answer every other time.
            let broken = |deltas: usize| answer(&calls[deltas % 2..]).fault(Fault::cut_after(deltas));
            self.rig.provider.enqueue_all(breaks.filter(|_| !calls.is_empty()).map(broken));
            self.rig.provider.enqueue_all((!calls.is_empty()).then(|| answer(calls)));
        }
        if let Then::Capped = turn.then {
            let answers = turn.steps.iter().filter(|step| !step.calls.is_empty()).count();
            request["max_turns"] = (answers + 1).into();
        }
        if !turn.yes && !matches!(turn.from, From::Retry(_)) {
            request["media"] = json!([picture()]);
        }
        let gate = self.script(turn.then);
        let reader = self.rig.begin(request).await.unwrap();
        let end = match turn.then {
            Then::Well | Then::Capped | Then::StandIn => self.to_the_end(reader, turn.yes, "completed").await,
            Then::Fails => self.to_the_end(reader, turn.yes, "errored").await,
            // Whether there is something to shorten or to leave out is another question.
            Then::TooLong | Then::Broken => self.either_end(reader, turn.yes).await,
            Then::In(moment, deed) => self.meet(reader, moment, deed, &gate, turn.yes).await,
        };
        assert!(end.is_ok(), "{}: {turn:#?}", end.unwrap_err());
    }

    /// The calls that a model can make over this protocol: where calls come whole, none is cut off.
    fn sayable(&self, calls: &[u8]) -> Vec<u8> {
        calls.iter().map(|number| if *number == 4 && !self.spelling { 3 } else { *number }).collect()
    }

    /// The message that a turn goes on from.
    async fn base(&self, from: From) -> Option<(&'static str, String)> {
        let (field, at) = match from {
            From::End => return None,
            From::Edit(at) => ("edit_message_id", at),
            From::Retry(at) => ("retry_message_id", at),
        };
        let mut listed = self.rig.agent.all_messages(&task_id("t")).await.unwrap_or_default();
        listed.retain(|message| !message.superseded);
        if field == "edit_message_id" {
            let began = |message: &TaskMessage| {
                message.role == Role::User && !self.steered.contains(&message.message_id.to_string())
            };
            listed.retain(began);
        }
        let at = at.checked_rem(listed.len())?;
        Some((field, listed[at].message_id.to_string()))
    }

    /// What the provider says after the steps, up to the moment in which something happens.
    fn script(&self, then: Then) -> Gate {
        let gate = Gate::new();
        let provider = &self.rig.provider;
        match then {
            Then::Well => {}
            Then::Capped => provider.enqueue(answer(&[0, 1])),
            Then::Fails => {
                // Each model that there is has its attempts.
                provider
                    .enqueue_all(vec![Reply::of_fault(Fault::refuse(Refusal::ServerError)); 5 * self.models]);
            }
            Then::StandIn => {
                let refused = Reply::of_fault(Fault::refuse(Refusal::Unauthorized));
                provider.enqueue_all((self.models > 1).then_some(refused));
            }
            Then::TooLong => provider.enqueue(Reply::of_fault(Fault::refuse(Refusal::PromptTooLong))),
            Then::Broken => provider.enqueue(Reply::of_fault(Fault::refuse(Refusal::BrokenHistory))),
            Then::In(Moment::Stream(deltas), _) => {
                let long = Reply::new().thinking("I wonder.").text("This takes a while.").deltas(4);
                provider.enqueue(long.hold(deltas, &gate));
            }
            Then::In(Moment::Tool, _) => {
                provider.enqueue(call(answer(&[0]).tool_use("gated", json!({})), 2));
            }
            Then::In(Moment::Person, _) => {
                provider.enqueue(call(answer(&[0]).tool_use("ask_user", json!({"question": NOW})), 5));
            }
        }
        gate
    }

    /// Waits for the moment and does the deed. Why the turn did not end as it should, if it did not.
    async fn meet(
        &mut self,
        mut reader: Reader,
        moment: Moment,
        deed: Deed,
        gate: &Gate,
        yes: bool,
    ) -> Result<(), String> {
        let after = self.wait_for(&mut reader, moment, gate, yes).await?;
        match deed {
            Deed::Cancel => {
                within(self.rig.agent.cancel(&task_id("t"))).await.unwrap();
                return self.to_the_end(reader, yes, "cancelled").await;
            }
            Deed::Restart => self.rig.restart().await,
            Deed::Kill => self.rig.kill().await,
            Deed::Steer => {
                let steered = within(self.rig.agent.steer(&task_id("t"), "Mind the gap.".into())).await;
                self.steered.insert(steered.unwrap().to_string());
            }
        }
        match (deed, moment) {
            (Deed::Steer, Moment::Stream(_)) => gate.release(),
            (Deed::Steer, Moment::Tool) => self.gated.may_end.add_permits(1),
            (Deed::Steer, Moment::Person) => {}
            _ => self.rig.agent.resume().unwrap(),
        }
        for request in self.rig.agent.pending().await.unwrap() {
            self.respond(&request.request_id.to_string(), request.kind.as_str(), yes).await;
        }
        let reader = self.rig.agent.replay(Some(task_id("t")), after).unwrap();
        self.to_the_end(reader, yes, "completed").await
    }

    /// Waits for the moment, which must come before the turn's end. Gives the last `ts` seen.
    async fn wait_for(
        &mut self,
        reader: &mut Reader,
        moment: Moment,
        gate: &Gate,
        yes: bool,
    ) -> Result<i64, String> {
        let gated = Arc::clone(&self.gated);
        let times = self.gated_begun + 1;
        let mut comes = std::pin::pin!(async move {
            match moment {
                Moment::Stream(_) => gate.reached().await,
                Moment::Tool => gated.begun(times).await,
                Moment::Person => std::future::pending().await,
            }
        });
        let mut after = 0;
        loop {
            let events = tokio::select! {
                biased;
                () = &mut comes => break,
                events = next_events(reader) => events.ok_or(format!("it ended before {moment:?}"))?,
            };
            after = events.last().map_or(after, Seen::ts);
            if events.iter().any(|event| event.data["question"] == NOW) {
                break;
            }
            self.respond_to(&events, yes).await;
        }
        self.gated_begun = self.gated.runs.load(std::sync::atomic::Ordering::Acquire);
        Ok(after)
    }

    async fn to_the_end(&self, mut reader: Reader, yes: bool, phase: &str) -> Result<(), String> {
        let mut all = Vec::new();
        while let Some(events) = next_events(&mut reader).await {
            self.respond_to(&events, yes).await;
            all.extend(events);
        }
        let last = all.iter().rev().find_map(Seen::phase);
        if last == Some(phase) { Ok(()) } else { Err(format!("not {phase} but {last:?}: {all:#?}")) }
    }

    /// Reads a turn that may end well or not.
    async fn either_end(&mut self, mut reader: Reader, yes: bool) -> Result<(), String> {
        let mut all = Vec::new();
        while let Some(events) = next_events(&mut reader).await {
            self.respond_to(&events, yes).await;
            all.extend(events);
        }
        self.shortened += all.iter().filter(|event| event.kind == "compaction_event").count();
        let last = all.iter().rev().find_map(Seen::phase);
        if matches!(last, Some("completed" | "errored")) {
            Ok(())
        } else {
            Err(format!("{last:?}: {all:#?}"))
        }
    }

    async fn respond_to(&self, events: &[Seen], yes: bool) {
        for Seen { data, .. } in events.iter().filter(|event| event.kind == "hitl_request") {
            let text = |field: &str| data[field].as_str().unwrap();
            self.respond(text("request_id"), text("kind"), yes).await;
        }
    }

    /// Answers a request. One that a reader sees again was answered before.
    async fn respond(&self, request_id: &str, kind: &str, yes: bool) {
        let answer = match (kind, yes) {
            ("permission", true) => "yes",
            ("permission", false) => "no",
            _ => "The other one.",
        };
        let respond = json!({
            "task_id": "t", "answer": answer, "request_id": request_id, "feedback": "Well.",
            "content_blocks": [picture()],
        });
        let _ = within(self.rig.agent.respond(serde_json::from_value(respond).unwrap())).await;
    }
}

async fn live(wire: Wire, acts: &[Act]) {
    let mut life = Life::begin(wire).await;
    for act in acts {
        life.act(act).await;
    }
    // Whoever is asked next takes the history: the model that had it, and one of every vendor.
    life.plain_turn().await;
    for wire in WIRES {
        life.act(&Act::Switch(wire, 1, wire)).await;
        life.plain_turn().await;
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let from = prop_oneof![
        4 => Just(From::End),
        1 => any::<usize>().prop_map(From::Edit),
        1 => any::<usize>().prop_map(From::Retry),
    ];
    let calls = prop::collection::vec(0..7_u8, 0..4);
    let step = (calls, prop::option::weighted(0.2, 0..8_usize));
    let steps = prop::collection::vec(step.prop_map(|(calls, breaks)| Step { calls, breaks }), 0..3);
    let moment = prop_oneof![(0..9_usize).prop_map(Moment::Stream), Just(Moment::Tool), Just(Moment::Person)];
    let then = prop_oneof![
        2 => Just(Then::Well),
        1 => Just(Then::Capped),
        1 => Just(Then::Fails),
        1 => Just(Then::StandIn),
        2 => Just(Then::TooLong),
        1 => Just(Then::Broken),
        5 => (moment, prop::sample::select(&DEEDS)).prop_map(|(moment, deed)| Then::In(moment, deed)),
    ];
    let turn = (from, any::<bool>(), steps, any::<bool>(), then);
    let turn = turn.prop_map(|(from, think, steps, yes, then)| Turn { from, think, steps, yes, then });
    let switch = (prop::sample::select(&WIRES), 0..2_usize, prop::sample::select(&WIRES))
        .prop_map(|(wire, model, other)| Act::Switch(wire, model, other));
    let act = prop_oneof![5 => turn.prop_map(Act::Turn), 1 => switch];
    prop::collection::vec(act, 1..8)
}

#[test]
fn lesson_e04_after_any_sequence_of_events_the_provider_takes_the_history() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // As many as is quick, unless more are asked for.
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let cases = asked.unwrap_or(24);
    let config =
        ProptestConfig { cases, max_shrink_iters: 30, failure_persistence: None, ..Default::default() };
    proptest!(config, |(wire in prop::sample::select(&WIRES), acts in acts())| {
        runtime.block_on(live(wire, &acts));
    });
}

#[tokio::test]
async fn lesson_e04_no_deed_in_any_moment_breaks_the_history() {
    for wire in WIRES {
        for moment in [Moment::Stream(1), Moment::Stream(6), Moment::Tool, Moment::Person] {
            let mut life = Life::begin(wire).await;
            for (deed, think) in DEEDS.into_iter().zip([false, true, true, false]) {
                let steps = vec![Step { calls: vec![0, 5], breaks: None }];
                let turn = |then| Turn { from: From::End, think, steps: steps.clone(), yes: think, then };
                life.act(&Act::Turn(turn(Then::In(moment, deed)))).await;
                life.act(&Act::Turn(turn(Then::Well))).await;
            }
        }
    }
}

#[tokio::test]
async fn lesson_e04_no_remedy_breaks_the_history() {
    for (wire, other) in WIRES.into_iter().zip(WIRES.into_iter().cycle().skip(1)) {
        let mut life = Life::begin(wire).await;
        let turn = |from, think, then| {
            let steps =
                vec![Step { calls: vec![0, 5], breaks: None }, Step { calls: vec![2], breaks: Some(3) }];
            Act::Turn(Turn { from, think, steps, yes: think, then })
        };
        let acts = [
            turn(From::End, true, Then::Well),
            turn(From::End, true, Then::TooLong),
            turn(From::End, true, Then::In(Moment::Stream(3), Deed::Kill)),
            Act::Switch(wire, 1, other),
            turn(From::End, true, Then::StandIn),
            turn(From::End, true, Then::TooLong),
            turn(From::End, false, Then::Broken),
            turn(From::End, true, Then::Well),
            // Behind what was shortened, and behind what goes without its reasoning.
            turn(From::Retry(3), true, Then::Well),
            turn(From::Edit(1), true, Then::TooLong),
            turn(From::Edit(0), true, Then::Well),
        ];
        for act in &acts {
            life.act(act).await;
        }
        assert!(life.shortened >= 2, "{wire:?}: shortened {} times", life.shortened);
    }
}

/// After a restart the usual model is asked again, so the thinking of the one that stood in is left out.
#[tokio::test]
async fn lesson_e04_words_behind_results_begin_no_thinking_that_another_model_would_have_to_end() {
    let step = |calls: &[u8]| Step { calls: calls.to_vec(), breaks: None };
    let turn =
        |think, steps: Vec<Step>, yes, then| Act::Turn(Turn { from: From::End, think, steps, yes, then });
    let wire = Wire::AnthropicMessages;
    let acts = [
        Act::Switch(wire, 0, wire),
        turn(true, vec![step(&[0])], false, Then::TooLong),
        turn(false, vec![], false, Then::Fails),
        turn(true, vec![step(&[0]), step(&[6, 3, 1])], true, Then::In(Moment::Tool, Deed::Restart)),
    ];
    live(wire, &acts).await;
}
