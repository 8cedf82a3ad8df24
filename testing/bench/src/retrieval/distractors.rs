//! What is said beside what is asked for: facts of the same kinds of other people, the people who are asked about in
//! other contexts, questions that nobody could answer, and errands.

use std::collections::HashSet;

use super::attributes::AttributeKind;
use super::corpus::{DraftTurn, Turn, draft_turns};
use super::dates::Day;
use super::fact::{self, Fact};
use super::plan::CorpusPlan;
use super::rng::SeededRng;
use super::small_talk;
use super::subjects::Subject;

/// Of how many records there is somebody who is not asked about, beside the first few.
const RECORDS_PER_PERSON: usize = 60;
const MIN_PEOPLE: usize = 30;
/// The same for places.
const RECORDS_PER_PLACE: usize = 600;
const MIN_PLACES: usize = 8;
/// How many of a hundred mentions are of somebody who is asked about.
const ASKED_MENTION_PERCENT: u32 = 20;

/// See the module.
pub(crate) struct Distractors {
    asked_subjects: Vec<Subject>,
    other_people: Vec<Subject>,
    place_subjects: Vec<Subject>,
    days: HashSet<Day>,
}

impl Distractors {
    /// Everybody else in a life of so many records.
    pub(crate) fn new(plan: &mut CorpusPlan, records: usize, dice: &mut SeededRng) -> Self {
        let (people, places) =
            (MIN_PEOPLE + records / RECORDS_PER_PERSON, MIN_PLACES + records / RECORDS_PER_PLACE);
        Self {
            asked_subjects: plan.people.iter().chain(&plan.isolated_people).cloned().collect(),
            other_people: (0..people).map(|_| plan.name_generator.person(dice)).collect(),
            place_subjects: (0..places).map(|_| plan.name_generator.place(dice)).collect(),
            days: plan.asked_days.clone(),
        }
    }

    /// One or two turns that answer no question.
    pub(crate) fn turns(&self, dice: &mut SeededRng) -> Vec<DraftTurn> {
        match dice.below(100) {
            0..35 => {
                let (user, agent) = small_talk::errand(dice);
                vec![plain_turn(user, agent)]
            }
            35..58 => {
                let people = if dice.chance(ASKED_MENTION_PERCENT) {
                    &self.asked_subjects
                } else {
                    &self.other_people
                };
                let who = random_subject(people, dice).map_or_else(String::new, |who| who.name);
                vec![plain_turn(small_talk::mention(&who, dice), small_talk::acknowledgement(dice))]
            }
            58..80 => self.fact(dice).map(|fact| draft_turns(&fact, None, false, dice)).unwrap_or_default(),
            80..88 => {
                let (Some(fact), Some(who)) = (self.fact(dice), random_subject(&self.asked_subjects, dice))
                else {
                    return Vec::new();
                };
                let told = fact.statement(&fact.subject.name, dice);
                vec![plain_turn(
                    small_talk::related_person_statement(&who.name, &told, dice),
                    small_talk::acknowledgement(dice),
                )]
            }
            _ => self
                .question(dice)
                .map(|user| plain_turn(user, small_talk::unknown_answer(dice)))
                .into_iter()
                .collect(),
        }
    }

    /// A fact of somebody who is not asked about, on a day that is not asked for.
    fn fact(&self, dice: &mut SeededRng) -> Option<Fact> {
        let about = [
            AttributeKind::Fact,
            AttributeKind::Day,
            AttributeKind::Preference,
            AttributeKind::PlacePreference,
        ];
        let (_, attribute) = fact::nth_attribute(&about, dice.below(usize::MAX / 2))?;
        let of = random_subject(
            if attribute.kind == AttributeKind::PlacePreference {
                &self.place_subjects
            } else {
                &self.other_people
            },
            dice,
        )?;
        let mut fact = Fact::random(of, attribute, dice);
        fact.avoid_days(&self.days, dice);
        Some(fact)
    }

    /// A question about somebody who is not asked about.
    fn question(&self, dice: &mut SeededRng) -> Option<String> {
        let about = [AttributeKind::Fact, AttributeKind::Day, AttributeKind::Preference];
        let (_, attribute) = fact::nth_attribute(&about, dice.below(usize::MAX / 2))?;
        Some(fact::question_text(attribute, &random_subject(&self.other_people, dice)?.name, dice))
    }
}

fn random_subject(subjects: &[Subject], dice: &mut SeededRng) -> Option<Subject> {
    subjects.get(dice.below(subjects.len())).cloned()
}

fn plain_turn(user: String, agent: String) -> DraftTurn {
    DraftTurn { turn: Turn { user, agent }, evidence_for: None, record: None }
}
