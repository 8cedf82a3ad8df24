//! Something that is so, and the ways to put it.

use std::collections::HashSet;

use super::attributes::{About, Attribute, TIES, Tie, attributes};
use super::chatter;
use super::dates::Day;
use super::dice::Dice;
use super::people::Subject;

/// A fact.
#[derive(Clone)]
pub(crate) struct Fact {
    pub(crate) of: Subject,
    pub(crate) content: Content,
}

#[derive(Clone)]
pub(crate) enum Content {
    Value {
        attribute: &'static Attribute,
        values: [&'static str; 2],
        day: Day,
    },
    /// Somebody is close to somebody else.
    Tie {
        tie: &'static Tie,
        other: Subject,
    },
}

impl Fact {
    /// Draws what is so of `of`.
    pub(crate) fn any(of: Subject, attribute: &'static Attribute, dice: &mut Dice) -> Self {
        let mut value = |nth: usize| attribute.values.get(nth).map_or("", |values| dice.listed(values));
        let values = [value(0), value(1)];
        Self { of, content: Content::Value { attribute, values, day: Day::any(dice) } }
    }

    /// Draws what is so of the same instead of this.
    pub(crate) fn changed(&self, dice: &mut Dice) -> Self {
        let Content::Value { attribute, values, .. } = &self.content else { return self.clone() };
        let mut other = Self::any(self.of.clone(), attribute, dice);
        while matches!(&other.content, Content::Value { values: [drawn, _], .. } if *drawn == values[0]) {
            other = Self::any(self.of.clone(), attribute, dice);
        }
        other
    }

    /// The day that is told.
    pub(crate) fn day(&self) -> Option<Day> {
        match &self.content {
            Content::Value { attribute, day, .. } => (attribute.about == About::Day).then_some(*day),
            Content::Tie { .. } => None,
        }
    }

    /// Moves it to another day where its own is one of these.
    pub(crate) fn avoid(&mut self, days: &HashSet<Day>, dice: &mut Dice) {
        if let Content::Value { day, .. } = &mut self.content {
            while days.contains(day) {
                *day = Day::any(dice);
            }
        }
    }

    /// A sentence that tells it, of `who`.
    pub(crate) fn told(&self, who: &str, dice: &mut Dice) -> String {
        let template = match &self.content {
            Content::Value { attribute, .. } => dice.one(attribute.told),
            Content::Tie { tie, .. } => dice.one(tie.told),
        };
        self.put(template, who, dice)
    }

    /// What an agent keeps of it.
    pub(crate) fn recorded(&self, dice: &mut Dice) -> String {
        let template = match &self.content {
            Content::Value { attribute, .. } => dice.one(attribute.recorded),
            Content::Tie { tie, .. } => dice.one(tie.told),
        };
        self.put(template, &self.of.name, dice)
    }

    fn put(&self, template: &str, who: &str, dice: &mut Dice) -> String {
        let text = match &self.content {
            Content::Value { values: [first, second], day, .. } => template
                .replace("{0}", first)
                .replace("{1}", second)
                .replace("{date}", &day.written(dice))
                .replace("{who}", who),
            Content::Tie { other, .. } => template.replace("{other}", &other.name).replace("{who}", who),
        };
        chatter::tidy(&text)
    }
}

/// A question about `who`, in its own words or in those that tell the same.
pub(crate) fn asked(attribute: &Attribute, who: &str, dice: &mut Dice) -> String {
    let texts = if dice.chance(OWN_WORDS) { attribute.asked } else { attribute.asked_alike };
    dice.one(texts).replace("{who}", who)
}

/// How many of a hundred questions are put in words of their own.
const OWN_WORDS: u32 = 45;

/// The attribute of the `nth` place, counted round and round, among those that are about one of these.
pub(crate) fn attribute(about: &[About], nth: usize) -> Option<(usize, &'static Attribute)> {
    let fitting: Vec<_> =
        attributes().enumerate().filter(|(_, attribute)| about.contains(&attribute.about)).collect();
    fitting.get(nth.checked_rem(fitting.len())?).copied()
}

/// One of the ways to be close.
pub(crate) fn tie(nth: usize) -> Option<&'static Tie> {
    TIES.get(nth.checked_rem(TIES.len())?)
}
