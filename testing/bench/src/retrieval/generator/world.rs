//! Who and what a generated conversation is about, and what has been said of it so far.

use jiff::civil::Date;

use super::super::conversations::MessageNumber;
use super::super::rng::SeededRng;
use super::grammar::{Lines, phrase};
use super::topics;

/// How many people there are at least, and how many messages bring one more.
const MIN_PEOPLE: usize = 10;
const MESSAGES_PER_PERSON: usize = 400;
/// How often a draw that hit something taken is repeated.
const MAX_DRAWS: usize = 20;

/// Somebody whom the user talks about.
pub(super) struct Person {
    pub(super) name: String,
    /// What they are to the user.
    kin: String,
    is_female: bool,
    /// Whether nobody else has the name.
    is_name_unique: bool,
}

/// A topic of [`topics`] with its facts.
pub(super) struct Topic {
    pub(super) lines: Lines,
    pub(super) facts: Vec<Lines>,
}

/// A topic of somebody's life, such as the dog of a cousin.
pub(super) struct Matter {
    /// The person; none for the user.
    pub(super) person: Option<usize>,
    pub(super) topic: usize,
    pub(super) thing: String,
    /// Where its event was told, and when that took place.
    pub(super) opened_at: MessageNumber,
    pub(super) event: Date,
    /// For each fact of the topic the last statement, by its index.
    pub(super) told: Vec<Option<usize>>,
}

/// A fact that was told.
pub(super) struct Statement {
    pub(super) matter: usize,
    pub(super) fact: usize,
    pub(super) message: MessageNumber,
    pub(super) session: usize,
    /// Whether it replaces an earlier one.
    pub(super) is_update: bool,
    /// Whether a later one replaces it.
    pub(super) is_replaced: bool,
}

/// An answer of the assistant.
pub(super) struct Advice {
    pub(super) topic: usize,
    pub(super) thing: String,
    pub(super) message: MessageNumber,
}

pub(super) struct World {
    pub(super) topics: Vec<Topic>,
    pub(super) advice_topics: Vec<Topic>,
    pub(super) people: Vec<Person>,
    pub(super) matters: Vec<Matter>,
    pub(super) statements: Vec<Statement>,
    pub(super) advice: Vec<Advice>,
}

impl World {
    pub(super) fn new(messages: usize, rng: &mut SeededRng) -> Self {
        let topics_of = |text: &str| -> Vec<Topic> {
            let topics = Lines::parse(text).sections("topic").into_iter();
            topics.map(|lines| Topic { facts: lines.sections("fact"), lines }).collect()
        };
        let mut people: Vec<Person> = Vec::new();
        for _ in 0..MIN_PEOPLE + messages / MESSAGES_PER_PERSON {
            people.extend(draw(rng, |rng| {
                let is_female = rng.chance(50);
                let slot = if is_female { "{her name}" } else { "{his name}" };
                let (name, kin) = (phrase(&[slot.into()], &[], rng), phrase(&["{kin}".into()], &[], rng));
                let is_new = people.iter().all(|person| (&person.name, &person.kin) != (&name, &kin));
                is_new.then_some(Person { name, kin, is_female, is_name_unique: true })
            }));
        }
        let names: Vec<String> = people.iter().map(|person| person.name.clone()).collect();
        for person in &mut people {
            person.is_name_unique = names.iter().filter(|name| **name == person.name).count() == 1;
        }
        Self {
            topics: [topics::TOPICS, topics::MORE_TOPICS].into_iter().flat_map(topics_of).collect(),
            advice_topics: topics_of(topics::ADVICE),
            people,
            matters: Vec::new(),
            statements: Vec::new(),
            advice: Vec::new(),
        }
    }

    /// A topic of somebody that has not come up yet; none if all have that were drawn. Other people than the
    /// user have one thing of a topic.
    pub(super) fn new_matter(&self, rng: &mut SeededRng) -> Option<(Option<usize>, usize, String)> {
        draw(rng, |rng| {
            let person = self.random_person(rng);
            let topic = rng.below(self.topics.len());
            let thing = phrase(self.topics.get(topic)?.lines.get("thing"), &[], rng);
            let is_same = |matter: &Matter| {
                matter.person == person
                    && matter.topic == topic
                    && (person.is_some() || matter.thing == thing)
            };
            (!self.matters.iter().any(is_same)).then_some((person, topic, thing))
        })
    }

    /// The user, or a person; some come up more often than others.
    fn random_person(&self, rng: &mut SeededRng) -> Option<usize> {
        let count = self.people.len();
        (!rng.chance(40)).then(|| rng.below(count).min(rng.below(count)))
    }

    /// The slots of a topic in which the user names whom they talk about.
    pub(super) fn named(
        &self,
        person: Option<usize>,
        thing: &str,
        rng: &mut SeededRng,
    ) -> Vec<(&'static str, String)> {
        let Some(person) = person.and_then(|person| self.people.get(person)) else {
            return slots(thing, ["I", "my", "me", "I", "my", "me", "mine"]);
        };
        let name = if person.is_name_unique && rng.chance(50) {
            person.name.clone()
        } else {
            format!("my {} {}", person.kin, person.name)
        };
        let [subject, possessive, object, predicative] = person.pronouns();
        let of_name = format!("{name}'s");
        slots(thing, [&name, &of_name, &name, subject, possessive, object, predicative])
    }

    /// The slots of a topic in which a pronoun stands for whom it is about.
    pub(super) fn by_pronoun(
        &self,
        person: Option<usize>,
        thing: &str,
        is_user_speaking: bool,
    ) -> Vec<(&'static str, String)> {
        let person = person.and_then(|person| self.people.get(person));
        let [subject, possessive, object, predicative] = match (person, is_user_speaking) {
            (Some(person), _) => person.pronouns(),
            (None, true) => ["I", "my", "me", "mine"],
            (None, false) => ["you", "your", "you", "yours"],
        };
        slots(thing, [subject, possessive, object, subject, possessive, object, predicative])
    }
}

impl Person {
    const fn pronouns(&self) -> [&'static str; 4] {
        if self.is_female { ["she", "her", "her", "hers"] } else { ["he", "his", "him", "his"] }
    }
}

fn slots(thing: &str, texts: [&str; 7]) -> Vec<(&'static str, String)> {
    let keys = ["who", "whose", "whom", "they", "their", "them", "theirs"];
    let mut slots: Vec<_> = keys.into_iter().zip(texts.map(str::to_owned)).collect();
    slots.push(("thing", thing.to_owned()));
    slots
}

/// Repeats a draw until it succeeds, some times at most.
fn draw<T>(rng: &mut SeededRng, mut one: impl FnMut(&mut SeededRng) -> Option<T>) -> Option<T> {
    (0..MAX_DRAWS).find_map(|_| one(rng))
}

/// A text about the user with the verbs of the first person.
pub(super) fn in_first_person(text: &str) -> String {
    let verbs = [
        ("does I ", "do I "),
        ("I is ", "I am "),
        ("I has ", "I have "),
        ("I owns ", "I own "),
        ("I plays ", "I play "),
        ("I misses ", "I miss "),
        ("I helps ", "I help "),
        ("I works", "I work"),
        ("is I ", "am I "),
    ];
    verbs.iter().fold(text.to_owned(), |text, (wrong, right)| text.replace(wrong, right))
}
