//! Measures the quality and latency of memory search on generated conversations. A corpus is stored in a brain and
//! in plain full-text indexes, and all of them are searched with the same questions.

mod attributes;
mod corpus;
mod dates;
mod distractors;
mod fact;
mod filled_brain;
mod fts_baseline;
mod plan;
mod rng;
mod score;
mod small_talk;
mod stemming;
mod subjects;
mod table;

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

use self::corpus::{Corpus, Question};
use self::filled_brain::FilledBrain;
use self::fts_baseline::{FtsBaseline, IndexUnit};
use self::score::{RESULT_LIMIT, Score};
use self::table::{MEMORY_INDEX_NAME, QuestionResult};
use crate::context::log_progress;

/// The corpus sizes in records, and the reported seeds.
const SIZES: [usize; 3] = [1_000, 10_000, 100_000];
const SEEDS: [u64; 3] = [11, 12, 13];
/// The size and seed without `--full`. It is the seed on which the ranking was tuned, so that tuning does not use
/// the others by accident.
const DEFAULT_SIZE_AND_SEED: (usize, u64) = (1_000, 1);
/// The number of timed searches per question, after a first one for its results.
const TIMED_SEARCHES: usize = 5;

/// The arguments of `bench retrieval`.
#[derive(Args)]
pub(crate) struct Retrieval {
    /// Measure all sizes and all reported seeds.
    #[arg(long)]
    full: bool,
    /// Measure this size, in records; can be repeated.
    #[arg(long, value_parser = clap::value_parser!(u32).range(800..=1_000_000))]
    records: Vec<u32>,
    /// Use this seed; can be repeated.
    #[arg(long)]
    seed: Vec<u64>,
    /// Print JSON, also with the values of each seed, instead of the table.
    #[arg(long)]
    json: bool,
}

impl Retrieval {
    /// Runs the measurement and prints the results.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (sizes, seeds) = if self.full {
            (&SIZES[..], &SEEDS[..])
        } else {
            (&[DEFAULT_SIZE_AND_SEED.0][..], &[DEFAULT_SIZE_AND_SEED.1][..])
        };
        let sizes: Vec<usize> = if self.records.is_empty() {
            sizes.to_vec()
        } else {
            self.records.iter().map(|records| usize::try_from(*records)).collect::<Result<_, _>>()?
        };
        let seeds = if self.seed.is_empty() { seeds } else { &self.seed };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut results = Vec::new();
        for records in sizes {
            for seed in seeds {
                results.extend(runtime.block_on(measure(*seed, records))?);
            }
        }
        let text =
            if self.json { table::render_json(&results)? + "\n" } else { table::render_table(&results) };
        Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
    }
}

/// Searches for all questions of one corpus.
async fn measure(seed: u64, records: usize) -> anyhow::Result<Vec<QuestionResult>> {
    let corpus = Corpus::generate(seed, records)?;
    log_progress(&format!(
        "retrieval: seed {seed}, storing {} records in {} conversations",
        corpus.record_count(),
        corpus.sessions.len()
    ));
    let folder = tempfile::tempdir().context("no temporary folder can be created")?;
    let filled = FilledBrain::new(&folder.path().join("brain.sqlite"), &corpus).await?;
    let mut results = Vec::new();
    for question in &corpus.questions {
        let (found, _) = filled.search(&question.text, RESULT_LIMIT)?;
        let hits: Vec<_> = found.iter().map(|found| filled.to_hit(found)).collect();
        let times = time_searches(|| Ok(filled.search(&question.text, RESULT_LIMIT)?.1))?;
        results.push(question_result(
            seed,
            records,
            MEMORY_INDEX_NAME,
            question,
            Score::compute(question, &hits),
            times,
        ));
    }
    for unit in IndexUnit::ALL {
        let index = FtsBaseline::new(&folder.path().join(unit.name()), &corpus, unit)?;
        for question in &corpus.questions {
            let (hits, _) = index.search(&question.text, RESULT_LIMIT)?;
            let times = time_searches(|| Ok(index.search(&question.text, RESULT_LIMIT)?.1))?;
            results.push(question_result(
                seed,
                records,
                unit.name(),
                question,
                Score::compute(question, &hits),
                times,
            ));
        }
    }
    Ok(results)
}

/// Repeats a search and returns the times in milliseconds.
fn time_searches(mut search: impl FnMut() -> anyhow::Result<Duration>) -> anyhow::Result<Vec<f64>> {
    (0..TIMED_SEARCHES).map(|_| Ok(search()?.as_secs_f64() * 1_000.0)).collect()
}

fn question_result(
    seed: u64,
    records: usize,
    index: &'static str,
    question: &Question,
    score: Score,
    times_ms: Vec<f64>,
) -> QuestionResult {
    let Question { kind, is_paraphrase, .. } = *question;
    QuestionResult { seed, records, index, kind, is_paraphrase, score, times_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_life_is_told_and_every_index_is_asked_every_question() {
        let results = measure(1, 1_000).await.unwrap();
        let indexes: Vec<&str> =
            std::iter::once(MEMORY_INDEX_NAME).chain(IndexUnit::ALL.map(IndexUnit::name)).collect();
        for index in indexes {
            let of_index = || results.iter().filter(|one| one.index == index);
            assert_eq!(of_index().count(), 72);
            assert!(of_index().all(|one| one.times_ms.len() == TIMED_SEARCHES));
            // Whatever the ranking is, most of the evidence that shares words with its question is found.
            let literal_results = || {
                of_index().filter(|one| !one.is_paraphrase && one.kind != plan::QuestionKind::Unanswerable)
            };
            let found = literal_results().filter(|one| one.score.recall_at_10 > 0.0).count();
            assert!(
                found * 3 > literal_results().count() * 2,
                "{index}: {found} of {}",
                literal_results().count()
            );
        }
    }

    #[tokio::test]
    async fn a_brain_shows_what_it_was_told_in_the_places_where_it_was() {
        let corpus = Corpus::generate(3, 1_000).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let filled = FilledBrain::new(&folder.path().join("brain.sqlite"), &corpus).await.unwrap();
        let mut kinds = std::collections::BTreeSet::new();
        for question in &corpus.questions {
            for source in question.evidence.iter().flatten() {
                let text = corpus.text(*source).unwrap();
                let (found, _) = filled.search(text, 20).unwrap();
                let shows = |found: &&store::SearchHit| filled.to_hit(found).sources.contains(source);
                for found in found.iter().filter(shows) {
                    assert!(found.content.contains(text), "{}", found.content);
                    kinds.insert(found.kind);
                }
            }
        }
        // Episodes are found through the messages of their turns.
        assert_eq!(kinds.len(), 2, "{kinds:?}");
    }
}
