//! What is said beside what is asked for: facts of the same kinds of other people, the people who are asked about in
//! other contexts, questions that nobody could answer, and errands.

use std::collections::HashSet;

use super::attributes::About;
use super::chatter;
use super::corpus::{Drafted, Turn, tell};
use super::dates::Day;
use super::dice::Dice;
use super::fact::{self, Fact};
use super::people::Subject;
use super::plan::Plan;

/// Of how many records there is somebody who is not asked about, beside the first few.
const RECORDS_PER_PERSON: usize = 60;
const FIRST_PEOPLE: usize = 30;
/// The same for places.
const RECORDS_PER_PLACE: usize = 600;
const FIRST_PLACES: usize = 8;
/// How many of a hundred mentions are of somebody who is asked about.
const MENTIONS_OF_ASKED: u32 = 20;

/// See the module.
pub(crate) struct Noise {
    asked: Vec<Subject>,
    others: Vec<Subject>,
    places: Vec<Subject>,
    days: HashSet<Day>,
}

impl Noise {
    /// Everybody else in a life of so many records.
    pub(crate) fn new(plan: &mut Plan, records: usize, dice: &mut Dice) -> Self {
        let (people, places) =
            (FIRST_PEOPLE + records / RECORDS_PER_PERSON, FIRST_PLACES + records / RECORDS_PER_PLACE);
        Self {
            asked: plan.people.iter().chain(&plan.apart).cloned().collect(),
            others: (0..people).map(|_| plan.names.person(dice)).collect(),
            places: (0..places).map(|_| plan.names.place(dice)).collect(),
            days: plan.days.clone(),
        }
    }

    /// One or two turns that answer no question.
    pub(crate) fn turns(&self, dice: &mut Dice) -> Vec<Drafted> {
        match dice.below(100) {
            0..35 => {
                let (user, agent) = chatter::errand(dice);
                vec![plain(user, agent)]
            }
            35..58 => {
                let people = if dice.chance(MENTIONS_OF_ASKED) { &self.asked } else { &self.others };
                let who = any(people, dice).map_or_else(String::new, |who| who.name);
                vec![plain(chatter::mention(&who, dice), chatter::ack(dice))]
            }
            58..80 => self.fact(dice).map(|fact| tell(&fact, None, false, dice)).unwrap_or_default(),
            80..88 => {
                let (Some(fact), Some(who)) = (self.fact(dice), any(&self.asked, dice)) else {
                    return Vec::new();
                };
                let told = fact.told(&fact.of.name, dice);
                vec![plain(chatter::of_somebody_close(&who.name, &told, dice), chatter::ack(dice))]
            }
            _ => self.question(dice).map(|user| plain(user, chatter::unknown(dice))).into_iter().collect(),
        }
    }

    /// A fact of somebody who is not asked about, on a day that is not asked for.
    fn fact(&self, dice: &mut Dice) -> Option<Fact> {
        let about = [About::Fact, About::Day, About::Taste, About::PlaceTaste];
        let (_, attribute) = fact::attribute(&about, dice.below(usize::MAX / 2))?;
        let of = any(if attribute.about == About::PlaceTaste { &self.places } else { &self.others }, dice)?;
        let mut fact = Fact::any(of, attribute, dice);
        fact.avoid(&self.days, dice);
        Some(fact)
    }

    /// A question about somebody who is not asked about.
    fn question(&self, dice: &mut Dice) -> Option<String> {
        let about = [About::Fact, About::Day, About::Taste];
        let (_, attribute) = fact::attribute(&about, dice.below(usize::MAX / 2))?;
        Some(fact::asked(attribute, &any(&self.others, dice)?.name, dice))
    }
}

fn any(subjects: &[Subject], dice: &mut Dice) -> Option<Subject> {
    subjects.get(dice.below(subjects.len())).cloned()
}

fn plain(user: String, agent: String) -> Drafted {
    Drafted { turn: Turn { user, agent }, tells: None, record: None }
}
