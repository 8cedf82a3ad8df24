//! Measures memory search on long conversations: how much of the answers it finds, what a turn is told
//! unasked, and what that costs. A conversation is stored in a brain and in plain full-text indexes, and all
//! of them are searched with the same questions.

mod conversations;
mod file;
mod filled_brain;
mod fts_baseline;
mod generator;
mod resources;
mod rng;
mod score;
mod table;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

use self::conversations::{Conversation, Question};
use self::filled_brain::FilledBrain;
use self::fts_baseline::{FtsBaseline, IndexUnit};
use self::resources::Resources;
pub(crate) use self::resources::SearchMemory;
use self::score::{FIRST, Hit, RESULT_LIMIT, Score, shown_characters};
use self::table::{MEMORY, QuestionResult};
use crate::context::log_progress;

/// The sizes with `--full` in messages, and how many of the reported seeds each has: a conversation of 1,000 messages has
/// some sixty questions, of which a few are three points.
const SIZES: [(usize, u64); 3] = [(1_000, 50), (10_000, 5), (100_000, 3)];
/// The first of the reported seeds. Nothing was ever tuned on them: whoever changes the ranking or the generator
/// develops on the seeds 1 to 99.
const FIRST_SEED: u64 = 101;
/// The sizes without `--full`.
const DEFAULT_SIZES: [(usize, u64); 1] = [(1_000, 1)];
/// In larger conversations the plain indexes are left out, for which they take many minutes.
const MAX_BASELINE_MESSAGES: usize = 100_000;
/// The number of timed searches per question.
const TIMED_SEARCHES: usize = 3;

/// A search: its results for a text, at most so many, and the time that it took.
type SearchFn<'a> = dyn Fn(&str, usize) -> anyhow::Result<(Vec<Hit>, Duration)> + 'a;

/// The arguments of `bench retrieval`.
#[derive(Args)]
pub(crate) struct Retrieval {
    /// Measure the conversations of this file instead of generated ones.
    #[arg(long, conflicts_with_all = ["full", "messages", "seed"])]
    conversations: Option<PathBuf>,
    /// Measure all sizes and all reported seeds.
    #[arg(long)]
    full: bool,
    /// Measure generated conversations of this size, in messages; can be repeated.
    #[arg(long, value_parser = clap::value_parser!(u32).range(500..=2_000_000))]
    messages: Vec<u32>,
    /// Use this seed; can be repeated.
    #[arg(long)]
    seed: Vec<u64>,
    /// Print JSON, also with the values of each seed, instead of the tables.
    #[arg(long)]
    json: bool,
}

/// What is measured together.
struct Subject {
    /// The seed, or the number of the conversation in its file.
    seed: u64,
    /// The size in the report.
    messages: usize,
    conversation: Conversation,
}

impl Retrieval {
    /// Runs the measurement and prints the results.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut results, mut costs) = (Vec::new(), Vec::new());
        for subject in self.subjects()? {
            let (of_questions, of_brain) = runtime.block_on(measure(&subject?))?;
            results.extend(of_questions);
            costs.push(of_brain);
        }
        let text = if self.json {
            table::render_json(&results, &costs)? + "\n"
        } else {
            table::render_tables(&results, &costs)
        };
        Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
    }

    /// The conversations to measure; generated ones one after the other.
    fn subjects(&self) -> anyhow::Result<Box<dyn Iterator<Item = anyhow::Result<Subject>>>> {
        if let Some(file) = &self.conversations {
            let conversations = file::read(file)?;
            let messages = conversations.iter().map(|one| one.messages.len()).sum();
            let subject = move |(seed, conversation)| Ok(Subject { seed, messages, conversation });
            return Ok(Box::new((1..).zip(conversations).map(subject)));
        }
        let mut sizes = if self.full { SIZES.to_vec() } else { DEFAULT_SIZES.to_vec() };
        if !self.messages.is_empty() {
            let given = self.messages.iter().map(|size| Ok((usize::try_from(*size)?, 1)));
            sizes = given.collect::<anyhow::Result<_>>()?;
        }
        let seeds = self.seed.clone();
        Ok(Box::new(sizes.into_iter().flat_map(move |(messages, count)| {
            let reported = || (FIRST_SEED..FIRST_SEED + count).collect();
            let seeds = if seeds.is_empty() { reported() } else { seeds.clone() };
            seeds.into_iter().map(move |seed| {
                Ok(Subject { seed, messages, conversation: generator::generate(seed, messages) })
            })
        })))
    }
}

/// Searches for all questions about one conversation.
async fn measure(subject: &Subject) -> anyhow::Result<(Vec<QuestionResult>, Resources)> {
    let Subject { seed, messages, conversation } = subject;
    log_progress(&format!(
        "retrieval: seed {seed}, storing {} messages in {} sessions",
        conversation.messages.len(),
        conversation.sessions.len()
    ));
    let folder = tempfile::tempdir().context("no temporary folder can be created")?;
    let filled = FilledBrain::new(&folder.path().join("brain.sqlite"), conversation).await?;
    let has_baselines = *messages <= MAX_BASELINE_MESSAGES;
    let open = |unit: IndexUnit| FtsBaseline::new(&folder.path().join(unit.name()), conversation, unit);
    let windows = if has_baselines { Some(open(IndexUnit::Windows)?) } else { None };
    let mut rooms = Vec::new();
    for question in &conversation.questions {
        rooms.push(match &windows {
            Some(windows) => {
                let (hits, _) = windows.search(&question.text, FIRST[1])?;
                Some(shown_characters(conversation, &hits))
            }
            None => None,
        });
    }
    let mut results = Vec::new();
    let mut add = |name, searches: usize, search: &SearchFn<'_>| {
        for (question, room) in conversation.questions.iter().zip(&rooms) {
            let Question { kind, text, evidence } = question;
            let (hits, _) = search(text, RESULT_LIMIT)?;
            let times = (0..searches).map(|_| Ok(search(text, FIRST[1])?.1.as_secs_f64() * 1_000.0));
            results.push(QuestionResult {
                seed: *seed,
                messages: *messages,
                search: name,
                kind: kind.clone(),
                has_answer: !evidence.is_empty(),
                score: Score::compute(conversation, question, &hits, *room),
                times_ms: times.collect::<anyhow::Result<_>>()?,
            });
        }
        anyhow::Ok(())
    };
    add(MEMORY, TIMED_SEARCHES, &|text, limit| filled.search(text, limit))?;
    let mut windows_bytes = None;
    if let Some(windows) = windows {
        windows_bytes = Some(windows.index_bytes()?);
        add(IndexUnit::Windows.name(), 1, &|text, limit| windows.search(text, limit))?;
        for unit in IndexUnit::ALL.into_iter().filter(|unit| *unit != IndexUnit::Windows) {
            let index = open(unit)?;
            add(unit.name(), 1, &|text, limit| index.search(text, limit))?;
        }
    }
    let costs = resources::measure((*seed, *messages), filled, conversation, windows_bytes).await?;
    Ok((results, costs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_search_is_asked_every_question_and_a_brain_shows_what_it_was_told() {
        let conversation = generator::generate(1, 500);
        let folder = tempfile::tempdir().unwrap();
        let filled = FilledBrain::new(&folder.path().join("brain.sqlite"), &conversation).await.unwrap();
        for question in conversation.questions.iter().filter(|one| !one.evidence.is_empty()) {
            let message = question.evidence[0];
            let (found, _) = filled.search(&conversation.messages[message].text, 20).unwrap();
            assert!(found.iter().any(|hit| hit.messages.contains(&message)), "{question:?}");
            assert!(found.iter().all(|hit| hit.messages.is_sorted() && !hit.messages.is_empty()));
        }
    }
}
