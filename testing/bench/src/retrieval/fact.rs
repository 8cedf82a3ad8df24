//! Something that is so, and the ways to put it.

use std::collections::HashSet;

use super::attributes::{Attribute, AttributeKind, RELATIONS, Relation, attributes};
use super::dates::Day;
use super::rng::SeededRng;
use super::small_talk;
use super::subjects::Subject;

/// A fact.
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
    /// Somebody is close to somebody else.
    Relation {
        relation: &'static Relation,
        other: Subject,
    },
}

impl Fact {
    /// Draws what is so of `of`.
    pub(crate) fn random(of: Subject, attribute: &'static Attribute, dice: &mut SeededRng) -> Self {
        let mut value =
            |nth: usize| attribute.values.get(nth).map_or("", |values| dice.pick_from_list(values));
        let values = [value(0), value(1)];
        Self { subject: of, content: FactContent::Value { attribute, values, day: Day::random(dice) } }
    }

    /// Draws what is so of the same instead of this.
    pub(crate) fn with_new_value(&self, dice: &mut SeededRng) -> Self {
        let FactContent::Value { attribute, values, .. } = &self.content else { return self.clone() };
        let mut other = Self::random(self.subject.clone(), attribute, dice);
        while matches!(&other.content, FactContent::Value { values: [drawn, _], .. } if *drawn == values[0]) {
            other = Self::random(self.subject.clone(), attribute, dice);
        }
        other
    }

    /// The day that is told.
    pub(crate) fn day(&self) -> Option<Day> {
        match &self.content {
            FactContent::Value { attribute, day, .. } => {
                (attribute.kind == AttributeKind::Day).then_some(*day)
            }
            FactContent::Relation { .. } => None,
        }
    }

    /// Moves it to another day where its own is one of these.
    pub(crate) fn avoid_days(&mut self, days: &HashSet<Day>, dice: &mut SeededRng) {
        if let FactContent::Value { day, .. } = &mut self.content {
            while days.contains(day) {
                *day = Day::random(dice);
            }
        }
    }

    /// A sentence that tells it, of `who`.
    pub(crate) fn statement(&self, who: &str, dice: &mut SeededRng) -> String {
        let template = match &self.content {
            FactContent::Value { attribute, .. } => dice.pick(attribute.statements),
            FactContent::Relation { relation: tie, .. } => dice.pick(tie.statements),
        };
        self.render(template, who, dice)
    }

    /// What an agent keeps of it.
    pub(crate) fn record(&self, dice: &mut SeededRng) -> String {
        let template = match &self.content {
            FactContent::Value { attribute, .. } => dice.pick(attribute.records),
            FactContent::Relation { relation: tie, .. } => dice.pick(tie.statements),
        };
        self.render(template, &self.subject.name, dice)
    }

    fn render(&self, template: &str, who: &str, dice: &mut SeededRng) -> String {
        let text = match &self.content {
            FactContent::Value { values: [first, second], day, .. } => template
                .replace("{0}", first)
                .replace("{1}", second)
                .replace("{date}", &day.format(dice))
                .replace("{who}", who),
            FactContent::Relation { other, .. } => {
                template.replace("{other}", &other.name).replace("{who}", who)
            }
        };
        small_talk::polish_sentence(&text)
    }
}

/// A question about `who`, in its own words or in those that tell the same.
pub(crate) fn question_text(attribute: &Attribute, who: &str, dice: &mut SeededRng) -> String {
    let texts = if dice.chance(PARAPHRASE_PERCENT) {
        attribute.paraphrased_questions
    } else {
        attribute.literal_questions
    };
    dice.pick(texts).replace("{who}", who)
}

/// How many of a hundred questions are put in words of their own.
const PARAPHRASE_PERCENT: u32 = 45;

/// The attribute of the `nth` place, counted round and round, among those that are about one of these.
pub(crate) fn nth_attribute(about: &[AttributeKind], nth: usize) -> Option<(usize, &'static Attribute)> {
    let fit_to_budget: Vec<_> =
        attributes().enumerate().filter(|(_, attribute)| about.contains(&attribute.kind)).collect();
    fit_to_budget.get(nth.checked_rem(fit_to_budget.len())?).copied()
}

/// One of the ways to be close.
pub(crate) fn nth_relation(nth: usize) -> Option<&'static Relation> {
    RELATIONS.get(nth.checked_rem(RELATIONS.len())?)
}
