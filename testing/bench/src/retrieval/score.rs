//! Scores the results of a search for a question's answer. A pure function.

use super::corpus::{Question, SourceRef};

/// A search result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// The messages and knowledge records that the result contains.
    pub(crate) sources: Vec<SourceRef>,
    /// Those that its excerpt contains, which is what a turn is told unasked; `None` if it is not relevant enough.
    pub(crate) told: Option<Vec<SourceRef>>,
    pub(crate) characters: usize,
}

/// The number of requested results.
pub(crate) const RESULT_LIMIT: usize = 10;
/// The most results that the engine tells a turn unasked.
const TOLD_LIMIT: usize = 6;
/// The approximate number of characters per token.
const CHARACTERS_PER_TOKEN: f64 = 4.0;

/// The score of one search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    /// Recall among the first 5 results.
    pub(crate) recall_at_5: f64,
    /// Recall among the first 10 results.
    pub(crate) recall_at_10: f64,
    /// Recall among those of the first results that a turn would be told unasked.
    pub(crate) recall_unasked: f64,
    /// Approximate tokens of the first 10 results.
    pub(crate) tokens: f64,
}

impl Score {
    /// Scores the results of a question, which are ordered from best to worst.
    #[expect(clippy::cast_precision_loss, reason = "results are short")]
    pub(crate) fn compute(question: &Question, hits: &[Hit]) -> Self {
        let told = |hit: &Hit| hit.told.clone().map(|sources| Hit { sources, ..hit.clone() });
        let told: Vec<Hit> = hits.iter().filter_map(told).collect();
        let characters: usize = hits.iter().take(RESULT_LIMIT).map(|hit| hit.characters).sum();
        Self {
            recall_at_5: recall(question, hits, 5),
            recall_at_10: recall(question, hits, RESULT_LIMIT),
            recall_unasked: recall(question, &told, TOLD_LIMIT),
            tokens: characters as f64 / CHARACTERS_PER_TOKEN,
        }
    }
}

/// Returns the fraction of the answer's facts that the first results contain. A fact counts if one of its sources
/// is contained. For an unanswerable question, returns 1 if none of the results is relevant.
#[expect(clippy::cast_precision_loss, reason = "there are at most two facts")]
fn recall(question: &Question, hits: &[Hit], first: usize) -> f64 {
    let hits = || hits.iter().take(first);
    if question.evidence.is_empty() {
        return if hits().any(|hit| hit.told.is_some()) { 0.0 } else { 1.0 };
    }
    let is_found = |sources: &&Vec<SourceRef>| {
        hits().any(|hit| hit.sources.iter().any(|source| sources.contains(source)))
    };
    let found = question.evidence.iter().filter(is_found).count();
    found as f64 / question.evidence.len() as f64
}

#[cfg(test)]
mod tests {
    use super::super::plan::QuestionKind;
    use super::*;

    fn hit(sources: &[usize], is_relevant: bool) -> Hit {
        let sources: Vec<_> = sources.iter().map(|number| SourceRef::Knowledge(*number)).collect();
        Hit { told: is_relevant.then(|| sources.clone()), sources, characters: 40 }
    }

    fn question(evidence: &[&[usize]]) -> Question {
        let sources =
            |numbers: &&[usize]| numbers.iter().map(|number| SourceRef::Knowledge(*number)).collect();
        Question {
            kind: QuestionKind::Joined,
            text: "?".into(),
            evidence: evidence.iter().map(sources).collect(),
            superseded_evidence: Vec::new(),
            is_paraphrase: true,
        }
    }

    #[test]
    fn a_fact_is_found_in_any_of_its_places_among_the_first_results() {
        let mut hits = vec![hit(&[90], true); 5];
        hits.push(hit(&[3, 4], true));
        let score = Score::compute(&question(&[&[1, 3], &[7]]), &hits);
        assert_eq!(score, Score { recall_at_5: 0.0, recall_at_10: 0.5, recall_unasked: 0.5, tokens: 60.0 });
        hits.insert(0, hit(&[7], false));
        let score = Score::compute(&question(&[&[1, 3], &[7]]), &hits);
        assert_eq!(score, Score { recall_at_5: 0.5, recall_at_10: 1.0, recall_unasked: 0.5, tokens: 70.0 });
        hits.extend(vec![hit(&[90], true); 5]);
        assert_eq!(
            Score::compute(&question(&[&[5]]), &hits),
            Score { recall_at_5: 0.0, recall_at_10: 0.0, recall_unasked: 0.0, tokens: 100.0 }
        );
    }

    #[test]
    fn a_question_without_an_answer_is_answered_well_by_nothing() {
        let hits = [hit(&[1], false), hit(&[2], false)];
        assert_eq!(
            Score::compute(&question(&[]), &hits),
            Score { recall_at_5: 1.0, recall_at_10: 1.0, recall_unasked: 1.0, tokens: 20.0 }
        );
        assert_eq!(
            Score::compute(&question(&[]), &[hit(&[1], true)]),
            Score { recall_at_5: 0.0, recall_at_10: 0.0, recall_unasked: 0.0, tokens: 10.0 }
        );
        assert_eq!(
            Score::compute(&question(&[]), &[]),
            Score { recall_at_5: 1.0, recall_at_10: 1.0, recall_unasked: 1.0, tokens: 0.0 }
        );
    }
}
