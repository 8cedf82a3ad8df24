//! A generated corpus: conversations of a user with an agent, the knowledge records that the agent saved, and
//! questions with the sources of their answers.

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

/// The records of a turn: the user's message, the agent's answer, and the episode that memory derives from them.
pub(crate) const RECORDS_PER_TURN: usize = 3;
/// The minimum percentage of answerable questions that share no content word with their evidence.
pub(crate) const MIN_PARAPHRASE_PERCENT: usize = 50;
/// The duration of a turn.
const TURN_DURATION_MS: i64 = 2 * 60 * 1_000;
/// The maximum number of questions of a kind. Small corpora have fewer, so that most of the text is not asked for.
const MAX_QUESTIONS_PER_KIND: usize = 50;
const RECORDS_PER_QUESTION: usize = 80;
/// The percentage of replacing records that are saved with a link to the record they replace.
const LINKED_PERCENT: u32 = 70;

/// A corpus, reproducible from its seed and size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Corpus {
    /// The conversations in chronological order, each a task of its own.
    pub(crate) sessions: Vec<Session>,
    /// The knowledge records in chronological order.
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
    /// Returns the time of a turn.
    pub(crate) fn turn_time_ms(&self, turn: usize) -> i64 {
        self.started_ms + i64::try_from(turn).unwrap_or(0) * TURN_DURATION_MS
    }
}

/// A knowledge record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnowledgeRecord {
    pub(crate) content: String,
    pub(crate) at_ms: i64,
    /// The index of the record that this one supersedes.
    pub(crate) supersedes: Option<usize>,
}

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Speaker {
    User,
    Agent,
}

/// A message or knowledge record, by its indexes in the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SourceRef {
    Message { session: usize, turn: usize, speaker: Speaker },
    Knowledge(usize),
}

/// A question and the sources of its answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) kind: QuestionKind,
    pub(crate) text: String,
    /// For each fact of the answer, all sources that state it.
    pub(crate) evidence: Vec<Vec<SourceRef>>,
    /// The sources of the superseded answer.
    pub(crate) superseded_evidence: Vec<SourceRef>,
    /// Whether there is evidence and the question shares no content word with it, except for names and dates.
    pub(crate) is_paraphrase: bool,
}

/// A turn with the fact that it states.
pub(crate) struct DraftTurn {
    pub(crate) turn: Turn,
    pub(crate) evidence_for: Option<(FactIndex, Speaker)>,
    /// The content of a knowledge record that the agent saves, and its fact.
    pub(crate) record: Option<(String, Option<FactIndex>)>,
}

struct DraftSession {
    started_ms: i64,
    turns: Vec<DraftTurn>,
}

impl Corpus {
    /// Generates a corpus of at least `records` records, exceeded by at most one turn. It is the same for the same
    /// seed. Two sizes have the same questions if they have as many of them.
    ///
    /// # Errors
    /// `records` is too small for the questions' facts, or too many questions repeat the words of their evidence.
    pub(crate) fn generate(seed: u64, records: usize) -> anyhow::Result<Self> {
        let mut rng = SeededRng::new(seed);
        let per_kind = (records / RECORDS_PER_QUESTION).clamp(1, MAX_QUESTIONS_PER_KIND);
        let mut plan = CorpusPlan::new(per_kind, &mut rng)?;
        let mut distractors = Distractors::new(&mut plan, records, &mut rng);
        let mut drafts = draft_sessions(&plan, &mut distractors, &mut rng)?;
        let mut count = drafts.iter().flat_map(|draft| &draft.turns).map(record_count_of).sum::<usize>();
        ensure!(count <= records, "{records} records are too few: the facts that are asked for take {count}");
        while count < records {
            let mut turns = Vec::new();
            let most = rng.between(3, 8);
            while turns.len() < most && count < records {
                let more = distractors.turns(&mut rng);
                count += more.iter().map(record_count_of).sum::<usize>();
                turns.extend(more);
            }
            drafts.push(DraftSession { started_ms: time_at(rng.fraction()), turns });
        }
        assemble(&plan, drafts, &mut rng)
    }

    /// Returns the number of records: messages, episodes (one per turn) and knowledge records.
    pub(crate) fn record_count(&self) -> usize {
        let turns: usize = self.sessions.iter().map(|session| session.turns.len()).sum();
        turns * RECORDS_PER_TURN + self.knowledge.len()
    }

    /// Returns the text of a source.
    pub(crate) fn text(&self, source: SourceRef) -> Option<&str> {
        match source {
            SourceRef::Knowledge(number) => self.knowledge.get(number).map(|record| record.content.as_str()),
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

fn record_count_of(draft: &DraftTurn) -> usize {
    RECORDS_PER_TURN + usize::from(draft.record.is_some())
}

/// Returns the time at a fraction of the corpus's span, in Unix milliseconds.
#[expect(clippy::cast_possible_truncation, reason = "a moment of these years is far from the bounds")]
#[expect(clippy::cast_precision_loss, reason = "the same")]
fn time_at(share: f64) -> i64 {
    START_MS + ((SPAN_DAYS * DAY_MS) as f64 * share) as i64
}

/// Drafts the conversations that state the plan's facts, mixed with distractors.
fn draft_sessions(
    plan: &CorpusPlan,
    distractors: &mut Distractors,
    rng: &mut SeededRng,
) -> anyhow::Result<Vec<DraftSession>> {
    let mut mentions = plan.mentions.clone();
    mentions.sort_by(|one, other| one.time_fraction.total_cmp(&other.time_fraction));
    let mut drafts = Vec::new();
    let mut mentions = mentions.into_iter().peekable();
    while let Some(first) = mentions.next() {
        let mut together = vec![first];
        let most = rng.between(1, 3);
        // At most one fact per subject, because facts that replace each other are stated at different times.
        let subject = |mention: &FactMention| plan.facts.get(mention.fact).map(|fact| &fact.subject);
        while together.len() < most
            && let Some(next) =
                mentions.next_if(|next| together.iter().all(|other| subject(other) != subject(next)))
        {
            together.push(next);
        }
        let mut turns = Vec::new();
        for mention in together {
            for _ in 0..rng.between(0, 1) {
                turns.extend(distractors.turns(rng));
            }
            let fact = plan.facts.get(mention.fact).context("a fact is missing")?;
            let is_change = plan.supersedes.get(mention.fact).is_some_and(Option::is_some);
            let mention = Some(mention.fact).zip(Some(mention));
            turns.extend(draft_turns(fact, mention, is_change, rng));
        }
        for _ in 0..rng.between(0, 1) {
            turns.extend(distractors.turns(rng));
        }
        drafts.push(DraftSession { started_ms: time_at(first.time_fraction), turns });
    }
    Ok(drafts)
}

/// Drafts the turns that state a fact; `mention` is `None` for a fact that is not in the plan.
pub(crate) fn draft_turns(
    fact: &Fact,
    mention: Option<(FactIndex, FactMention)>,
    is_change: bool,
    rng: &mut SeededRng,
) -> Vec<DraftTurn> {
    let (number, mention) = mention.unzip();
    let (style, is_recorded) = match mention {
        Some(mention) => (mention.style, mention.is_recorded),
        None => (plan::pick_style(fact.subject.pronoun.is_some(), rng), rng.chance(plan::RECORDED_PERCENT)),
    };
    let name = fact.subject.name.as_str();
    let record = is_recorded.then(|| (fact.record(rng), number));
    let evidence_by = |speaker| number.map(|number| (number, speaker));
    let openers = if is_change && rng.chance(40) { small_talk::CHANGE_OPENERS } else { small_talk::OPENERS };
    let opener = rng.pick(openers);
    match style {
        MentionStyle::ByName => {
            let statement = fact.statement(name, rng);
            let turn = Turn {
                user: small_talk::surround(opener, &statement, rng),
                agent: small_talk::acknowledgement(rng),
            };
            vec![DraftTurn { turn, evidence_for: evidence_by(Speaker::User), record }]
        }
        MentionStyle::ByShortName => {
            let turn =
                Turn { user: small_talk::introduction(name, rng), agent: small_talk::acknowledgement(rng) };
            let first = DraftTurn { turn, evidence_for: None, record: None };
            let statement = fact.statement(fact.subject.short_reference(rng), rng);
            let turn = Turn {
                user: small_talk::surround("", &statement, rng),
                agent: small_talk::acknowledgement(rng),
            };
            vec![first, DraftTurn { turn, evidence_for: evidence_by(Speaker::User), record }]
        }
        MentionStyle::ReportedByAgent => {
            let user = rng.pick(small_talk::LOOKUPS).replace("{who}", name);
            let agent = format!("{}{}", rng.pick(small_talk::FINDINGS), fact.statement(name, rng));
            vec![DraftTurn { turn: Turn { user, agent }, evidence_for: evidence_by(Speaker::Agent), record }]
        }
    }
}

/// Orders everything chronologically and words the questions.
fn assemble(plan: &CorpusPlan, mut drafts: Vec<DraftSession>, rng: &mut SeededRng) -> anyhow::Result<Corpus> {
    drafts.sort_by_key(|draft| draft.started_ms);
    let mut corpus = Corpus { sessions: Vec::new(), knowledge: Vec::new(), questions: Vec::new() };
    let mut sources: HashMap<FactIndex, Vec<SourceRef>> = HashMap::new();
    let mut saved_records: HashMap<FactIndex, usize> = HashMap::new();
    for (session, DraftSession { started_ms, turns }) in drafts.into_iter().enumerate() {
        let mut conversation = Session { started_ms, turns: Vec::new() };
        for (turn, draft) in turns.into_iter().enumerate() {
            if let Some((fact, speaker)) = draft.evidence_for {
                sources.entry(fact).or_default().push(SourceRef::Message { session, turn, speaker });
            }
            if let Some((content, fact)) = draft.record {
                let number = corpus.knowledge.len();
                let older = fact.and_then(|fact| plan.supersedes.get(fact).copied().flatten());
                let supersedes = older
                    .and_then(|older| saved_records.get(&older).copied())
                    .filter(|_| rng.chance(LINKED_PERCENT));
                corpus.knowledge.push(KnowledgeRecord {
                    content,
                    at_ms: conversation.turn_time_ms(turn),
                    supersedes,
                });
                if let Some(fact) = fact {
                    sources.entry(fact).or_default().push(SourceRef::Knowledge(number));
                    saved_records.insert(fact, number);
                }
            }
            conversation.turns.push(draft.turn);
        }
        corpus.sessions.push(conversation);
    }
    let stemmer = Stemmer::new()?;
    for planned in &plan.questions {
        let question = build_question(plan, planned, &corpus, &sources, &stemmer, rng)?;
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
    planned: &PlannedQuestion,
    corpus: &Corpus,
    sources: &HashMap<FactIndex, Vec<SourceRef>>,
    stemmer: &Stemmer,
    rng: &mut SeededRng,
) -> anyhow::Result<Question> {
    let fact = |number: &FactIndex| plan.facts.get(*number).context("a fact is missing");
    let sources_of = |number: &FactIndex| sources.get(number).cloned().unwrap_or_default();
    let (text, names) = match &planned.form {
        QuestionForm::AboutFact(number) => question_about(fact(number)?, rng),
        QuestionForm::AboutTwoFacts(one, other) => {
            let ((one, first), (other, second)) =
                (question_about(fact(one)?, rng), question_about(fact(other)?, rng));
            (
                format!("{}, and {}", one.trim_end_matches('?'), uncapitalize(&other)),
                format!("{first} {second}"),
            )
        }
        QuestionForm::ViaRelation { tie, end } => {
            let (
                Fact { subject, content: FactContent::Relation { relation, .. } },
                FactContent::Value { attribute, .. },
            ) = (fact(tie)?, &fact(end)?.content)
            else {
                anyhow::bail!("the first fact of a joined question is not a relation")
            };
            (
                self::question_text(attribute, &format!("{} {}", relation.label, subject.name), rng),
                subject.name.clone(),
            )
        }
        QuestionForm::OnDay(number) => {
            let FactContent::Value { day, .. } = &fact(number)?.content else {
                anyhow::bail!("a relation has no day")
            };
            let day = day.format(rng);
            (rng.pick(DAY_QUESTIONS).replace("{date}", &day), String::new())
        }
        QuestionForm::InMonth(number) => {
            let Fact { subject, .. } = fact(number)?;
            let Some(SourceRef::Message { session, .. }) = sources_of(number).first().copied() else {
                anyhow::bail!("a fact is not stated anywhere")
            };
            let began = corpus.sessions.get(session).context("a conversation is missing")?.started_ms;
            let text = rng
                .pick(MONTH_QUESTIONS)
                .replace("{month}", &month_name(began))
                .replace("{who}", &subject.name);
            (text, subject.name.clone())
        }
        QuestionForm::Unanswerable { who, attribute } => {
            (self::question_text(attribute, &who.name, rng), who.name.clone())
        }
    };
    let evidence: Vec<Vec<SourceRef>> = planned.evidence.iter().map(sources_of).collect();
    ensure!(
        evidence.iter().all(|sources| !sources.is_empty()),
        "the evidence of `{text}` is not stated anywhere"
    );
    let mut is_paraphrase = !evidence.is_empty();
    for source in evidence.iter().flatten() {
        let statement = corpus.text(*source).context("a source is missing")?;
        is_paraphrase &= stemmer.shared_words(&text, statement, &names)?.is_empty();
    }
    let older = planned.superseded.as_ref().map(sources_of).unwrap_or_default();
    Ok(Question { kind: planned.kind, text, evidence, superseded_evidence: older, is_paraphrase })
}

/// Returns a question for a fact and the names in it.
fn question_about(Fact { subject, content }: &Fact, rng: &mut SeededRng) -> (String, String) {
    let text = match content {
        FactContent::Value { attribute, .. } => question_text(attribute, &subject.name, rng),
        FactContent::Relation { relation, .. } => format!("Who is {} {}?", relation.label, subject.name),
    };
    (text, subject.name.clone())
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
