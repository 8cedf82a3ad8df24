//! The questions about a generated conversation.

use super::super::conversations::Question;
use super::super::rng::SeededRng;
use super::grammar::{Lines, capitalize, phrase, sentence};
use super::month_name;
use super::world::{Matter, Statement, World, in_first_person};

/// The kinds of questions.
pub(crate) const SINGLE: &str = "single fact";
pub(crate) const PARAPHRASE: &str = "in other words";
pub(crate) const JOINED: &str = "two facts";
pub(crate) const TEMPORAL: &str = "temporal";
pub(crate) const UPDATED: &str = "updated fact";
pub(crate) const ADVICE: &str = "assistant's answer";
pub(crate) const UNANSWERABLE: &str = "unanswerable";
pub(crate) const SMALL_TALK: &str = "small talk";

/// The most questions of a kind. Small conversations have fewer, so that most of the text is not asked for.
const MAX_PER_KIND: usize = 40;
const MESSAGES_PER_QUESTION: usize = 80;

/// Asks at most so many questions of each kind as a conversation of so many messages bears.
pub(super) fn ask(world: &World, messages: usize, small_talk: &Lines, rng: &mut SeededRng) -> Vec<Question> {
    let count = (messages / MESSAGES_PER_QUESTION).clamp(1, MAX_PER_KIND);
    let mut asker = Asker { world, rng, count, questions: Vec::new() };
    let statements = asker.shuffled(&world.statements);
    let (updated, lasting): (Vec<&Statement>, Vec<&Statement>) =
        statements.into_iter().filter(|one| !one.is_replaced).partition(|one| one.is_update);
    // Each fact is asked for once.
    let mut parts = lasting.chunks(count);
    asker.ask_for_each(SINGLE, parts.next().unwrap_or_default(), "q");
    asker.ask_for_each(PARAPHRASE, parts.next().unwrap_or_default(), "para");
    asker.ask_for_each(UPDATED, &updated, "q");
    asker.ask_for_two(parts.next().unwrap_or_default(), &lasting);
    asker.ask_for_times();
    asker.ask_for_advice();
    asker.ask_for_nothing();
    for _ in 0..count {
        let text = sentence(small_talk.get("idle"), &[], asker.rng);
        asker.add(SMALL_TALK, &text, Vec::new());
    }
    asker.questions
}

struct Asker<'a> {
    world: &'a World,
    rng: &'a mut SeededRng,
    count: usize,
    questions: Vec<Question>,
}

impl<'a> Asker<'a> {
    fn add(&mut self, kind: &str, text: &str, mut evidence: Vec<usize>) {
        evidence.sort_unstable();
        evidence.dedup();
        let text = in_first_person(&capitalize(text));
        self.questions.push(Question { kind: kind.to_owned(), text, evidence });
    }

    fn shuffled<T>(&mut self, all: &'a [T]) -> Vec<&'a T> {
        let mut all: Vec<&T> = all.iter().collect();
        for end in (1..all.len()).rev() {
            all.swap(end, self.rng.below(end + 1));
        }
        all
    }

    fn ask_for_each(&mut self, kind: &str, statements: &[&Statement], key: &str) {
        for statement in statements.iter().take(self.count) {
            if let Some(text) = self.question(statement.matter, statement.fact, key) {
                self.add(kind, &text, vec![statement.message]);
            }
        }
    }

    /// The question for a fact.
    fn question(&mut self, matter: usize, fact: usize, key: &str) -> Option<String> {
        let Matter { person, topic, thing, .. } = self.world.matters.get(matter)?;
        self.question_about(*person, *topic, thing, fact, key)
    }

    fn question_about(
        &mut self,
        person: Option<usize>,
        topic: usize,
        thing: &str,
        fact: usize,
        key: &str,
    ) -> Option<String> {
        let lines = self.world.topics.get(topic)?.facts.get(fact)?;
        Some(sentence(lines.get(key), &self.world.named(person, thing, self.rng), self.rng))
    }

    /// Asks for facts from two sessions: of one matter, or the same of two.
    fn ask_for_two(&mut self, firsts: &[&Statement], all: &[&Statement]) {
        for (number, first) in firsts.iter().enumerate() {
            let is_fitting = |other: &&&Statement| {
                let is_same = other.matter == first.matter;
                let topic = |one: &Statement| self.world.matters.get(one.matter).map(|matter| matter.topic);
                let is_like = other.fact == first.fact && topic(other) == topic(first);
                other.session != first.session && if number % 2 == 0 { is_same } else { is_like && !is_same }
            };
            let Some(second) = all.iter().find(is_fitting) else { continue };
            let texts = [first, second].map(|one| self.question(one.matter, one.fact, "q"));
            if let [Some(one), Some(other)] = texts {
                let mut letters = other.chars();
                let other: String =
                    letters.next().into_iter().flat_map(char::to_lowercase).chain(letters).collect();
                let text = format!("{}, and {other}", one.trim_end_matches('?'));
                self.add(JOINED, &text, vec![first.message, second.message]);
            }
        }
    }

    /// Asks when something took place, and what somebody did in a month.
    fn ask_for_times(&mut self) {
        let matters = self.shuffled(&self.world.matters);
        for (number, matter) in matters.iter().take(self.count).enumerate() {
            let Some(topic) = self.world.topics.get(matter.topic) else { continue };
            let slots = self.world.named(matter.person, &matter.thing, self.rng);
            let who = phrase(&["{who}".to_owned()], &slots, self.rng);
            if number % 3 > 0 || matter.person.is_none() {
                let did = phrase(topic.lines.get("did"), &slots, self.rng);
                self.add(TEMPORAL, &format!("When did {who} {did}?"), vec![matter.opened_at]);
                continue;
            }
            let month = matter.event.first_of_month();
            let is_of_month =
                |other: &&Matter| other.person == matter.person && other.event.first_of_month() == month;
            let evidence = self.world.matters.iter().filter(is_of_month);
            let evidence = evidence.map(|other| other.opened_at).collect();
            let text = format!("What did {who} do in {} {}?", month_name(month), month.year());
            self.add(TEMPORAL, &text, evidence);
        }
    }

    fn ask_for_advice(&mut self) {
        for advice in self.shuffled(&self.world.advice).into_iter().take(self.count) {
            let fact = self.world.advice_topics.get(advice.topic).and_then(|topic| topic.facts.first());
            let key = if self.rng.chance(30) { "para" } else { "q" };
            if let Some(fact) = fact {
                let text = sentence(fact.get(key), &[("thing", advice.thing.clone())], self.rng);
                self.add(ADVICE, &text, vec![advice.message]);
            }
        }
    }

    /// Asks for what was never told: a fact of somebody else's matter, or one of a matter that was left out.
    fn ask_for_nothing(&mut self) {
        let matters = self.shuffled(&self.world.matters);
        let mut left = self.count;
        for (number, matter) in matters.into_iter().enumerate() {
            let person =
                if number % 2 == 0 { matter.person } else { Some(self.rng.below(self.world.people.len())) };
            let fact = if number % 2 == 0 {
                matter.told.iter().position(Option::is_none)
            } else {
                let is_known = |other: &Matter| other.person == person && other.topic == matter.topic;
                let is_free = !self.world.matters.iter().any(is_known);
                is_free.then(|| self.rng.below(matter.told.len()))
            };
            let text =
                fact.and_then(|fact| self.question_about(person, matter.topic, &matter.thing, fact, "q"));
            if let Some(text) = text.filter(|_| left > 0) {
                self.add(UNANSWERABLE, &text, Vec::new());
                left -= 1;
            }
        }
    }
}
