//! What the model says: a function of the conversation, so that a model step that is repeated after a kill
//! finds its conversation again and says, by seeded choice, the same as before or something else.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use strict_provider::{CapturedRequest, Fault, Refusal, Reply};

use crate::calls::{Calls, Slot};
use crate::dice::{Dice, hash};
use crate::heard::{self, Turn};
use crate::mix::Mix;
use crate::tally::Tally;
use crate::trap::Trap;

/// The most model steps that a turn takes by itself.
const MOST_STEPS: u64 = 4;
const WORDS: [&str; 12] = [
    "amber", "bridge", "copper", "dune", "ember", "fjord", "grove", "harbour", "island", "juniper", "kelp",
    "lantern",
];

/// See the module.
#[derive(Debug)]
pub(crate) struct Script {
    seed: u64,
    mix: Mix,
    tally: Arc<Tally>,
    trap: Arc<Trap>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    requests: u64,
    steps: HashMap<u64, Asked>,
    /// The marks of messages that the model has been sent.
    marks: HashSet<u64>,
    /// The texts that the model has said.
    texts: HashSet<u64>,
}

/// How often a model step was asked for, and what was said last.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    count: u64,
    variant: u64,
    ends_short: bool,
}

/// Names a task in what a person says to it, for the model to know whose log it keeps.
pub(crate) fn greeting(task: &str) -> String {
    format!("{TASK}{task};")
}

/// A mark by which a message is found in what the model is sent.
pub(crate) fn mark(number: u64) -> String {
    format!("{MARK}{number};")
}

const TASK: &str = "chaos-task:";
const MARK: &str = "chaos-mark:";

impl Script {
    /// The script of a run.
    pub(crate) fn new(seed: u64, mix: Mix, tally: Arc<Tally>, trap: Arc<Trap>) -> Self {
        Self { seed, mix, tally, trap, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the model was ever sent the message with this mark.
    pub(crate) fn was_sent(&self, mark: u64) -> bool {
        self.lock().marks.contains(&mark)
    }

    /// Whether the model ever said this.
    pub(crate) fn said(&self, text: &str) -> bool {
        text.is_empty() || self.lock().texts.contains(&hash(text))
    }

    /// The reply to a request.
    pub(crate) fn reply(&self, request: &CapturedRequest) -> Reply {
        self.trap.occurred("model asked");
        let conversation = hash(heard::conversation(request).to_string());
        let (number, asked) = self.note(&String::from_utf8_lossy(&request.raw), conversation);
        if asked.count == 1
            && let Some(fault) = self.fault(conversation)
        {
            return fault;
        }
        let mut dice = Dice::new(self.seed, (conversation, asked.variant));
        let stand = Stand::of(heard::turns(request));
        let mut reply = Reply::new();
        // A model that was asked to think begins with it.
        let thinks = heard::thinks(request);
        if thinks {
            reply = reply.thinking(words(&mut dice, 2..=8));
        }
        let slot = Slot { task: stand.task.clone(), number };
        let wants_tools = stand.answers + 1 < 1 + hash((self.seed, &stand.said)) % MOST_STEPS;
        let calls = Calls::offered(request);
        let text = if wants_tools && dice.chance(0.4) { String::new() } else { words(&mut dice, 1..=25) };
        let text = if asked.ends_short { first_half(&text) } else { text };
        if !text.is_empty() {
            self.lock().texts.insert(hash(&text));
            reply = reply.text(text);
        }
        if wants_tools {
            reply = calls.add(reply, &mut dice, &self.mix, &slot);
        }
        if reply.blocks.is_empty() || (thinks && reply.blocks.len() == 1) {
            self.lock().texts.insert(hash("Done."));
            reply = reply.text("Done.");
        }
        let pause = dice.between(0..=2);
        let chars = usize::try_from(dice.between(4..=16)).unwrap_or(8);
        reply.chars_per_delta(chars).delay(Duration::from_millis(pause))
    }

    /// Notes a request: its number, and how often its step was asked for.
    fn note(&self, body: &str, conversation: u64) -> (u64, Asked) {
        let marks = body.split(MARK).skip(1).filter_map(|rest| rest.split(';').next()?.parse::<u64>().ok());
        let mut state = self.lock();
        state.marks.extend(marks);
        state.requests += 1;
        let number = state.requests;
        let asked = state.steps.entry(conversation).or_default();
        asked.count += 1;
        if asked.count > 1 {
            let mut dice = Dice::new(self.seed, (conversation, "repeated", asked.count));
            let departs = dice.chance(self.mix.departs);
            if departs && dice.chance(0.3) {
                asked.ends_short = !asked.ends_short;
            } else if departs {
                asked.variant = asked.count;
            }
            self.tally.count(if departs {
                "model steps repeated otherwise"
            } else {
                "model steps repeated alike"
            });
        }
        (number, *asked)
    }

    fn fault(&self, conversation: u64) -> Option<Reply> {
        let mut dice = Dice::new(self.seed, (conversation, "fault"));
        if dice.chance(self.mix.failure) {
            self.tally.count("provider failures");
            return Some(Reply::of_fault(Fault::refuse(Refusal::Unauthorized)));
        }
        if !dice.chance(self.mix.fault) {
            return None;
        }
        self.tally.count("provider faults");
        let deltas = usize::try_from(dice.between(0..=6)).unwrap_or(0);
        let fault = match dice.between(0..=3) {
            0 => Fault::cut_after(deltas),
            1 => Fault::error_event_after(deltas),
            2 => Fault::NoEndMark,
            _ => Fault::refuse(Refusal::Overloaded),
        };
        Some(Reply::of_text(words(&mut dice, 4..=10)).fault(fault))
    }
}

/// Where a conversation stands.
struct Stand {
    task: String,
    /// What the person said last.
    said: String,
    /// How often the model has answered since.
    answers: u64,
}

impl Stand {
    fn of(turns: Vec<Turn>) -> Self {
        let mut stand = Self { task: String::new(), said: String::new(), answers: 0 };
        for turn in turns {
            match turn {
                Turn::Model => stand.answers += 1,
                Turn::Person(said) => {
                    // What is remembered of other tasks is quoted beside it.
                    let own = said.lines().filter(|line| !line.starts_with('>'));
                    let named = own.filter_map(|line| line.split(TASK).nth(1)).next_back();
                    if let Some(task) = named.and_then(|rest| rest.split(';').next()) {
                        task.clone_into(&mut stand.task);
                    }
                    if !said.is_empty() {
                        (stand.said, stand.answers) = (said, 0);
                    }
                }
            }
        }
        stand
    }
}

/// Some words.
fn words(dice: &mut Dice, number: std::ops::RangeInclusive<u64>) -> String {
    let words: Vec<&str> = (0..dice.between(number)).filter_map(|_| dice.pick(&WORDS).copied()).collect();
    words.join(" ")
}

fn first_half(text: &str) -> String {
    text.get(..text.len() / 2).unwrap_or(text).trim_end().to_owned()
}
