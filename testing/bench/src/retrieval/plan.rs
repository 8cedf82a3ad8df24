//! The plan of a corpus: the questions, the facts that answer them, and when and how each fact is stated. All
//! other conversation distracts from it.

use std::collections::HashSet;

use anyhow::Context as _;

use super::attributes::{Attribute, AttributeKind};
use super::dates::Day;
use super::fact::{self, Fact, FactContent};
use super::rng::SeededRng;
use super::subjects::{NameGenerator, Subject};

/// The kind of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QuestionKind {
    /// Asks for one fact.
    Single,
    /// Asks for two facts, both of which the answer needs.
    Joined,
    /// Asks for a fact that superseded another one.
    Superseded,
    /// Asks for a day, for what is on a day, or for what was said in a month.
    Date,
    /// Asks for a preference.
    Preference,
    /// Asks for something that was never said.
    Unanswerable,
}

impl QuestionKind {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 6] =
        [Self::Single, Self::Joined, Self::Superseded, Self::Date, Self::Preference, Self::Unanswerable];
}

/// The index of a fact in its plan.
pub(crate) type FactIndex = usize;

/// How a fact is stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MentionStyle {
    /// By the user, with the full name.
    ByName,
    /// By the user, who gave the full name in the previous turn.
    ByShortName,
    /// By the agent, who reports what it read.
    ReportedByAgent,
}

/// One statement of a fact.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FactMention {
    pub(crate) fact: FactIndex,
    /// The time, as a fraction of the corpus's span.
    pub(crate) time_fraction: f64,
    pub(crate) style: MentionStyle,
    /// Whether the agent saves a knowledge record of it.
    pub(crate) is_recorded: bool,
}

/// A question before it is worded.
pub(crate) struct PlannedQuestion {
    pub(crate) kind: QuestionKind,
    pub(crate) form: QuestionForm,
    /// The facts that answer the question; empty if it is unanswerable.
    pub(crate) evidence: Vec<FactIndex>,
    /// The superseded fact.
    pub(crate) superseded: Option<FactIndex>,
}

/// The form of a question.
pub(crate) enum QuestionForm {
    /// About the fact's subject.
    AboutFact(FactIndex),
    /// About the subjects of two facts.
    AboutTwoFacts(FactIndex, FactIndex),
    /// About a person who is described by a relation to the one who is named.
    ViaRelation { tie: FactIndex, end: FactIndex },
    /// About a day, without a name.
    OnDay(FactIndex),
    /// About a person in a month.
    InMonth(FactIndex),
    /// About something that was never said.
    Unanswerable { who: Subject, attribute: &'static Attribute },
}

/// A plan under construction or complete.
pub(crate) struct CorpusPlan {
    pub(crate) facts: Vec<Fact>,
    /// For each fact, the one that it supersedes.
    pub(crate) supersedes: Vec<Option<FactIndex>>,
    pub(crate) mentions: Vec<FactMention>,
    pub(crate) questions: Vec<PlannedQuestion>,
    /// The people whom questions are about. No other facts are stated about them, but distractors contain their
    /// names.
    pub(crate) people: Vec<Subject>,
    /// People with exactly one question, and without other facts than those for it.
    pub(crate) isolated_people: Vec<Subject>,
    /// The days that are asked for, on which no other fact occurs.
    pub(crate) asked_days: HashSet<Day>,
    pub(crate) name_generator: NameGenerator,
    /// The used pairs of person and attribute, by index, so that no person has two values of an attribute.
    used_attributes: HashSet<(usize, usize)>,
}

/// The first index of a relation, above those of the attributes.
const RELATION_INDEX_OFFSET: usize = 1_000;

impl CorpusPlan {
    /// Plans `per_kind` questions of each kind.
    pub(crate) fn new(per_kind: usize, rng: &mut SeededRng) -> anyhow::Result<Self> {
        let mut names = NameGenerator::default();
        let people = (0..per_kind * 2).map(|_| names.person(rng)).collect();
        let mut plan = Self {
            facts: Vec::new(),
            supersedes: Vec::new(),
            mentions: Vec::new(),
            questions: Vec::new(),
            people,
            isolated_people: Vec::new(),
            asked_days: HashSet::new(),
            name_generator: names,
            used_attributes: HashSet::new(),
        };
        for nth in 0..per_kind {
            plan.add_single(rng)?;
            plan.add_joined(nth, rng)?;
            plan.add_superseded(rng)?;
            plan.add_date(nth, rng)?;
            plan.add_preference(nth, rng)?;
            plan.add_unanswerable(nth, rng)?;
        }
        Ok(plan)
    }

    fn add_single(&mut self, rng: &mut SeededRng) -> anyhow::Result<()> {
        let fact = self.new_fact(&[AttributeKind::Fact], rng)?;
        let times = if rng.chance(15) { 2 } else { 1 };
        self.add_mentions(fact, times, (0.0, 1.0), rng);
        self.add_question(QuestionKind::Single, QuestionForm::AboutFact(fact), vec![fact]);
        Ok(())
    }

    fn add_joined(&mut self, nth: usize, rng: &mut SeededRng) -> anyhow::Result<()> {
        let end = self.new_fact(&[AttributeKind::Fact, AttributeKind::Preference], rng)?;
        self.add_mentions(end, 1, (0.0, 1.0), rng);
        let (first, form) = if nth.is_multiple_of(2) {
            let first = self.new_fact(&[AttributeKind::Fact, AttributeKind::Preference], rng)?;
            (first, QuestionForm::AboutTwoFacts(first, end))
        } else {
            let other = self.facts.get(end).context("a fact is missing")?.subject.clone();
            let tie = self.new_relation(other, rng)?;
            (tie, QuestionForm::ViaRelation { tie, end })
        };
        self.add_mentions(first, 1, (0.0, 1.0), rng);
        self.add_question(QuestionKind::Joined, form, vec![first, end]);
        Ok(())
    }

    fn add_superseded(&mut self, rng: &mut SeededRng) -> anyhow::Result<()> {
        let older = self.new_fact(&[AttributeKind::Fact, AttributeKind::Preference], rng)?;
        let now = self.facts.get(older).context("a fact is missing")?.with_new_value(rng);
        let fact = self.add_fact(now, Some(older));
        let times = if rng.chance(40) { 2 } else { 1 };
        self.add_mentions(older, times, (0.0, 0.4), rng);
        self.add_mentions(fact, 1, (0.6, 1.0), rng);
        // If the older fact was recorded, its change usually is too.
        let was_recorded = self.mentions.iter().any(|mention| mention.fact == older && mention.is_recorded);
        if let Some(last) = self.mentions.last_mut()
            && was_recorded
            && rng.chance(80)
        {
            last.is_recorded = true;
        }
        let (kind, form) = (QuestionKind::Superseded, QuestionForm::AboutFact(fact));
        self.questions.push(PlannedQuestion { kind, form, evidence: vec![fact], superseded: Some(older) });
        Ok(())
    }

    fn add_date(&mut self, nth: usize, rng: &mut SeededRng) -> anyhow::Result<()> {
        let (fact, form) = match nth % 4 {
            0 | 1 => {
                let fact = self.new_fact(&[AttributeKind::Day], rng)?;
                self.add_mentions(fact, 1, (0.0, 1.0), rng);
                (fact, QuestionForm::AboutFact(fact))
            }
            2 => {
                let fact = self.new_fact(&[AttributeKind::Day], rng)?;
                self.reserve_day(fact, rng);
                self.add_mentions(fact, 1, (0.0, 1.0), rng);
                (fact, QuestionForm::OnDay(fact))
            }
            _ => {
                let fact = self.fact_in_three_months(rng)?;
                (fact, QuestionForm::InMonth(fact))
            }
        };
        self.add_question(QuestionKind::Date, form, vec![fact]);
        Ok(())
    }

    /// Reserves the day of a fact that is asked for, and moves other facts to other days.
    fn reserve_day(&mut self, fact: FactIndex, rng: &mut SeededRng) {
        let Some(day) = self.facts.get(fact).and_then(Fact::day) else { return };
        self.asked_days.insert(day);
        for (number, other) in self.facts.iter_mut().enumerate() {
            if number != fact {
                other.avoid_days(&self.asked_days, rng);
            }
        }
    }

    /// Adds three facts about a new person, stated many months apart, and returns one of them.
    fn fact_in_three_months(&mut self, rng: &mut SeededRng) -> anyhow::Result<FactIndex> {
        let who = self.name_generator.person(rng);
        self.isolated_people.push(who.clone());
        let (first, chosen) = (rng.below(usize::MAX / 2), rng.below(3));
        let mut facts = Vec::new();
        for (nth, from) in [0.05, 0.4, 0.75].into_iter().enumerate() {
            let about = fact::nth_attribute(&[AttributeKind::Fact], first + nth)
                .context("there are no attributes")?;
            let fact = self.add_fact(Fact::random(who.clone(), about.1, rng), None);
            self.add_mentions(fact, 1, (from, from + 0.2), rng);
            facts.push(fact);
        }
        facts.get(chosen).copied().context("there are three facts")
    }

    fn add_preference(&mut self, nth: usize, rng: &mut SeededRng) -> anyhow::Result<()> {
        let fact = if nth % 3 == 2 {
            let place = self.name_generator.place(rng);
            let about = fact::nth_attribute(&[AttributeKind::PlacePreference], rng.below(usize::MAX / 2));
            self.add_fact(Fact::random(place, about.context("there are no attributes")?.1, rng), None)
        } else {
            self.new_fact(&[AttributeKind::Preference], rng)?
        };
        self.add_mentions(fact, 1, (0.0, 1.0), rng);
        self.add_question(QuestionKind::Preference, QuestionForm::AboutFact(fact), vec![fact]);
        Ok(())
    }

    fn add_unanswerable(&mut self, nth: usize, rng: &mut SeededRng) -> anyhow::Result<()> {
        let about = [AttributeKind::Fact, AttributeKind::Day, AttributeKind::Preference];
        let (who, attribute) = if nth.is_multiple_of(2) {
            let (person, attribute) = self.pick_unused_attribute(&about, rng)?;
            (self.people.get(person).context("a person is missing")?.clone(), attribute)
        } else {
            // A new person, who shares parts of the name with others.
            let attribute = fact::nth_attribute(&about, rng.below(usize::MAX / 2));
            (self.name_generator.person(rng), attribute.context("there are no attributes")?.1)
        };
        self.add_question(
            QuestionKind::Unanswerable,
            QuestionForm::Unanswerable { who, attribute },
            Vec::new(),
        );
        Ok(())
    }

    /// Adds a fact about one of the people.
    fn new_fact(&mut self, about: &[AttributeKind], rng: &mut SeededRng) -> anyhow::Result<FactIndex> {
        let (person, attribute) = self.pick_unused_attribute(about, rng)?;
        let subject = self.people.get(person).context("a person is missing")?.clone();
        let mut fact = Fact::random(subject, attribute, rng);
        fact.avoid_days(&self.asked_days, rng);
        Ok(self.add_fact(fact, None))
    }

    /// Adds a relation of one of the people to `other`.
    fn new_relation(&mut self, other: Subject, rng: &mut SeededRng) -> anyhow::Result<FactIndex> {
        for _ in 0..1_000 {
            let (person, nth) = (rng.below(self.people.len()), rng.below(RELATION_INDEX_OFFSET));
            let tie = fact::nth_relation(nth).context("there are no relations")?;
            let subject = self.people.get(person).context("a person is missing")?.clone();
            let kind = RELATION_INDEX_OFFSET + nth % super::attributes::RELATIONS.len();
            if subject != other && self.used_attributes.insert((person, kind)) {
                return Ok(self.add_fact(
                    Fact { subject, content: FactContent::Relation { relation: tie, other } },
                    None,
                ));
            }
        }
        anyhow::bail!("all relations are used")
    }

    /// Picks a person and an attribute of these kinds that the person does not have yet.
    fn pick_unused_attribute(
        &mut self,
        about: &[AttributeKind],
        rng: &mut SeededRng,
    ) -> anyhow::Result<(usize, &'static Attribute)> {
        for _ in 0..1_000 {
            let person = rng.below(self.people.len());
            let attribute = fact::nth_attribute(about, rng.below(usize::MAX / 2));
            let (number, attribute) = attribute.context("there are no attributes")?;
            if self.used_attributes.insert((person, number)) {
                return Ok((person, attribute));
            }
        }
        anyhow::bail!("all attributes of all people are used")
    }

    fn add_fact(&mut self, fact: Fact, supersedes: Option<FactIndex>) -> FactIndex {
        self.facts.push(fact);
        self.supersedes.push(supersedes);
        self.facts.len() - 1
    }

    /// Adds `times` statements of a fact within a part of the time, given as fractions.
    fn add_mentions(&mut self, fact: FactIndex, times: usize, (from, to): (f64, f64), rng: &mut SeededRng) {
        for _ in 0..times {
            let at = from + rng.fraction() * (to - from);
            let is_person = self.facts.get(fact).is_some_and(|fact| fact.subject.pronoun.is_some());
            let style = pick_style(is_person, rng);
            self.mentions.push(FactMention {
                fact,
                time_fraction: at,
                style,
                is_recorded: rng.chance(RECORDED_PERCENT),
            });
        }
    }

    fn add_question(&mut self, kind: QuestionKind, form: QuestionForm, evidence: Vec<FactIndex>) {
        self.questions.push(PlannedQuestion { kind, form, evidence, superseded: None });
    }
}

/// The percentage of statements of which the agent saves a knowledge record.
pub(crate) const RECORDED_PERCENT: u32 = 30;

/// Picks how a fact is stated: a quarter of those about people without the full name, some by the agent.
pub(crate) fn pick_style(is_person: bool, rng: &mut SeededRng) -> MentionStyle {
    match rng.below(100) {
        0..25 if is_person => MentionStyle::ByShortName,
        25..40 => MentionStyle::ReportedByAgent,
        _ => MentionStyle::ByName,
    }
}
