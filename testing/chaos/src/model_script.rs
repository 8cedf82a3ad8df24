//! The model's answers: a function of the conversation, so that a model step repeated after a kill continues the
//! same conversation and, by seeded choice, answers the same as before or something else.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use mock_llm::{CapturedRequest, Fault, Refusal, Reply};
use parking_lot::Mutex;

use crate::counters::Counters;
use crate::prompt::{self, Message};
use crate::rng::{SeededRng, stable_hash};
use crate::tool_calls::{CallContext, OfferedTools};
use crate::trigger::KillTrigger;
use crate::workload::Workload;

/// The most model steps of a turn.
const MAX_STEPS: u64 = 4;
const WORDS: [&str; 12] = [
    "amber", "bridge", "copper", "dune", "ember", "fjord", "grove", "harbour", "island", "juniper", "kelp",
    "lantern",
];

/// Generates the model's answers.
#[derive(Debug)]
pub(crate) struct ModelScript {
    seed: u64,
    workload: Workload,
    counters: Arc<Counters>,
    trigger: Arc<KillTrigger>,
    state: Mutex<ScriptState>,
}

#[derive(Debug, Default)]
struct ScriptState {
    requests: u64,
    steps: HashMap<u64, StepHistory>,
    /// The markers of messages that the model has received.
    sent_markers: HashSet<u64>,
    /// The hashes of the texts that the model has produced.
    produced_texts: HashSet<u64>,
}

/// How often a model step was requested, and the last answer.
#[derive(Clone, Copy, Debug, Default)]
struct StepHistory {
    count: u64,
    variant: u64,
    is_truncated: bool,
}

/// The marker of a task in its user messages, which tells the model whose log to edit.
pub(crate) fn task_marker(task: &str) -> String {
    format!("{TASK_MARKER_PREFIX}{task};")
}

/// The marker by which a message is found in the model's input.
pub(crate) fn message_marker(number: u64) -> String {
    format!("{MESSAGE_MARKER_PREFIX}{number};")
}

const TASK_MARKER_PREFIX: &str = "chaos-task:";
const MESSAGE_MARKER_PREFIX: &str = "chaos-mark:";

impl ModelScript {
    /// The script of a run.
    pub(crate) fn new(
        seed: u64,
        workload: Workload,
        counters: Arc<Counters>,
        trigger: Arc<KillTrigger>,
    ) -> Self {
        Self { seed, workload, counters, trigger, state: Mutex::default() }
    }

    /// Whether the model ever received the message with this marker.
    pub(crate) fn was_sent(&self, marker: u64) -> bool {
        self.state.lock().sent_markers.contains(&marker)
    }

    /// Whether the model ever produced this text.
    pub(crate) fn has_produced(&self, text: &str) -> bool {
        text.is_empty() || self.state.lock().produced_texts.contains(&stable_hash(text))
    }

    /// Returns the reply to a request.
    pub(crate) fn reply(&self, request: &CapturedRequest) -> Reply {
        self.trigger.notify("model asked");
        let conversation = stable_hash(prompt::conversation(request).to_string());
        let (number, history) = self.record_request(&String::from_utf8_lossy(&request.raw), conversation);
        if history.count == 1
            && let Some(fault) = self.fault(conversation)
        {
            return fault;
        }
        let mut rng = SeededRng::new(self.seed, (conversation, history.variant));
        let state = ConversationState::from_messages(prompt::messages(request));
        let mut reply = Reply::new();
        // A reply with thinking begins with it.
        let thinks = prompt::wants_visible_thinking(request);
        if thinks {
            reply = reply.thinking(random_words(&mut rng, 2..=8));
        }
        let context = CallContext { task: state.task.clone(), request_number: number };
        let wants_tools = state.answers + 1 < 1 + stable_hash((self.seed, &state.last_user_text)) % MAX_STEPS;
        let calls = OfferedTools::from_request(request);
        let text =
            if wants_tools && rng.chance(0.4) { String::new() } else { random_words(&mut rng, 1..=25) };
        let text = if history.is_truncated { first_half(&text) } else { text };
        if !text.is_empty() {
            self.state.lock().produced_texts.insert(stable_hash(&text));
            reply = reply.text(text);
        }
        if wants_tools {
            reply = calls.add_calls(reply, &mut rng, &self.workload, &context);
        }
        if reply.blocks.is_empty() || (thinks && reply.blocks.len() == 1) {
            self.state.lock().produced_texts.insert(stable_hash("Done."));
            reply = reply.text("Done.");
        }
        let pause = rng.between(0..=2);
        let chars = usize::try_from(rng.between(4..=16)).unwrap_or(8);
        reply.chars_per_delta(chars).delay(Duration::from_millis(pause))
    }

    /// Records a request: its number, and how often its step was requested.
    fn record_request(&self, body: &str, conversation: u64) -> (u64, StepHistory) {
        let markers = body
            .split(MESSAGE_MARKER_PREFIX)
            .skip(1)
            .filter_map(|rest| rest.split(';').next()?.parse::<u64>().ok());
        let mut state = self.state.lock();
        state.sent_markers.extend(markers);
        state.requests += 1;
        let number = state.requests;
        let history = state.steps.entry(conversation).or_default();
        history.count += 1;
        if history.count > 1 {
            let mut rng = SeededRng::new(self.seed, (conversation, "repeated", history.count));
            let diverges = rng.chance(self.workload.diverges);
            if diverges && rng.chance(0.3) {
                history.is_truncated = !history.is_truncated;
            } else if diverges {
                history.variant = history.count;
            }
            self.counters.count(if diverges {
                "model steps repeated otherwise"
            } else {
                "model steps repeated alike"
            });
        }
        (number, *history)
    }

    fn fault(&self, conversation: u64) -> Option<Reply> {
        let mut rng = SeededRng::new(self.seed, (conversation, "fault"));
        if rng.chance(self.workload.failure) {
            self.counters.count("provider failures");
            return Some(Reply::from_fault(Fault::refuse(Refusal::Unauthorized)));
        }
        if !rng.chance(self.workload.fault) {
            return None;
        }
        self.counters.count("provider faults");
        let deltas = usize::try_from(rng.between(0..=6)).unwrap_or(0);
        let fault = match rng.between(0..=3) {
            0 => Fault::cut_after(deltas),
            1 => Fault::error_event_after(deltas),
            2 => Fault::NoEndMark,
            _ => Fault::refuse(Refusal::Overloaded),
        };
        Some(Reply::from_text(random_words(&mut rng, 4..=10)).fault(fault))
    }
}

/// The state of a conversation.
struct ConversationState {
    task: String,
    /// The last user message.
    last_user_text: String,
    /// The number of the model's answers since.
    answers: u64,
}

impl ConversationState {
    fn from_messages(turns: Vec<Message>) -> Self {
        let mut state = Self { task: String::new(), last_user_text: String::new(), answers: 0 };
        for turn in turns {
            match turn {
                Message::Model => state.answers += 1,
                Message::User(text) => {
                    // Memories of other tasks are quoted beside it.
                    let own = text.lines().filter(|line| !line.starts_with('>'));
                    let named = own.filter_map(|line| line.split(TASK_MARKER_PREFIX).nth(1)).next_back();
                    if let Some(task) = named.and_then(|rest| rest.split(';').next()) {
                        task.clone_into(&mut state.task);
                    }
                    if !text.is_empty() {
                        (state.last_user_text, state.answers) = (text, 0);
                    }
                }
            }
        }
        state
    }
}

/// Returns random words.
fn random_words(rng: &mut SeededRng, number: std::ops::RangeInclusive<u64>) -> String {
    let words: Vec<&str> = (0..rng.between(number)).filter_map(|_| rng.pick(&WORDS).copied()).collect();
    words.join(" ")
}

fn first_half(text: &str) -> String {
    text.get(..text.len() / 2).unwrap_or(text).trim_end().to_owned()
}
