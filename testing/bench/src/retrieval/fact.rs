//! Facts about a subject, and their wordings.

use std::collections::HashSet;

use super::attributes::{Attribute, AttributeKind, RELATIONS, Relation, attributes};
use super::dates::Day;
use super::rng::SeededRng;
use super::small_talk;
use super::subjects::Subject;

/// A fact about a subject.
#[derive(Clone)]
pub(crate) struct Fact {
    pub(crate) subject: Subject,
    pub(crate) content: FactContent,
}

#[derive(Clone)]
pub(crate) enum FactContent {
    Value {
        attribute: &'static Attribute,
        values: [&'static str; 2],
        day: Day,
    },
    /// A relation of the subject to another one.
    Relation {
        relation: &'static Relation,
        other: Subject,
    },
}

impl Fact {
    /// Draws random values of `attribute` for `subject`.
    pub(crate) fn random(subject: Subject, attribute: &'static Attribute, rng: &mut SeededRng) -> Self {
        let mut value =
            |nth: usize| attribute.values.get(nth).map_or("", |values| rng.pick_from_list(values));
        let values = [value(0), value(1)];
        Self { subject, content: FactContent::Value { attribute, values, day: Day::random(rng) } }
    }

    /// Draws a fact about the same attribute with another value.
    pub(crate) fn with_new_value(&self, rng: &mut SeededRng) -> Self {
        let FactContent::Value { attribute, values, .. } = &self.content else { return self.clone() };
        let mut other = Self::random(self.subject.clone(), attribute, rng);
        while matches!(&other.content, FactContent::Value { values: [drawn, _], .. } if *drawn == values[0]) {
            other = Self::random(self.subject.clone(), attribute, rng);
        }
        other
    }

    /// Returns the day, if the fact's statements contain one.
    pub(crate) fn day(&self) -> Option<Day> {
        match &self.content {
            FactContent::Value { attribute, day, .. } => {
                (attribute.kind == AttributeKind::Day).then_some(*day)
            }
            FactContent::Relation { .. } => None,
        }
    }

    /// Moves the fact to another day if its own is one of `days`.
    pub(crate) fn avoid_days(&mut self, days: &HashSet<Day>, rng: &mut SeededRng) {
        if let FactContent::Value { day, .. } = &mut self.content {
            while days.contains(day) {
                *day = Day::random(rng);
            }
        }
    }

    /// Returns a sentence that states the fact about `who`.
    pub(crate) fn statement(&self, who: &str, rng: &mut SeededRng) -> String {
        let template = match &self.content {
            FactContent::Value { attribute, .. } => rng.pick(attribute.statements),
            FactContent::Relation { relation, .. } => rng.pick(relation.statements),
        };
        self.render(template, who, rng)
    }

    /// Returns the content of a knowledge record of the fact.
    pub(crate) fn record(&self, rng: &mut SeededRng) -> String {
        let template = match &self.content {
            FactContent::Value { attribute, .. } => rng.pick(attribute.records),
            FactContent::Relation { relation, .. } => rng.pick(relation.statements),
        };
        self.render(template, &self.subject.name, rng)
    }

    fn render(&self, template: &str, who: &str, rng: &mut SeededRng) -> String {
        let text = match &self.content {
            FactContent::Value { values: [first, second], day, .. } => template
                .replace("{0}", first)
                .replace("{1}", second)
                .replace("{date}", &day.format(rng))
                .replace("{who}", who),
            FactContent::Relation { other, .. } => {
                template.replace("{other}", &other.name).replace("{who}", who)
            }
        };
        small_talk::polish_sentence(&text)
    }
}

/// Returns a question about `who`, paraphrased or in the words of the statements.
pub(crate) fn question_text(attribute: &Attribute, who: &str, rng: &mut SeededRng) -> String {
    let texts = if rng.chance(PARAPHRASE_PERCENT) {
        attribute.paraphrased_questions
    } else {
        attribute.literal_questions
    };
    rng.pick(texts).replace("{who}", who)
}

/// The percentage of paraphrased questions.
const PARAPHRASE_PERCENT: u32 = 45;

/// Returns the index and attribute at position `nth`, modulo their number, among the attributes of these kinds.
pub(crate) fn nth_attribute(kinds: &[AttributeKind], nth: usize) -> Option<(usize, &'static Attribute)> {
    let candidates: Vec<_> =
        attributes().enumerate().filter(|(_, attribute)| kinds.contains(&attribute.kind)).collect();
    candidates.get(nth.checked_rem(candidates.len())?).copied()
}

/// Returns the relation at position `nth`, modulo their number.
pub(crate) fn nth_relation(nth: usize) -> Option<&'static Relation> {
    RELATIONS.get(nth.checked_rem(RELATIONS.len())?)
}
