//! A user's life told to an agent, and questions about it: conversations, what the agent kept of them as knowledge,
//! and for each question the places where its answer was told.

use std::collections::HashMap;

use anyhow::{Context as _, ensure};

use super::dates::{DAY_MS, SPAN_DAYS, START_MS, month_name};
use super::distractors::Distractors;
use super::fact::{Fact, FactContent, question_text};
use super::plan::{
    CorpusPlan, FactIndex, FactMention, MentionStyle, PlannedQuestion, QuestionForm, QuestionKind,
};
use super::rng::SeededRng;
use super::stemming::Stemmer;
use super::{plan, small_talk};

/// How many records a turn is: the user's message, the agent's, and the episode that memory makes of it.
pub(crate) const RECORDS_PER_TURN: usize = 3;
/// How many of a hundred questions that can be answered share no content word with their evidence, at least.
pub(crate) const MIN_PARAPHRASE_PERCENT: usize = 50;
/// How long a turn takes.
const TURN_DURATION_MS: i64 = 2 * 60 * 1_000;
/// The most questions of a kind: at 1,000 records there are fewer, so that most of what is said is not asked for.
const MAX_QUESTIONS_PER_KIND: usize = 50;
const RECORDS_PER_QUESTION: usize = 80;
/// How many of a hundred records that replace one are saved as such.
const LINKED_PERCENT: u32 = 70;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Corpus {
    /// In the order of time, each a task of its own.
    pub(crate) sessions: Vec<Session>,
    /// In the order of time.
    pub(crate) knowledge: Vec<KnowledgeRecord>,
    pub(crate) questions: Vec<Question>,
}

/// A conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) started_ms: i64,
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
    pub(crate) fn turn_time_ms(&self, turn: usize) -> i64 {
        self.started_ms + i64::try_from(turn).unwrap_or(0) * TURN_DURATION_MS
    }
}

/// A record of knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnowledgeRecord {
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
pub(crate) enum SourceRef {
    Message { session: usize, turn: usize, speaker: Speaker },
    Knowledge(usize),
}

/// A question, and what would answer it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) kind: QuestionKind,
    pub(crate) text: String,
    /// For each fact that answers it all places where it is told.
    pub(crate) evidence: Vec<Vec<SourceRef>>,
    /// The places of what answered it before.
    pub(crate) superseded_evidence: Vec<SourceRef>,
    /// Whether there is evidence and it shares no content word with any of it, but for names and dates.
    pub(crate) is_paraphrase: bool,
}

/// A turn, and what it is the evidence of.
pub(crate) struct DraftTurn {
    pub(crate) turn: Turn,
    pub(crate) evidence_for: Option<(FactIndex, Speaker)>,
    /// What the agent keeps, and the fact that it is.
    pub(crate) record: Option<(String, Option<FactIndex>)>,
}

struct DraftSession {
    started_ms: i64,
    turns: Vec<DraftTurn>,
}

impl Corpus {
    /// A life of at least so many records, and no more than a turn above: the same for the same seed. The questions
    /// of two sizes are the same where there are as many of them.
    ///
    /// # Errors
    /// Where so few records cannot hold what is asked for, or too many questions repeat the words of their evidence.
    pub(crate) fn generate(seed: u64, records: usize) -> anyhow::Result<Self> {
        let mut dice = SeededRng::new(seed);
        let per_kind = (records / RECORDS_PER_QUESTION).clamp(1, MAX_QUESTIONS_PER_KIND);
        let mut plan = CorpusPlan::new(per_kind, &mut dice)?;
        let mut noise = Distractors::new(&mut plan, records, &mut dice);
        let mut drafts = draft_sessions(&plan, &mut noise, &mut dice)?;
        let mut count = drafts.iter().flat_map(|draft| &draft.turns).map(record_count_of).sum::<usize>();
        ensure!(count <= records, "{records} records are too few: what is asked for takes {count}");
        while count < records {
            let mut turns = Vec::new();
            let most = dice.between(3, 8);
            while turns.len() < most && count < records {
                let more = noise.turns(&mut dice);
                count += more.iter().map(record_count_of).sum::<usize>();
                turns.extend(more);
            }
            drafts.push(DraftSession { started_ms: time_at(dice.fraction()), turns });
        }
        assemble(&plan, drafts, &mut dice)
    }

    /// How many records it has: messages, episodes (one for each turn) and records of knowledge.
    pub(crate) fn record_count(&self) -> usize {
        let turns: usize = self.sessions.iter().map(|session| session.turns.len()).sum();
        turns * RECORDS_PER_TURN + self.knowledge.len()
    }

    /// What was said or kept at a place.
    pub(crate) fn text(&self, place: SourceRef) -> Option<&str> {
        match place {
            SourceRef::Knowledge(number) => self.knowledge.get(number).map(|known| known.content.as_str()),
            SourceRef::Message { session, turn, speaker } => {
                let turn = self.sessions.get(session)?.turns.get(turn)?;
                Some(match speaker {
                    Speaker::User => &turn.user,
                    Speaker::Agent => &turn.agent,
                })
            }
        }
    }
}

fn record_count_of(drafted: &DraftTurn) -> usize {
    RECORDS_PER_TURN + usize::from(drafted.record.is_some())
}

/// The moment at a share of the whole time, to the millisecond.
#[expect(clippy::cast_possible_truncation, reason = "a moment of these years is far from the bounds")]
#[expect(clippy::cast_precision_loss, reason = "the same")]
fn time_at(share: f64) -> i64 {
    START_MS + ((SPAN_DAYS * DAY_MS) as f64 * share) as i64
}

/// The conversations in which the facts of the plan are told, among others.
fn draft_sessions(
    plan: &CorpusPlan,
    noise: &mut Distractors,
    dice: &mut SeededRng,
) -> anyhow::Result<Vec<DraftSession>> {
    let mut mentions = plan.mentions.clone();
    mentions.sort_by(|one, other| one.time_fraction.total_cmp(&other.time_fraction));
    let mut drafts = Vec::new();
    let mut mentions = mentions.into_iter().peekable();
    while let Some(first) = mentions.next() {
        let mut together = vec![first];
        let most = dice.between(1, 3);
        // Of one subject only one fact: two that replace each other are told at different times.
        let subject = |telling: &FactMention| plan.facts.get(telling.fact).map(|fact| &fact.subject);
        while together.len() < most
            && let Some(next) =
                mentions.next_if(|next| together.iter().all(|other| subject(other) != subject(next)))
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
            turns.extend(draft_turns(fact, telling, is_change, dice));
        }
        for _ in 0..dice.between(0, 1) {
            turns.extend(noise.turns(dice));
        }
        drafts.push(DraftSession { started_ms: time_at(first.time_fraction), turns });
    }
    Ok(drafts)
}

/// The turns that tell a fact: one of the plan, or any.
pub(crate) fn draft_turns(
    fact: &Fact,
    telling: Option<(FactIndex, FactMention)>,
    is_change: bool,
    dice: &mut SeededRng,
) -> Vec<DraftTurn> {
    let (number, telling) = telling.unzip();
    let (how, is_recorded) = match telling {
        Some(telling) => (telling.style, telling.is_recorded),
        None => (plan::pick_style(fact.subject.pronoun.is_some(), dice), dice.chance(plan::RECORDED_PERCENT)),
    };
    let name = fact.subject.name.as_str();
    let record = is_recorded.then(|| (fact.record(dice), number));
    let tells = |speaker| number.map(|number| (number, speaker));
    let openers = if is_change && dice.chance(40) { small_talk::CHANGE_OPENERS } else { small_talk::OPENERS };
    let opener = dice.pick(openers);
    match how {
        MentionStyle::ByName => {
            let told = fact.statement(name, dice);
            let turn = Turn {
                user: small_talk::surround(opener, &told, dice),
                agent: small_talk::acknowledgement(dice),
            };
            vec![DraftTurn { turn, evidence_for: tells(Speaker::User), record }]
        }
        MentionStyle::ByShortName => {
            let turn =
                Turn { user: small_talk::introduction(name, dice), agent: small_talk::acknowledgement(dice) };
            let first = DraftTurn { turn, evidence_for: None, record: None };
            let told = fact.statement(fact.subject.short_reference(dice), dice);
            let turn = Turn {
                user: small_talk::surround("", &told, dice),
                agent: small_talk::acknowledgement(dice),
            };
            vec![first, DraftTurn { turn, evidence_for: tells(Speaker::User), record }]
        }
        MentionStyle::ReportedByAgent => {
            let user = dice.pick(small_talk::LOOKUPS).replace("{who}", name);
            let agent = format!("{}{}", dice.pick(small_talk::FINDINGS), fact.statement(name, dice));
            vec![DraftTurn { turn: Turn { user, agent }, evidence_for: tells(Speaker::Agent), record }]
        }
    }
}

/// Puts everything into the order of time, and the questions into words.
fn assemble(
    plan: &CorpusPlan,
    mut drafts: Vec<DraftSession>,
    dice: &mut SeededRng,
) -> anyhow::Result<Corpus> {
    drafts.sort_by_key(|draft| draft.started_ms);
    let mut corpus = Corpus { sessions: Vec::new(), knowledge: Vec::new(), questions: Vec::new() };
    let mut places: HashMap<FactIndex, Vec<SourceRef>> = HashMap::new();
    let mut known: HashMap<FactIndex, usize> = HashMap::new();
    for (session, DraftSession { started_ms, turns }) in drafts.into_iter().enumerate() {
        let mut said = Session { started_ms, turns: Vec::new() };
        for (turn, drafted) in turns.into_iter().enumerate() {
            if let Some((fact, speaker)) = drafted.evidence_for {
                places.entry(fact).or_default().push(SourceRef::Message { session, turn, speaker });
            }
            if let Some((content, fact)) = drafted.record {
                let number = corpus.knowledge.len();
                let older = fact.and_then(|fact| plan.supersedes.get(fact).copied().flatten());
                let supersedes = older
                    .and_then(|older| known.get(&older).copied())
                    .filter(|_| dice.chance(LINKED_PERCENT));
                corpus.knowledge.push(KnowledgeRecord {
                    content,
                    at_ms: said.turn_time_ms(turn),
                    supersedes,
                });
                if let Some(fact) = fact {
                    places.entry(fact).or_default().push(SourceRef::Knowledge(number));
                    known.insert(fact, number);
                }
            }
            said.turns.push(drafted.turn);
        }
        corpus.sessions.push(said);
    }
    let stemmer = Stemmer::new()?;
    for asked in &plan.questions {
        let question = build_question(plan, asked, &corpus, &places, &stemmer, dice)?;
        corpus.questions.push(question);
    }
    let answerable = corpus.questions.iter().filter(|question| !question.evidence.is_empty());
    let (paraphrases, all) =
        (answerable.clone().filter(|question| question.is_paraphrase).count(), answerable.count());
    ensure!(
        paraphrases * 100 >= all * MIN_PARAPHRASE_PERCENT,
        "only {paraphrases} of {all} questions are paraphrases"
    );
    Ok(corpus)
}

fn build_question(
    plan: &CorpusPlan,
    asked: &PlannedQuestion,
    corpus: &Corpus,
    places: &HashMap<FactIndex, Vec<SourceRef>>,
    stemmer: &Stemmer,
    dice: &mut SeededRng,
) -> anyhow::Result<Question> {
    let fact = |number: &FactIndex| plan.facts.get(*number).context("a fact is missing");
    let of = |number: &FactIndex| places.get(number).cloned().unwrap_or_default();
    let (text, names) = match &asked.form {
        QuestionForm::AboutFact(number) => question_about(fact(number)?, dice),
        QuestionForm::AboutTwoFacts(one, other) => {
            let ((one, first), (other, second)) =
                (question_about(fact(one)?, dice), question_about(fact(other)?, dice));
            (
                format!("{}, and {}", one.trim_end_matches('?'), uncapitalize(&other)),
                format!("{first} {second}"),
            )
        }
        QuestionForm::ViaRelation { tie, end } => {
            let (
                Fact { subject: of, content: FactContent::Relation { relation: tie, .. } },
                FactContent::Value { attribute, .. },
            ) = (fact(tie)?, &fact(end)?.content)
            else {
                anyhow::bail!("what leads on is no tie")
            };
            (self::question_text(attribute, &format!("{} {}", tie.label, of.name), dice), of.name.clone())
        }
        QuestionForm::OnDay(number) => {
            let FactContent::Value { day, .. } = &fact(number)?.content else {
                anyhow::bail!("a tie has no day")
            };
            let day = day.format(dice);
            (dice.pick(DAY_QUESTIONS).replace("{date}", &day), String::new())
        }
        QuestionForm::InMonth(number) => {
            let Fact { subject: who, .. } = fact(number)?;
            let Some(SourceRef::Message { session, .. }) = of(number).first().copied() else {
                anyhow::bail!("a fact is told nowhere")
            };
            let began = corpus.sessions.get(session).context("a conversation is missing")?.started_ms;
            let text =
                dice.pick(MONTH_QUESTIONS).replace("{month}", &month_name(began)).replace("{who}", &who.name);
            (text, who.name.clone())
        }
        QuestionForm::Unanswerable { who, attribute } => {
            (self::question_text(attribute, &who.name, dice), who.name.clone())
        }
    };
    let evidence: Vec<Vec<SourceRef>> = asked.evidence.iter().map(of).collect();
    ensure!(evidence.iter().all(|places| !places.is_empty()), "the evidence of `{text}` is told nowhere");
    let mut is_paraphrase = !evidence.is_empty();
    for place in evidence.iter().flatten() {
        let told = corpus.text(*place).context("a place is missing")?;
        is_paraphrase &= stemmer.shared_words(&text, told, &names)?.is_empty();
    }
    let older = asked.superseded.as_ref().map(of).unwrap_or_default();
    Ok(Question { kind: asked.kind, text, evidence, superseded_evidence: older, is_paraphrase })
}

/// A question for a fact, and the names in it.
fn question_about(Fact { subject: of, content }: &Fact, dice: &mut SeededRng) -> (String, String) {
    let text = match content {
        FactContent::Value { attribute, .. } => question_text(attribute, &of.name, dice),
        FactContent::Relation { relation: tie, .. } => format!("Who is {} {}?", tie.label, of.name),
    };
    (text, of.name.clone())
}

const DAY_QUESTIONS: &[&str] = &[
    "What happens on {date}?",
    "Who has something planned for {date}?",
    "What do I have to remember for {date}?",
    "What is my calendar like on {date}?",
];
const MONTH_QUESTIONS: &[&str] = &[
    "What did I learn about {who} in {month}?",
    "Which event concerned {who} in {month}?",
    "What was up with {who} in {month}?",
];

fn uncapitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
#[path = "corpus_tests.rs"]
mod tests;
