//! What of a life is asked for, and when and how it is told. Everything else is there to be taken for it.

use std::collections::HashSet;

use anyhow::Context as _;

use super::attributes::{Attribute, AttributeKind};
use super::dates::Day;
use super::fact::{self, Fact, FactContent};
use super::rng::SeededRng;
use super::subjects::{NameGenerator, Subject};

/// What a question asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QuestionKind {
    /// One fact.
    Single,
    /// Two facts, both of which the answer needs.
    Joined,
    /// What is so now, and was different before.
    Superseded,
    /// A day, or what was told of a day, or in a month.
    Date,
    /// What somebody wants.
    Preference,
    /// What was never told.
    Unanswerable,
}

impl QuestionKind {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 6] =
        [Self::Single, Self::Joined, Self::Superseded, Self::Date, Self::Preference, Self::Unanswerable];
}

/// The number of a fact in its plan.
pub(crate) type FactIndex = usize;

/// How a fact is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MentionStyle {
    /// By the user, with the name.
    ByName,
    /// By the user, who gave the whole name in the turn before.
    ByShortName,
    /// By the agent, who read it somewhere.
    ReportedByAgent,
}

/// One time that a fact is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FactMention {
    pub(crate) fact: FactIndex,
    /// When, as a share of the whole time.
    pub(crate) time_fraction: f64,
    pub(crate) style: MentionStyle,
    /// Whether the agent keeps it as knowledge.
    pub(crate) is_recorded: bool,
}

/// A question before it is put into words.
pub(crate) struct PlannedQuestion {
    pub(crate) kind: QuestionKind,
    pub(crate) form: QuestionForm,
    /// The facts that answer it; none where nothing does.
    pub(crate) evidence: Vec<FactIndex>,
    /// What answered it before.
    pub(crate) superseded: Option<FactIndex>,
}

/// How a question is put.
pub(crate) enum QuestionForm {
    /// About the fact's subject.
    AboutFact(FactIndex),
    /// About the subjects of two facts.
    AboutTwoFacts(FactIndex, FactIndex),
    /// About somebody who is called by a tie to the one who is named.
    ViaRelation { tie: FactIndex, end: FactIndex },
    /// About a day alone.
    OnDay(FactIndex),
    /// About a month and somebody.
    InMonth(FactIndex),
    /// About what nobody told.
    Unanswerable { who: Subject, attribute: &'static Attribute },
}

/// See the module.
pub(crate) struct CorpusPlan {
    pub(crate) facts: Vec<Fact>,
    /// For each fact the one whose place it takes.
    pub(crate) supersedes: Vec<Option<FactIndex>>,
    pub(crate) mentions: Vec<FactMention>,
    pub(crate) questions: Vec<PlannedQuestion>,
    /// Those whom questions are about. Nothing else is told of them, but much with their names in it.
    pub(crate) people: Vec<Subject>,
    /// The same, of whom nothing else is asked either.
    pub(crate) isolated_people: Vec<Subject>,
    /// Days that are asked for: nothing else is told of them.
    pub(crate) asked_days: HashSet<Day>,
    pub(crate) name_generator: NameGenerator,
    /// What was given to whom, so that nothing is told of somebody in two ways: the person's and the attribute's number.
    used_attributes: HashSet<(usize, usize)>,
}

/// Numbers of ties begin here, behind those of attributes.
const RELATION_INDEX_OFFSET: usize = 1_000;

impl CorpusPlan {
    /// So many questions of each kind.
    pub(crate) fn new(per_kind: usize, dice: &mut SeededRng) -> anyhow::Result<Self> {
        let mut names = NameGenerator::default();
        let people = (0..per_kind * 2).map(|_| names.person(dice)).collect();
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
            plan.add_single(dice)?;
            plan.add_joined(nth, dice)?;
            plan.add_superseded(dice)?;
            plan.add_date(nth, dice)?;
            plan.add_preference(nth, dice)?;
            plan.add_unanswerable(nth, dice)?;
        }
        Ok(plan)
    }

    fn add_single(&mut self, dice: &mut SeededRng) -> anyhow::Result<()> {
        let fact = self.new_fact(&[AttributeKind::Fact], dice)?;
        let times = if dice.chance(15) { 2 } else { 1 };
        self.add_mentions(fact, times, (0.0, 1.0), dice);
        self.add_question(QuestionKind::Single, QuestionForm::AboutFact(fact), vec![fact]);
        Ok(())
    }

    fn add_joined(&mut self, nth: usize, dice: &mut SeededRng) -> anyhow::Result<()> {
        let end = self.new_fact(&[AttributeKind::Fact, AttributeKind::Preference], dice)?;
        self.add_mentions(end, 1, (0.0, 1.0), dice);
        let (first, form) = if nth.is_multiple_of(2) {
            let first = self.new_fact(&[AttributeKind::Fact, AttributeKind::Preference], dice)?;
            (first, QuestionForm::AboutTwoFacts(first, end))
        } else {
            let other = self.facts.get(end).context("a fact is missing")?.subject.clone();
            let tie = self.new_relation(other, dice)?;
            (tie, QuestionForm::ViaRelation { tie, end })
        };
        self.add_mentions(first, 1, (0.0, 1.0), dice);
        self.add_question(QuestionKind::Joined, form, vec![first, end]);
        Ok(())
    }

    fn add_superseded(&mut self, dice: &mut SeededRng) -> anyhow::Result<()> {
        let older = self.new_fact(&[AttributeKind::Fact, AttributeKind::Preference], dice)?;
        let now = self.facts.get(older).context("a fact is missing")?.with_new_value(dice);
        let fact = self.add_fact(now, Some(older));
        let times = if dice.chance(40) { 2 } else { 1 };
        self.add_mentions(older, times, (0.0, 0.4), dice);
        self.add_mentions(fact, 1, (0.6, 1.0), dice);
        // Who keeps something mostly notes when it changes.
        let was_kept = self.mentions.iter().any(|telling| telling.fact == older && telling.is_recorded);
        if let Some(last) = self.mentions.last_mut()
            && was_kept
            && dice.chance(80)
        {
            last.is_recorded = true;
        }
        let (kind, form) = (QuestionKind::Superseded, QuestionForm::AboutFact(fact));
        self.questions.push(PlannedQuestion { kind, form, evidence: vec![fact], superseded: Some(older) });
        Ok(())
    }

    fn add_date(&mut self, nth: usize, dice: &mut SeededRng) -> anyhow::Result<()> {
        let (fact, form) = match nth % 4 {
            0 | 1 => {
                let fact = self.new_fact(&[AttributeKind::Day], dice)?;
                self.add_mentions(fact, 1, (0.0, 1.0), dice);
                (fact, QuestionForm::AboutFact(fact))
            }
            2 => {
                let fact = self.new_fact(&[AttributeKind::Day], dice)?;
                self.reserve_day(fact, dice);
                self.add_mentions(fact, 1, (0.0, 1.0), dice);
                (fact, QuestionForm::OnDay(fact))
            }
            _ => {
                let fact = self.fact_in_three_months(dice)?;
                (fact, QuestionForm::InMonth(fact))
            }
        };
        self.add_question(QuestionKind::Date, form, vec![fact]);
        Ok(())
    }

    /// The day of a fact is asked for: no other fact keeps it.
    fn reserve_day(&mut self, fact: FactIndex, dice: &mut SeededRng) {
        let Some(day) = self.facts.get(fact).and_then(Fact::day) else { return };
        self.asked_days.insert(day);
        for (number, other) in self.facts.iter_mut().enumerate() {
            if number != fact {
                other.avoid_days(&self.asked_days, dice);
            }
        }
    }

    /// One of three facts of somebody, told many months apart.
    fn fact_in_three_months(&mut self, dice: &mut SeededRng) -> anyhow::Result<FactIndex> {
        let who = self.name_generator.person(dice);
        self.isolated_people.push(who.clone());
        let (first, chosen) = (dice.below(usize::MAX / 2), dice.below(3));
        let mut facts = Vec::new();
        for (nth, from) in [0.05, 0.4, 0.75].into_iter().enumerate() {
            let about = fact::nth_attribute(&[AttributeKind::Fact], first + nth)
                .context("there are no attributes")?;
            let fact = self.add_fact(Fact::random(who.clone(), about.1, dice), None);
            self.add_mentions(fact, 1, (from, from + 0.2), dice);
            facts.push(fact);
        }
        facts.get(chosen).copied().context("there are three facts")
    }

    fn add_preference(&mut self, nth: usize, dice: &mut SeededRng) -> anyhow::Result<()> {
        let fact = if nth % 3 == 2 {
            let place = self.name_generator.place(dice);
            let about = fact::nth_attribute(&[AttributeKind::PlacePreference], dice.below(usize::MAX / 2));
            self.add_fact(Fact::random(place, about.context("there are no attributes")?.1, dice), None)
        } else {
            self.new_fact(&[AttributeKind::Preference], dice)?
        };
        self.add_mentions(fact, 1, (0.0, 1.0), dice);
        self.add_question(QuestionKind::Preference, QuestionForm::AboutFact(fact), vec![fact]);
        Ok(())
    }

    fn add_unanswerable(&mut self, nth: usize, dice: &mut SeededRng) -> anyhow::Result<()> {
        let about = [AttributeKind::Fact, AttributeKind::Day, AttributeKind::Preference];
        let (who, attribute) = if nth.is_multiple_of(2) {
            let (person, attribute) = self.pick_unused_attribute(&about, dice)?;
            (self.people.get(person).context("a person is missing")?.clone(), attribute)
        } else {
            // Parts of the name are others' names.
            let attribute = fact::nth_attribute(&about, dice.below(usize::MAX / 2));
            (self.name_generator.person(dice), attribute.context("there are no attributes")?.1)
        };
        self.add_question(
            QuestionKind::Unanswerable,
            QuestionForm::Unanswerable { who, attribute },
            Vec::new(),
        );
        Ok(())
    }

    /// A new fact of one of the people.
    fn new_fact(&mut self, about: &[AttributeKind], dice: &mut SeededRng) -> anyhow::Result<FactIndex> {
        let (person, attribute) = self.pick_unused_attribute(about, dice)?;
        let of = self.people.get(person).context("a person is missing")?.clone();
        let mut fact = Fact::random(of, attribute, dice);
        fact.avoid_days(&self.asked_days, dice);
        Ok(self.add_fact(fact, None))
    }

    /// That one of the people is close to `other`.
    fn new_relation(&mut self, other: Subject, dice: &mut SeededRng) -> anyhow::Result<FactIndex> {
        for _ in 0..1_000 {
            let (person, nth) = (dice.below(self.people.len()), dice.below(RELATION_INDEX_OFFSET));
            let tie = fact::nth_relation(nth).context("there are no ties")?;
            let of = self.people.get(person).context("a person is missing")?.clone();
            let kind = RELATION_INDEX_OFFSET + nth % super::attributes::RELATIONS.len();
            if of != other && self.used_attributes.insert((person, kind)) {
                return Ok(self.add_fact(
                    Fact { subject: of, content: FactContent::Relation { relation: tie, other } },
                    None,
                ));
            }
        }
        anyhow::bail!("nobody is left to be tied to somebody")
    }

    /// Somebody of whom something of the kind is not told yet, and that.
    fn pick_unused_attribute(
        &mut self,
        about: &[AttributeKind],
        dice: &mut SeededRng,
    ) -> anyhow::Result<(usize, &'static Attribute)> {
        for _ in 0..1_000 {
            let person = dice.below(self.people.len());
            let attribute = fact::nth_attribute(about, dice.below(usize::MAX / 2));
            let (number, attribute) = attribute.context("there are no attributes")?;
            if self.used_attributes.insert((person, number)) {
                return Ok((person, attribute));
            }
        }
        anyhow::bail!("nothing is left that could be told of anybody")
    }

    fn add_fact(&mut self, fact: Fact, supersedes: Option<FactIndex>) -> FactIndex {
        self.facts.push(fact);
        self.supersedes.push(supersedes);
        self.facts.len() - 1
    }

    /// Tells a fact so many times, in so much of the time.
    fn add_mentions(&mut self, fact: FactIndex, times: usize, (from, to): (f64, f64), dice: &mut SeededRng) {
        for _ in 0..times {
            let at = from + dice.fraction() * (to - from);
            let is_person = self.facts.get(fact).is_some_and(|fact| fact.subject.pronoun.is_some());
            let how = pick_style(is_person, dice);
            self.mentions.push(FactMention {
                fact,
                time_fraction: at,
                style: how,
                is_recorded: dice.chance(RECORDED_PERCENT),
            });
        }
    }

    fn add_question(&mut self, kind: QuestionKind, form: QuestionForm, evidence: Vec<FactIndex>) {
        self.questions.push(PlannedQuestion { kind, form, evidence, superseded: None });
    }
}

/// How many of a hundred facts the agent keeps as knowledge when they are told.
pub(crate) const RECORDED_PERCENT: u32 = 30;

/// Of what is told of people a quarter leaves the whole name to the turn before. Some is told by the agent.
pub(crate) fn pick_style(is_person: bool, dice: &mut SeededRng) -> MentionStyle {
    match dice.below(100) {
        0..25 if is_person => MentionStyle::ByShortName,
        25..40 => MentionStyle::ReportedByAgent,
        _ => MentionStyle::ByName,
    }
}
