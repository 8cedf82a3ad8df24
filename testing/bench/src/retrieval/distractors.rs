//! Conversation that answers no question: the same kinds of facts about other people, people who are asked about
//! in other contexts, unanswerable questions, and errands.

use std::collections::HashSet;

use super::attributes::AttributeKind;
use super::corpus::{DraftTurn, Turn, draft_turns};
use super::dates::Day;
use super::fact::{self, Fact};
use super::plan::CorpusPlan;
use super::rng::SeededRng;
use super::small_talk;
use super::subjects::Subject;

/// The number of records per additional person who is not asked about, on top of [`MIN_PEOPLE`].
const RECORDS_PER_PERSON: usize = 60;
const MIN_PEOPLE: usize = 30;
/// The number of records per additional place that is not asked about, on top of [`MIN_PLACES`].
const RECORDS_PER_PLACE: usize = 600;
const MIN_PLACES: usize = 8;
/// The percentage of mentions of people who are asked about.
const ASKED_MENTION_PERCENT: u32 = 20;

/// The generator of distracting turns.
pub(crate) struct Distractors {
    asked_subjects: Vec<Subject>,
    other_people: Vec<Subject>,
    place_subjects: Vec<Subject>,
    days: HashSet<Day>,
}

impl Distractors {
    /// Draws the other people and places of a corpus of `records` records.
    pub(crate) fn new(plan: &mut CorpusPlan, records: usize, rng: &mut SeededRng) -> Self {
        let (people, places) =
            (MIN_PEOPLE + records / RECORDS_PER_PERSON, MIN_PLACES + records / RECORDS_PER_PLACE);
        Self {
            asked_subjects: plan.people.iter().chain(&plan.isolated_people).cloned().collect(),
            other_people: (0..people).map(|_| plan.name_generator.person(rng)).collect(),
            place_subjects: (0..places).map(|_| plan.name_generator.place(rng)).collect(),
            days: plan.asked_days.clone(),
        }
    }

    /// Returns one or two turns that answer no question.
    pub(crate) fn turns(&self, rng: &mut SeededRng) -> Vec<DraftTurn> {
        match rng.below(100) {
            0..35 => {
                let (user, agent) = small_talk::errand(rng);
                vec![plain_turn(user, agent)]
            }
            35..58 => {
                let people =
                    if rng.chance(ASKED_MENTION_PERCENT) { &self.asked_subjects } else { &self.other_people };
                let who = random_subject(people, rng).map_or_else(String::new, |who| who.name);
                vec![plain_turn(small_talk::mention(&who, rng), small_talk::acknowledgement(rng))]
            }
            58..80 => self.fact(rng).map(|fact| draft_turns(&fact, None, false, rng)).unwrap_or_default(),
            80..88 => {
                let (Some(fact), Some(who)) = (self.fact(rng), random_subject(&self.asked_subjects, rng))
                else {
                    return Vec::new();
                };
                let statement = fact.statement(&fact.subject.name, rng);
                vec![plain_turn(
                    small_talk::related_person_statement(&who.name, &statement, rng),
                    small_talk::acknowledgement(rng),
                )]
            }
            _ => self
                .question(rng)
                .map(|user| plain_turn(user, small_talk::unknown_answer(rng)))
                .into_iter()
                .collect(),
        }
    }

    /// Returns a fact about a subject that is not asked about, on a day that is not asked for.
    fn fact(&self, rng: &mut SeededRng) -> Option<Fact> {
        let kinds = [
            AttributeKind::Fact,
            AttributeKind::Day,
            AttributeKind::Preference,
            AttributeKind::PlacePreference,
        ];
        let (_, attribute) = fact::nth_attribute(&kinds, rng.below(usize::MAX / 2))?;
        let subject = random_subject(
            if attribute.kind == AttributeKind::PlacePreference {
                &self.place_subjects
            } else {
                &self.other_people
            },
            rng,
        )?;
        let mut fact = Fact::random(subject, attribute, rng);
        fact.avoid_days(&self.days, rng);
        Some(fact)
    }

    /// Returns a question about a person who is not asked about.
    fn question(&self, rng: &mut SeededRng) -> Option<String> {
        let kinds = [AttributeKind::Fact, AttributeKind::Day, AttributeKind::Preference];
        let (_, attribute) = fact::nth_attribute(&kinds, rng.below(usize::MAX / 2))?;
        Some(fact::question_text(attribute, &random_subject(&self.other_people, rng)?.name, rng))
    }
}

fn random_subject(subjects: &[Subject], rng: &mut SeededRng) -> Option<Subject> {
    subjects.get(rng.below(subjects.len())).cloned()
}

fn plain_turn(user: String, agent: String) -> DraftTurn {
    DraftTurn { turn: Turn { user, agent }, evidence_for: None, record: None }
}
