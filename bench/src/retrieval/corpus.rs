//! A user's life told to an agent, and questions about it: conversations, what the agent kept of them as knowledge,
//! and for each question the places where its answer was told.

use std::collections::HashMap;

use anyhow::{Context as _, ensure};

use super::dates::{BEGIN_MS, DAY_MS, SPAN_DAYS, month_of};
use super::dice::Dice;
use super::fact::{Content, Fact, asked};
use super::noise::Noise;
use super::plan::{Asked, FactNo, Form, How, Kind, Plan, Telling};
use super::words::Stemmer;
use super::{chatter, plan};

/// How many records a turn is: the user's message, the agent's, and the episode that memory makes of it.
pub(crate) const RECORDS_PER_TURN: usize = 3;
/// How many of a hundred questions that can be answered share no content word with their evidence, at least.
pub(crate) const PARAPHRASES: usize = 50;
/// How long a turn takes.
const TURN_MS: i64 = 2 * 60 * 1_000;
/// The most questions of a kind: at 1,000 records there are fewer, so that most of what is said is not asked for.
const MOST_PER_KIND: usize = 50;
const RECORDS_PER_QUESTION: usize = 80;
/// How many of a hundred records that replace one are saved as such.
const LINKED: u32 = 70;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Corpus {
    /// In the order of time, each a task of its own.
    pub(crate) sessions: Vec<Session>,
    /// In the order of time.
    pub(crate) knowledge: Vec<Known>,
    pub(crate) questions: Vec<Question>,
}

/// A conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) began_ms: i64,
    pub(crate) turns: Vec<Turn>,
}

/// A message of the user and the agent's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) user: String,
    pub(crate) agent: String,
}

impl Session {
    /// When a turn of it was.
    pub(crate) fn turn_ms(&self, turn: usize) -> i64 {
        self.began_ms + i64::try_from(turn).unwrap_or(0) * TURN_MS
    }
}

/// A record of knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) content: String,
    pub(crate) at_ms: i64,
    /// The number of the one that is not in force since.
    pub(crate) supersedes: Option<usize>,
}

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Speaker {
    User,
    Agent,
}

/// Where something was told, by numbers of the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Message { session: usize, turn: usize, speaker: Speaker },
    Knowledge(usize),
}

/// A question, and what would answer it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// For each fact that answers it all places where it is told.
    pub(crate) evidence: Vec<Vec<Place>>,
    /// The places of what answered it before.
    pub(crate) older: Vec<Place>,
    /// Whether there is evidence and it shares no content word with any of it, but for names and dates.
    pub(crate) is_paraphrase: bool,
}

/// A turn, and what it is the evidence of.
pub(crate) struct Drafted {
    pub(crate) turn: Turn,
    pub(crate) tells: Option<(FactNo, Speaker)>,
    /// What the agent keeps, and the fact that it is.
    pub(crate) record: Option<(String, Option<FactNo>)>,
}

struct Draft {
    began_ms: i64,
    turns: Vec<Drafted>,
}

impl Corpus {
    /// A life of at least so many records, and no more than a turn above: the same for the same seed. The questions
    /// of two sizes are the same where there are as many of them.
    ///
    /// # Errors
    /// Where so few records cannot hold what is asked for, or too many questions repeat the words of their evidence.
    pub(crate) fn generate(seed: u64, records: usize) -> anyhow::Result<Self> {
        let mut dice = Dice::new(seed);
        let per_kind = (records / RECORDS_PER_QUESTION).clamp(1, MOST_PER_KIND);
        let mut plan = Plan::new(per_kind, &mut dice)?;
        let mut noise = Noise::new(&mut plan, records, &mut dice);
        let mut drafts = told(&plan, &mut noise, &mut dice)?;
        let mut count = drafts.iter().flat_map(|draft| &draft.turns).map(records_of).sum::<usize>();
        ensure!(count <= records, "{records} records are too few: what is asked for takes {count}");
        while count < records {
            let mut turns = Vec::new();
            let most = dice.between(3, 8);
            while turns.len() < most && count < records {
                let more = noise.turns(&mut dice);
                count += more.iter().map(records_of).sum::<usize>();
                turns.extend(more);
            }
            drafts.push(Draft { began_ms: moment(dice.share()), turns });
        }
        assembled(&plan, drafts, &mut dice)
    }

    /// How many records it has: messages, episodes (one for each turn) and records of knowledge.
    pub(crate) fn records(&self) -> usize {
        let turns: usize = self.sessions.iter().map(|session| session.turns.len()).sum();
        turns * RECORDS_PER_TURN + self.knowledge.len()
    }

    /// What was said or kept at a place.
    pub(crate) fn text(&self, place: Place) -> Option<&str> {
        match place {
            Place::Knowledge(number) => self.knowledge.get(number).map(|known| known.content.as_str()),
            Place::Message { session, turn, speaker } => {
                let turn = self.sessions.get(session)?.turns.get(turn)?;
                Some(match speaker {
                    Speaker::User => &turn.user,
                    Speaker::Agent => &turn.agent,
                })
            }
        }
    }
}

fn records_of(drafted: &Drafted) -> usize {
    RECORDS_PER_TURN + usize::from(drafted.record.is_some())
}

/// The moment at a share of the whole time, to the millisecond.
#[expect(clippy::cast_possible_truncation, reason = "a moment of these years is far from the bounds")]
#[expect(clippy::cast_precision_loss, reason = "the same")]
fn moment(share: f64) -> i64 {
    BEGIN_MS + ((SPAN_DAYS * DAY_MS) as f64 * share) as i64
}

/// The conversations in which the facts of the plan are told, among others.
fn told(plan: &Plan, noise: &mut Noise, dice: &mut Dice) -> anyhow::Result<Vec<Draft>> {
    let mut tellings = plan.tellings.clone();
    tellings.sort_by(|one, other| one.at.total_cmp(&other.at));
    let mut drafts = Vec::new();
    let mut tellings = tellings.into_iter().peekable();
    while let Some(first) = tellings.next() {
        let mut together = vec![first];
        let most = dice.between(1, 3);
        // Of one subject only one fact: two that replace each other are told at different times.
        let subject = |telling: &Telling| plan.facts.get(telling.fact).map(|fact| &fact.of);
        while together.len() < most
            && let Some(next) =
                tellings.next_if(|next| together.iter().all(|other| subject(other) != subject(next)))
        {
            together.push(next);
        }
        let mut turns = Vec::new();
        for telling in together {
            for _ in 0..dice.between(0, 1) {
                turns.extend(noise.turns(dice));
            }
            let fact = plan.facts.get(telling.fact).context("a fact is missing")?;
            let is_change = plan.supersedes.get(telling.fact).is_some_and(Option::is_some);
            let telling = Some(telling.fact).zip(Some(telling));
            turns.extend(tell(fact, telling, is_change, dice));
        }
        for _ in 0..dice.between(0, 1) {
            turns.extend(noise.turns(dice));
        }
        drafts.push(Draft { began_ms: moment(first.at), turns });
    }
    Ok(drafts)
}

/// The turns that tell a fact: one of the plan, or any.
pub(crate) fn tell(
    fact: &Fact,
    telling: Option<(FactNo, Telling)>,
    is_change: bool,
    dice: &mut Dice,
) -> Vec<Drafted> {
    let (number, telling) = telling.unzip();
    let (how, is_recorded) = match telling {
        Some(telling) => (telling.how, telling.is_recorded),
        None => (plan::how(fact.of.pronoun.is_some(), dice), dice.chance(plan::RECORDED)),
    };
    let name = fact.of.name.as_str();
    let record = is_recorded.then(|| (fact.recorded(dice), number));
    let tells = |speaker| number.map(|number| (number, speaker));
    let openers = if is_change && dice.chance(40) { chatter::CHANGES } else { chatter::OPENERS };
    let opener = dice.one(openers);
    match how {
        How::ByName => {
            let told = fact.told(name, dice);
            let turn = Turn { user: chatter::around(opener, &told, dice), agent: chatter::ack(dice) };
            vec![Drafted { turn, tells: tells(Speaker::User), record }]
        }
        How::InShort => {
            let turn = Turn { user: chatter::introduction(name, dice), agent: chatter::ack(dice) };
            let first = Drafted { turn, tells: None, record: None };
            let told = fact.told(fact.of.short(dice), dice);
            let turn = Turn { user: chatter::around("", &told, dice), agent: chatter::ack(dice) };
            vec![first, Drafted { turn, tells: tells(Speaker::User), record }]
        }
        How::ByAgent => {
            let user = dice.one(chatter::LOOKUPS).replace("{who}", name);
            let agent = format!("{}{}", dice.one(chatter::FINDINGS), fact.told(name, dice));
            vec![Drafted { turn: Turn { user, agent }, tells: tells(Speaker::Agent), record }]
        }
    }
}

/// Puts everything into the order of time, and the questions into words.
fn assembled(plan: &Plan, mut drafts: Vec<Draft>, dice: &mut Dice) -> anyhow::Result<Corpus> {
    drafts.sort_by_key(|draft| draft.began_ms);
    let mut corpus = Corpus { sessions: Vec::new(), knowledge: Vec::new(), questions: Vec::new() };
    let mut places: HashMap<FactNo, Vec<Place>> = HashMap::new();
    let mut known: HashMap<FactNo, usize> = HashMap::new();
    for (session, Draft { began_ms, turns }) in drafts.into_iter().enumerate() {
        let mut said = Session { began_ms, turns: Vec::new() };
        for (turn, drafted) in turns.into_iter().enumerate() {
            if let Some((fact, speaker)) = drafted.tells {
                places.entry(fact).or_default().push(Place::Message { session, turn, speaker });
            }
            if let Some((content, fact)) = drafted.record {
                let number = corpus.knowledge.len();
                let older = fact.and_then(|fact| plan.supersedes.get(fact).copied().flatten());
                let supersedes =
                    older.and_then(|older| known.get(&older).copied()).filter(|_| dice.chance(LINKED));
                corpus.knowledge.push(Known { content, at_ms: said.turn_ms(turn), supersedes });
                if let Some(fact) = fact {
                    places.entry(fact).or_default().push(Place::Knowledge(number));
                    known.insert(fact, number);
                }
            }
            said.turns.push(drafted.turn);
        }
        corpus.sessions.push(said);
    }
    let stemmer = Stemmer::new()?;
    for asked in &plan.asked {
        let question = question(plan, asked, &corpus, &places, &stemmer, dice)?;
        corpus.questions.push(question);
    }
    let answerable = corpus.questions.iter().filter(|question| !question.evidence.is_empty());
    let (paraphrases, all) =
        (answerable.clone().filter(|question| question.is_paraphrase).count(), answerable.count());
    ensure!(paraphrases * 100 >= all * PARAPHRASES, "only {paraphrases} of {all} questions are paraphrases");
    Ok(corpus)
}

fn question(
    plan: &Plan,
    asked: &Asked,
    corpus: &Corpus,
    places: &HashMap<FactNo, Vec<Place>>,
    stemmer: &Stemmer,
    dice: &mut Dice,
) -> anyhow::Result<Question> {
    let fact = |number: &FactNo| plan.facts.get(*number).context("a fact is missing");
    let of = |number: &FactNo| places.get(number).cloned().unwrap_or_default();
    let (text, names) = match &asked.form {
        Form::Of(number) => about(fact(number)?, dice),
        Form::OfTwo(one, other) => {
            let ((one, first), (other, second)) = (about(fact(one)?, dice), about(fact(other)?, dice));
            (format!("{}, and {}", one.trim_end_matches('?'), uncapital(&other)), format!("{first} {second}"))
        }
        Form::Through { tie, end } => {
            let (Fact { of, content: Content::Tie { tie, .. } }, Content::Value { attribute, .. }) =
                (fact(tie)?, &fact(end)?.content)
            else {
                anyhow::bail!("what leads on is no tie")
            };
            (self::asked(attribute, &format!("{} {}", tie.called, of.name), dice), of.name.clone())
        }
        Form::OnDay(number) => {
            let Content::Value { day, .. } = &fact(number)?.content else {
                anyhow::bail!("a tie has no day")
            };
            let day = day.written(dice);
            (dice.one(ON_DAY).replace("{date}", &day), String::new())
        }
        Form::InMonth(number) => {
            let Fact { of: who, .. } = fact(number)?;
            let Some(Place::Message { session, .. }) = of(number).first().copied() else {
                anyhow::bail!("a fact is told nowhere")
            };
            let began = corpus.sessions.get(session).context("a conversation is missing")?.began_ms;
            let text = dice.one(IN_MONTH).replace("{month}", &month_of(began)).replace("{who}", &who.name);
            (text, who.name.clone())
        }
        Form::Missing { who, attribute } => (self::asked(attribute, &who.name, dice), who.name.clone()),
    };
    let evidence: Vec<Vec<Place>> = asked.evidence.iter().map(of).collect();
    ensure!(evidence.iter().all(|places| !places.is_empty()), "the evidence of `{text}` is told nowhere");
    let mut is_paraphrase = !evidence.is_empty();
    for place in evidence.iter().flatten() {
        let told = corpus.text(*place).context("a place is missing")?;
        is_paraphrase &= stemmer.shared(&text, told, &names)?.is_empty();
    }
    let older = asked.older.as_ref().map(of).unwrap_or_default();
    Ok(Question { kind: asked.kind, text, evidence, older, is_paraphrase })
}

/// A question for a fact, and the names in it.
fn about(Fact { of, content }: &Fact, dice: &mut Dice) -> (String, String) {
    let text = match content {
        Content::Value { attribute, .. } => asked(attribute, &of.name, dice),
        Content::Tie { tie, .. } => format!("Who is {} {}?", tie.called, of.name),
    };
    (text, of.name.clone())
}

const ON_DAY: &[&str] = &[
    "What happens on {date}?",
    "Who has something planned for {date}?",
    "What do I have to remember for {date}?",
    "What is my calendar like on {date}?",
];
const IN_MONTH: &[&str] = &[
    "What did I learn about {who} in {month}?",
    "Which event concerned {who} in {month}?",
    "What was up with {who} in {month}?",
];

fn uncapital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
#[path = "corpus_tests.rs"]
mod tests;
