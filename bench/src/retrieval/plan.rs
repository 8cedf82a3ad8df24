//! What of a life is asked for, and when and how it is told. Everything else is there to be taken for it.

use std::collections::HashSet;

use anyhow::Context as _;

use super::attributes::{About, Attribute};
use super::dates::Day;
use super::dice::Dice;
use super::fact::{self, Content, Fact};
use super::people::{Names, Subject};

/// What a question asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
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

impl Kind {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 6] =
        [Self::Single, Self::Joined, Self::Superseded, Self::Date, Self::Preference, Self::Unanswerable];
}

/// The number of a fact in its plan.
pub(crate) type FactNo = usize;

/// How a fact is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// By the user, with the name.
    ByName,
    /// By the user, who gave the whole name in the turn before.
    InShort,
    /// By the agent, who read it somewhere.
    ByAgent,
}

/// One time that a fact is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Telling {
    pub(crate) fact: FactNo,
    /// When, as a share of the whole time.
    pub(crate) at: f64,
    pub(crate) how: How,
    /// Whether the agent keeps it as knowledge.
    pub(crate) is_recorded: bool,
}

/// A question before it is put into words.
pub(crate) struct Asked {
    pub(crate) kind: Kind,
    pub(crate) form: Form,
    /// The facts that answer it; none where nothing does.
    pub(crate) evidence: Vec<FactNo>,
    /// What answered it before.
    pub(crate) older: Option<FactNo>,
}

/// How a question is put.
pub(crate) enum Form {
    /// About the fact's subject.
    Of(FactNo),
    /// About the subjects of two facts.
    OfTwo(FactNo, FactNo),
    /// About somebody who is called by a tie to the one who is named.
    Through { tie: FactNo, end: FactNo },
    /// About a day alone.
    OnDay(FactNo),
    /// About a month and somebody.
    InMonth(FactNo),
    /// About what nobody told.
    Missing { who: Subject, attribute: &'static Attribute },
}

/// See the module.
pub(crate) struct Plan {
    pub(crate) facts: Vec<Fact>,
    /// For each fact the one whose place it takes.
    pub(crate) supersedes: Vec<Option<FactNo>>,
    pub(crate) tellings: Vec<Telling>,
    pub(crate) asked: Vec<Asked>,
    /// Those whom questions are about. Nothing else is told of them, but much with their names in it.
    pub(crate) people: Vec<Subject>,
    /// The same, of whom nothing else is asked either.
    pub(crate) apart: Vec<Subject>,
    /// Days that are asked for: nothing else is told of them.
    pub(crate) days: HashSet<Day>,
    pub(crate) names: Names,
    /// What was given to whom, so that nothing is told of somebody in two ways: the person's and the attribute's number.
    given: HashSet<(usize, usize)>,
}

/// Numbers of ties begin here, behind those of attributes.
const TIES_FROM: usize = 1_000;

impl Plan {
    /// So many questions of each kind.
    pub(crate) fn new(per_kind: usize, dice: &mut Dice) -> anyhow::Result<Self> {
        let mut names = Names::default();
        let people = (0..per_kind * 2).map(|_| names.person(dice)).collect();
        let mut plan = Self {
            facts: Vec::new(),
            supersedes: Vec::new(),
            tellings: Vec::new(),
            asked: Vec::new(),
            people,
            apart: Vec::new(),
            days: HashSet::new(),
            names,
            given: HashSet::new(),
        };
        for nth in 0..per_kind {
            plan.single(dice)?;
            plan.joined(nth, dice)?;
            plan.superseded(dice)?;
            plan.date(nth, dice)?;
            plan.preference(nth, dice)?;
            plan.unanswerable(nth, dice)?;
        }
        Ok(plan)
    }

    fn single(&mut self, dice: &mut Dice) -> anyhow::Result<()> {
        let fact = self.fact(&[About::Fact], dice)?;
        let times = if dice.chance(15) { 2 } else { 1 };
        self.tell(fact, times, (0.0, 1.0), dice);
        self.ask(Kind::Single, Form::Of(fact), vec![fact]);
        Ok(())
    }

    fn joined(&mut self, nth: usize, dice: &mut Dice) -> anyhow::Result<()> {
        let end = self.fact(&[About::Fact, About::Taste], dice)?;
        self.tell(end, 1, (0.0, 1.0), dice);
        let (first, form) = if nth.is_multiple_of(2) {
            let first = self.fact(&[About::Fact, About::Taste], dice)?;
            (first, Form::OfTwo(first, end))
        } else {
            let other = self.facts.get(end).context("a fact is missing")?.of.clone();
            let tie = self.tie(other, dice)?;
            (tie, Form::Through { tie, end })
        };
        self.tell(first, 1, (0.0, 1.0), dice);
        self.ask(Kind::Joined, form, vec![first, end]);
        Ok(())
    }

    fn superseded(&mut self, dice: &mut Dice) -> anyhow::Result<()> {
        let older = self.fact(&[About::Fact, About::Taste], dice)?;
        let now = self.facts.get(older).context("a fact is missing")?.changed(dice);
        let fact = self.add(now, Some(older));
        let times = if dice.chance(40) { 2 } else { 1 };
        self.tell(older, times, (0.0, 0.4), dice);
        self.tell(fact, 1, (0.6, 1.0), dice);
        // Who keeps something mostly notes when it changes.
        let was_kept = self.tellings.iter().any(|telling| telling.fact == older && telling.is_recorded);
        if let Some(last) = self.tellings.last_mut()
            && was_kept
            && dice.chance(80)
        {
            last.is_recorded = true;
        }
        let (kind, form) = (Kind::Superseded, Form::Of(fact));
        self.asked.push(Asked { kind, form, evidence: vec![fact], older: Some(older) });
        Ok(())
    }

    fn date(&mut self, nth: usize, dice: &mut Dice) -> anyhow::Result<()> {
        let (fact, form) = match nth % 4 {
            0 | 1 => {
                let fact = self.fact(&[About::Day], dice)?;
                self.tell(fact, 1, (0.0, 1.0), dice);
                (fact, Form::Of(fact))
            }
            2 => {
                let fact = self.fact(&[About::Day], dice)?;
                self.ask_day(fact, dice);
                self.tell(fact, 1, (0.0, 1.0), dice);
                (fact, Form::OnDay(fact))
            }
            _ => {
                let fact = self.of_three_months(dice)?;
                (fact, Form::InMonth(fact))
            }
        };
        self.ask(Kind::Date, form, vec![fact]);
        Ok(())
    }

    /// The day of a fact is asked for: no other fact keeps it.
    fn ask_day(&mut self, fact: FactNo, dice: &mut Dice) {
        let Some(day) = self.facts.get(fact).and_then(Fact::day) else { return };
        self.days.insert(day);
        for (number, other) in self.facts.iter_mut().enumerate() {
            if number != fact {
                other.avoid(&self.days, dice);
            }
        }
    }

    /// One of three facts of somebody, told many months apart.
    fn of_three_months(&mut self, dice: &mut Dice) -> anyhow::Result<FactNo> {
        let who = self.names.person(dice);
        self.apart.push(who.clone());
        let (first, chosen) = (dice.below(usize::MAX / 2), dice.below(3));
        let mut facts = Vec::new();
        for (nth, from) in [0.05, 0.4, 0.75].into_iter().enumerate() {
            let about = fact::attribute(&[About::Fact], first + nth).context("there are no attributes")?;
            let fact = self.add(Fact::any(who.clone(), about.1, dice), None);
            self.tell(fact, 1, (from, from + 0.2), dice);
            facts.push(fact);
        }
        facts.get(chosen).copied().context("there are three facts")
    }

    fn preference(&mut self, nth: usize, dice: &mut Dice) -> anyhow::Result<()> {
        let fact = if nth % 3 == 2 {
            let place = self.names.place(dice);
            let about = fact::attribute(&[About::PlaceTaste], dice.below(usize::MAX / 2));
            self.add(Fact::any(place, about.context("there are no attributes")?.1, dice), None)
        } else {
            self.fact(&[About::Taste], dice)?
        };
        self.tell(fact, 1, (0.0, 1.0), dice);
        self.ask(Kind::Preference, Form::Of(fact), vec![fact]);
        Ok(())
    }

    fn unanswerable(&mut self, nth: usize, dice: &mut Dice) -> anyhow::Result<()> {
        let about = [About::Fact, About::Day, About::Taste];
        let (who, attribute) = if nth.is_multiple_of(2) {
            let (person, attribute) = self.free(&about, dice)?;
            (self.people.get(person).context("a person is missing")?.clone(), attribute)
        } else {
            // Parts of the name are others' names.
            let attribute = fact::attribute(&about, dice.below(usize::MAX / 2));
            (self.names.person(dice), attribute.context("there are no attributes")?.1)
        };
        self.ask(Kind::Unanswerable, Form::Missing { who, attribute }, Vec::new());
        Ok(())
    }

    /// A new fact of one of the people.
    fn fact(&mut self, about: &[About], dice: &mut Dice) -> anyhow::Result<FactNo> {
        let (person, attribute) = self.free(about, dice)?;
        let of = self.people.get(person).context("a person is missing")?.clone();
        let mut fact = Fact::any(of, attribute, dice);
        fact.avoid(&self.days, dice);
        Ok(self.add(fact, None))
    }

    /// That one of the people is close to `other`.
    fn tie(&mut self, other: Subject, dice: &mut Dice) -> anyhow::Result<FactNo> {
        for _ in 0..1_000 {
            let (person, nth) = (dice.below(self.people.len()), dice.below(TIES_FROM));
            let tie = fact::tie(nth).context("there are no ties")?;
            let of = self.people.get(person).context("a person is missing")?.clone();
            let kind = TIES_FROM + nth % super::attributes::TIES.len();
            if of != other && self.given.insert((person, kind)) {
                return Ok(self.add(Fact { of, content: Content::Tie { tie, other } }, None));
            }
        }
        anyhow::bail!("nobody is left to be tied to somebody")
    }

    /// Somebody of whom something of the kind is not told yet, and that.
    fn free(&mut self, about: &[About], dice: &mut Dice) -> anyhow::Result<(usize, &'static Attribute)> {
        for _ in 0..1_000 {
            let person = dice.below(self.people.len());
            let attribute = fact::attribute(about, dice.below(usize::MAX / 2));
            let (number, attribute) = attribute.context("there are no attributes")?;
            if self.given.insert((person, number)) {
                return Ok((person, attribute));
            }
        }
        anyhow::bail!("nothing is left that could be told of anybody")
    }

    fn add(&mut self, fact: Fact, supersedes: Option<FactNo>) -> FactNo {
        self.facts.push(fact);
        self.supersedes.push(supersedes);
        self.facts.len() - 1
    }

    /// Tells a fact so many times, in so much of the time.
    fn tell(&mut self, fact: FactNo, times: usize, (from, to): (f64, f64), dice: &mut Dice) {
        for _ in 0..times {
            let at = from + dice.share() * (to - from);
            let is_person = self.facts.get(fact).is_some_and(|fact| fact.of.pronoun.is_some());
            let how = how(is_person, dice);
            self.tellings.push(Telling { fact, at, how, is_recorded: dice.chance(RECORDED) });
        }
    }

    fn ask(&mut self, kind: Kind, form: Form, evidence: Vec<FactNo>) {
        self.asked.push(Asked { kind, form, evidence, older: None });
    }
}

/// How many of a hundred facts the agent keeps as knowledge when they are told.
pub(crate) const RECORDED: u32 = 30;

/// Of what is told of people a quarter leaves the whole name to the turn before. Some is told by the agent.
pub(crate) fn how(is_person: bool, dice: &mut Dice) -> How {
    match dice.below(100) {
        0..25 if is_person => How::InShort,
        25..40 => How::ByAgent,
        _ => How::ByName,
    }
}
