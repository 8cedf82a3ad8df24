//! Generates months of conversation between a user and an assistant, with questions about it.
//!
//! The user talks about their own life and about people they know: in sessions of some ten to forty messages
//! that drift from topic to topic, with small talk between. Facts are told in passing, or in answer to a
//! question in the message before; names are said once and pronouns stand for them; topics come up again with
//! further facts, and some facts change. It is the same for the same seed.

mod asking;
mod grammar;
mod small_talk;
mod topics;
mod words;
mod world;

use jiff::Span;
use jiff::civil::Date;

use self::grammar::{Lines, ended, phrase, sentence};
use self::world::{Advice, Matter, Statement, World, in_first_person};
use super::conversations::{Conversation, Message, MessageNumber, Session, Speaker};
use super::rng::SeededRng;

/// The first day, and the days that pass between two sessions unless there are very many.
const FIRST_DAY: Date = Date::constant(2023, 1, 9);
const DAYS_PER_SESSION: usize = 4;
/// The most days: five years.
const MAX_DAYS: usize = 5 * 365;
const MS_PER_DAY: i64 = 24 * 60 * 60 * 1_000;
/// The messages of a session, at least and at most.
const SESSION_MESSAGES: (usize, usize) = (10, 40);
/// The mean of them, for the number of sessions.
const MEAN_SESSION_MESSAGES: usize = 25;
/// A fact changes after some sessions only.
const MIN_SESSIONS_BEFORE_UPDATE: usize = 3;

/// A conversation that is being written.
struct Writer {
    rng: SeededRng,
    conversation: Conversation,
    world: World,
    small_talk: Lines,
    /// The number of the session that is being written, and its day.
    session: usize,
    day: Date,
}

/// Generates a conversation of about so many messages.
pub(crate) fn generate(seed: u64, messages: usize) -> Conversation {
    let mut rng = SeededRng::new(seed);
    let mut writer = Writer {
        world: World::new(messages, &mut rng),
        rng,
        conversation: Conversation::default(),
        small_talk: Lines::parse(small_talk::SMALL_TALK),
        session: 0,
        day: FIRST_DAY,
    };
    let sessions = messages.div_ceil(MEAN_SESSION_MESSAGES);
    let days = MAX_DAYS.min(sessions * DAYS_PER_SESSION);
    while writer.conversation.messages.len() < messages {
        let number = writer.session;
        let day = number * days / sessions + writer.rng.below(DAYS_PER_SESSION / 2);
        writer.write_session(i64::try_from(day).unwrap_or_default());
    }
    writer.conversation.questions = asking::ask(&writer.world, messages, &writer.small_talk, &mut writer.rng);
    writer.conversation
}

impl Writer {
    fn write_session(&mut self, day: i64) {
        self.day = FIRST_DAY.saturating_add(Span::new().days(day));
        let first = self.conversation.messages.len();
        let (least, most) = SESSION_MESSAGES;
        let end = first + self.rng.between(least, most - 6);
        self.say(Speaker::User, "greeting");
        self.say(Speaker::Agent, "welcome");
        if self.rng.chance(70) {
            self.say(Speaker::User, "mood");
            self.say(Speaker::Agent, "answer");
        }
        while self.conversation.messages.len() < end {
            match self.rng.below(100) {
                0..18 => self.chat(),
                18..24 => self.make_noise(),
                24..32 => self.ask_for_advice(),
                32..60 => self.open_matter(),
                60..90 => self.come_back(),
                _ => self.update(),
            }
        }
        self.say(Speaker::User, "bye");
        self.say(Speaker::Agent, "farewell");
        let began_ms = unix_ms(self.day) + i64::try_from(self.rng.between(7, 21)).unwrap_or(0) * 3_600_000;
        let messages = first..self.conversation.messages.len();
        self.conversation.sessions.push(Session { began_ms, messages });
        self.session += 1;
    }

    /// Adds to the last message if its speaker goes on, and returns its number.
    fn add(&mut self, speaker: Speaker, text: &str) -> MessageNumber {
        let is_new_session = self.conversation.sessions.last().map_or(0, |session| session.messages.end)
            == self.conversation.messages.len();
        let text = ended(&in_first_person(text));
        match self.conversation.messages.last_mut() {
            Some(last) if last.speaker == speaker && !is_new_session => {
                last.text = format!("{} {text}", last.text);
            }
            _ => self.conversation.messages.push(Message { speaker, text }),
        }
        self.conversation.messages.len() - 1
    }

    /// Says one of the lines of small talk with a key.
    fn say(&mut self, speaker: Speaker, key: &str) -> MessageNumber {
        let text = sentence(self.small_talk.get(key), &[], &mut self.rng);
        self.add(speaker, &text)
    }

    /// Sometimes begins the user's next sentence with a turn of phrase.
    fn turn(&mut self, key: &str, percent: u32, text: &str) -> String {
        if !self.rng.chance(percent) {
            return text.to_owned();
        }
        format!("{} {text}", phrase(self.small_talk.get(key), &[], &mut self.rng))
    }

    /// The assistant answers with some sentences, or the user goes on at once.
    fn answer(&mut self) {
        if self.rng.chance(80) {
            for _ in 0..self.rng.between(1, 2) {
                self.say(Speaker::Agent, "answer");
            }
        }
    }

    fn chat(&mut self) {
        for _ in 0..self.rng.between(1, 2) {
            self.say(Speaker::User, "day");
        }
        self.answer();
    }

    /// Says something with the words of a topic that is about nothing.
    fn make_noise(&mut self) {
        let topic = self.rng.below(self.world.topics.len());
        let Some(topic) = self.world.topics.get(topic) else { return };
        let slots = [("thing", phrase(topic.lines.get("thing"), &[], &mut self.rng))];
        let text = sentence(topic.lines.get("noise"), &slots, &mut self.rng);
        let text = self.turn("turn", 50, &text);
        self.add(Speaker::User, &text);
        self.answer();
    }

    fn ask_for_advice(&mut self) {
        let topic = self.rng.below(self.world.advice_topics.len());
        let Some(Some((lines, fact))) =
            self.world.advice_topics.get(topic).map(|topic| Some((&topic.lines, topic.facts.first()?)))
        else {
            return;
        };
        let thing = phrase(lines.get("thing"), &[], &mut self.rng);
        if self.world.advice.iter().any(|advice| advice.topic == topic && advice.thing == thing) {
            return;
        }
        let slots = [("thing", thing.clone()), ("value", phrase(fact.get("fact"), &[], &mut self.rng))];
        let texts = [lines.get("open"), fact.get("tell"), lines.get("chat")];
        let [open, tell, chat] = texts.map(|lines| sentence(lines, &slots, &mut self.rng));
        let open = self.turn("turn", 30, &open);
        self.add(Speaker::User, &open);
        let message = self.add(Speaker::Agent, &tell);
        self.world.advice.push(Advice { topic, thing, message });
        if self.rng.chance(50) {
            self.say(Speaker::Agent, "answer");
        }
        self.add(Speaker::User, &chat);
        self.answer();
    }

    /// Begins a topic, with one or two of its facts.
    fn open_matter(&mut self) {
        let Some((person, topic, thing)) = self.world.new_matter(&mut self.rng) else { return };
        let Some(facts) = self.world.topics.get(topic).map(|topic| topic.facts.len()) else { return };
        let ago = self.rng.below(13);
        let event = self.day.saturating_sub(Span::new().days(i64::try_from(ago).unwrap_or(0)));
        let mut slots = self.world.named(person, &thing, &mut self.rng);
        slots.push(("when", self.when(event)));
        let text = self.topic_line(topic, "open", &slots);
        let text = self.turn("turn", 60, &text);
        let opened_at = self.add(Speaker::User, &text);
        let told = vec![None; facts];
        self.world.matters.push(Matter { person, topic, thing, opened_at, event, told });
        let matter = self.world.matters.len() - 1;
        for _ in 0..self.rng.between(1, 2) {
            self.tell_next(matter);
            if self.rng.chance(40) {
                self.react(matter);
                self.chat_about(matter);
            }
        }
        self.answer();
    }

    /// Comes back to a topic, mostly with another fact.
    fn come_back(&mut self) {
        let count = self.world.matters.len();
        // The latest come up more often.
        let number = self.rng.below(count).max(self.rng.below(count));
        let Some(matter) = self.world.matters.get(number) else { return };
        let (person, topic, thing) = (matter.person, matter.topic, matter.thing.clone());
        let slots = self.world.named(person, &thing, &mut self.rng);
        let text = self.topic_line(topic, "again", &slots);
        let text = self.turn("back", 60, &text);
        self.add(Speaker::User, &text);
        if self.rng.chance(70) {
            self.tell_next(number);
        } else {
            self.react(number);
            self.chat_about(number);
        }
        self.answer();
    }

    /// Tells a fact that is not told yet, in passing or in answer to a question.
    fn tell_next(&mut self, matter: usize) {
        let told = self.world.matters.get(matter).map(|matter| matter.told.clone()).unwrap_or_default();
        let open: Vec<usize> = (0..told.len()).filter(|fact| told.get(*fact) == Some(&None)).collect();
        let Some(fact) = open.get(self.rng.below(open.len())).copied() else {
            return self.chat_about(matter);
        };
        let is_asked = self.rng.chance(50);
        if is_asked {
            if self.rng.chance(40) {
                self.react(matter);
            }
            let question = self.fact_line(matter, fact, "ask", Speaker::Agent);
            self.add(Speaker::Agent, &question);
            if self.rng.chance(8) {
                self.say(Speaker::User, "pause");
                self.say(Speaker::Agent, "resume");
                self.say(Speaker::User, "return");
            }
        } else if self.rng.chance(60) {
            self.react(matter);
        }
        self.state(matter, fact, if is_asked { "reply" } else { "tell" });
        if self.rng.chance(30) {
            self.chat_about(matter);
        }
    }

    /// Tells a value that replaces an earlier one.
    fn update(&mut self) {
        let count = self.world.statements.len();
        let Some(old) = self.world.statements.get(self.rng.below(count)) else { return };
        let (matter, fact) = (old.matter, old.fact);
        let is_old_enough = old.session + MIN_SESSIONS_BEFORE_UPDATE <= self.session && !old.is_replaced;
        let Some(of) = self.world.matters.get(matter) else { return };
        let lines = self.world.topics.get(of.topic).and_then(|topic| topic.facts.get(fact));
        if !is_old_enough || lines.is_none_or(|lines| lines.get("update").is_empty()) {
            return;
        }
        let (person, topic, thing) = (of.person, of.topic, of.thing.clone());
        let slots = self.world.named(person, &thing, &mut self.rng);
        let text = self.topic_line(topic, "again", &slots);
        let text = self.turn("back", 60, &text);
        self.add(Speaker::User, &text);
        if self.rng.chance(50) {
            self.react(matter);
        }
        self.state(matter, fact, "update");
        self.answer();
    }

    /// States a fact with a new value.
    fn state(&mut self, matter: usize, fact: usize, key: &str) {
        let text = self.fact_line(matter, fact, key, Speaker::User);
        let message = self.add(Speaker::User, &text);
        let number = self.world.statements.len();
        let place = self.world.matters.get_mut(matter).and_then(|matter| matter.told.get_mut(fact));
        let before = place.and_then(|place| place.replace(number));
        if let Some(before) = before.and_then(|before| self.world.statements.get_mut(before)) {
            before.is_replaced = true;
        }
        let (session, is_update) = (self.session, before.is_some());
        let is_replaced = false;
        self.world.statements.push(Statement { matter, fact, message, session, is_update, is_replaced });
        if self.rng.chance(30) {
            self.say(Speaker::User, "more");
        }
    }

    fn react(&mut self, matter: usize) {
        self.matter_line(matter, "react", Speaker::Agent);
        if self.rng.chance(30) {
            self.say(Speaker::Agent, "answer");
        }
    }

    fn chat_about(&mut self, matter: usize) {
        self.matter_line(matter, "chat", Speaker::User);
    }

    fn matter_line(&mut self, matter: usize, key: &str, speaker: Speaker) {
        let Some(of) = self.world.matters.get(matter) else { return };
        let slots = self.world.by_pronoun(of.person, &of.thing, speaker == Speaker::User);
        let text = self.topic_line(of.topic, key, &slots);
        self.add(speaker, &text);
    }

    fn topic_line(&mut self, topic: usize, key: &str, slots: grammar::Slots<'_>) -> String {
        let Some(topic) = self.world.topics.get(topic) else { return String::new() };
        sentence(topic.lines.get(key), slots, &mut self.rng)
    }

    /// A line of a fact, with a value where it has one.
    fn fact_line(&mut self, matter: usize, fact: usize, key: &str, speaker: Speaker) -> String {
        let Some(of) = self.world.matters.get(matter) else { return String::new() };
        let lines = self.world.topics.get(of.topic).and_then(|topic| topic.facts.get(fact));
        let Some(lines) = lines else { return String::new() };
        let mut slots = self.world.by_pronoun(of.person, &of.thing, speaker == Speaker::User);
        slots.push(("value", phrase(lines.get("fact"), &slots, &mut self.rng)));
        sentence(lines.get(key), &slots, &mut self.rng)
    }

    /// How the user names a recent day.
    fn when(&mut self, day: Date) -> String {
        let ago = day.until(self.day).map_or(0, |span| span.get_days());
        let weekday = WEEKDAYS.get(usize::try_from(day.weekday().to_monday_zero_offset()).unwrap_or(0));
        let (weekday, month) = (weekday.copied().unwrap_or_default(), month_name(day));
        let number = day.day();
        match (ago, self.rng.below(3)) {
            (0, _) => self.rng.pick(&["today", "this morning", "a few hours ago"]).to_owned(),
            (1, _) => self.rng.pick(&["yesterday", "last night"]).to_owned(),
            (2, _) => self.rng.pick(&["the day before yesterday", "two days ago"]).to_owned(),
            (3..7, 0 | 1) => format!("on {weekday}"),
            (7.., 0) => "a good week ago".to_owned(),
            (_, 1) => format!("on {number} {month}"),
            _ => format!("on {month} {number}"),
        }
    }
}

const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

fn month_name(day: Date) -> &'static str {
    MONTHS.get(usize::try_from(day.month() - 1).unwrap_or(0)).copied().unwrap_or_default()
}

fn unix_ms(day: Date) -> i64 {
    let epoch = Date::constant(1970, 1, 1);
    let days = day.until(epoch).map_or(0, |span| -i64::from(span.get_days()));
    days * MS_PER_DAY
}

#[cfg(test)]
#[path = "generator_tests.rs"]
mod tests;
