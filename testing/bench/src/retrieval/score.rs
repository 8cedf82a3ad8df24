//! What a search for a question's answer is worth. Pure.

use super::corpus::{Question, SourceRef};

/// A result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// The messages and records of knowledge that it shows.
    pub(crate) sources: Vec<SourceRef>,
    pub(crate) characters: usize,
    /// Whether it is worth showing to somebody who did not ask for it.
    pub(crate) is_relevant: bool,
}

/// How many results are asked for.
pub(crate) const RESULT_LIMIT: usize = 10;
/// How many characters a token is, about.
const CHARACTERS_PER_TOKEN: f64 = 4.0;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    /// Of the first 5 results.
    pub(crate) recall_at_5: f64,
    /// Of the first 10 results.
    pub(crate) recall_at_10: f64,
    /// Of the first 10 results.
    pub(crate) tokens: f64,
}

impl Score {
    /// Scores the results for a question, the best first.
    #[expect(clippy::cast_precision_loss, reason = "results are short")]
    pub(crate) fn compute(question: &Question, hits: &[Hit]) -> Self {
        let characters: usize = hits.iter().take(RESULT_LIMIT).map(|hit| hit.characters).sum();
        Self {
            recall_at_5: recall(question, hits, 5),
            recall_at_10: recall(question, hits, RESULT_LIMIT),
            tokens: characters as f64 / CHARACTERS_PER_TOKEN,
        }
    }
}

/// Which share of the facts that answer a question is shown by the first results: a fact is, where one of the places
/// is in which it is told. Where nothing answers it, 1 if none of them is relevant.
#[expect(clippy::cast_precision_loss, reason = "there are at most two facts")]
fn recall(question: &Question, hits: &[Hit], first: usize) -> f64 {
    let hits = || hits.iter().take(first);
    if question.evidence.is_empty() {
        return if hits().any(|hit| hit.is_relevant) { 0.0 } else { 1.0 };
    }
    let is_shown =
        |places: &&Vec<SourceRef>| hits().any(|hit| hit.sources.iter().any(|place| places.contains(place)));
    let shown = question.evidence.iter().filter(is_shown).count();
    shown as f64 / question.evidence.len() as f64
}

#[cfg(test)]
mod tests {
    use super::super::plan::QuestionKind;
    use super::*;

    fn hit(places: &[usize], is_relevant: bool) -> Hit {
        let places = places.iter().map(|number| SourceRef::Knowledge(*number)).collect();
        Hit { sources: places, characters: 40, is_relevant }
    }

    fn question(evidence: &[&[usize]]) -> Question {
        let places =
            |numbers: &&[usize]| numbers.iter().map(|number| SourceRef::Knowledge(*number)).collect();
        Question {
            kind: QuestionKind::Joined,
            text: "?".into(),
            evidence: evidence.iter().map(places).collect(),
            superseded_evidence: Vec::new(),
            is_paraphrase: true,
        }
    }

    #[test]
    fn a_fact_is_found_in_any_of_its_places_among_the_first_results() {
        let mut hits = vec![hit(&[90], true); 5];
        hits.push(hit(&[3, 4], true));
        let score = Score::compute(&question(&[&[1, 3], &[7]]), &hits);
        assert_eq!(score, Score { recall_at_5: 0.0, recall_at_10: 0.5, tokens: 60.0 });
        hits.insert(0, hit(&[7], false));
        let score = Score::compute(&question(&[&[1, 3], &[7]]), &hits);
        assert_eq!(score, Score { recall_at_5: 0.5, recall_at_10: 1.0, tokens: 70.0 });
        hits.extend(vec![hit(&[90], true); 5]);
        assert_eq!(
            Score::compute(&question(&[&[5]]), &hits),
            Score { recall_at_5: 0.0, recall_at_10: 0.0, tokens: 100.0 }
        );
    }

    #[test]
    fn a_question_without_an_answer_is_answered_well_by_nothing() {
        let hits = [hit(&[1], false), hit(&[2], false)];
        assert_eq!(
            Score::compute(&question(&[]), &hits),
            Score { recall_at_5: 1.0, recall_at_10: 1.0, tokens: 20.0 }
        );
        assert_eq!(
            Score::compute(&question(&[]), &[hit(&[1], true)]),
            Score { recall_at_5: 0.0, recall_at_10: 0.0, tokens: 10.0 }
        );
        assert_eq!(
            Score::compute(&question(&[]), &[]),
            Score { recall_at_5: 1.0, recall_at_10: 1.0, tokens: 0.0 }
        );
    }
}
