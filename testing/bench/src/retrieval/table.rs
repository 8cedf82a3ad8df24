//! Renders the results of the retrieval benchmark as a table and as JSON.

use serde::Serialize;

use super::plan::QuestionKind;
use super::score::Score;
use crate::report;
use crate::stats::percentile;

/// The result of one question on one index.
#[derive(Clone, Debug)]
pub(crate) struct QuestionResult {
    pub(crate) seed: u64,
    /// The requested size of the corpus in records.
    pub(crate) records: usize,
    pub(crate) index: &'static str,
    pub(crate) kind: QuestionKind,
    pub(crate) is_paraphrase: bool,
    pub(crate) score: Score,
    /// The duration of each search in milliseconds.
    pub(crate) times_ms: Vec<f64>,
}

/// The budget for the 99th percentile of memory search: the corpus size in records, and the limit in milliseconds.
const P99_BUDGET: (usize, f64) = (100_000, 10.0);
/// The name of the index that the budget applies to.
pub(crate) const MEMORY_INDEX_NAME: &str = "memory";

/// A group of questions whose results are aggregated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    ByKind(QuestionKind),
    /// Questions that share no content word with their evidence.
    Paraphrases,
    /// Questions that share some.
    Literal,
    All,
}

impl Group {
    const ALL_GROUPS: [Self; 9] = [
        Self::ByKind(QuestionKind::Single),
        Self::ByKind(QuestionKind::Joined),
        Self::ByKind(QuestionKind::Superseded),
        Self::ByKind(QuestionKind::Date),
        Self::ByKind(QuestionKind::Preference),
        Self::ByKind(QuestionKind::Unanswerable),
        Self::Paraphrases,
        Self::Literal,
        Self::All,
    ];

    fn contains(self, answered: &QuestionResult) -> bool {
        let is_answerable = answered.kind != QuestionKind::Unanswerable;
        match self {
            Self::ByKind(kind) => answered.kind == kind,
            Self::Paraphrases => is_answerable && answered.is_paraphrase,
            Self::Literal => is_answerable && !answered.is_paraphrase,
            Self::All => is_answerable,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::ByKind(QuestionKind::Single) => "single fact",
            Self::ByKind(QuestionKind::Joined) => "two facts joined",
            Self::ByKind(QuestionKind::Superseded) => "superseded fact",
            Self::ByKind(QuestionKind::Date) => "date",
            Self::ByKind(QuestionKind::Preference) => "preference",
            Self::ByKind(QuestionKind::Unanswerable) => "unanswerable",
            Self::Paraphrases => "paraphrased",
            Self::Literal => "in the same words",
            Self::All => "all with an answer",
        }
    }
}

/// The aggregated results of a group, an index and a size.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    records: usize,
    questions: &'static str,
    count: usize,
    index: &'static str,
    recall_at_5: f64,
    recall_at_10: f64,
    recall_unasked: f64,
    tokens: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Figures {
    /// Aggregates the matching results; `None` if there are none.
    fn compute(
        answered: &[QuestionResult],
        records: usize,
        group: Group,
        index: &'static str,
    ) -> Option<Self> {
        let of = |one: &&QuestionResult| one.records == records && one.index == index && group.contains(one);
        let answered: Vec<&QuestionResult> = answered.iter().filter(of).collect();
        let times: Vec<f64> = answered.iter().flat_map(|one| one.times_ms.iter().copied()).collect();
        #[expect(clippy::cast_precision_loss, reason = "there are some hundred questions")]
        let mean = |pick: fn(&Score) -> f64| {
            answered.iter().map(|one| pick(&one.score)).sum::<f64>() / answered.len() as f64
        };
        Some(Self {
            records,
            questions: group.name(),
            count: answered.len(),
            index,
            recall_at_5: mean(|score| score.recall_at_5),
            recall_at_10: mean(|score| score.recall_at_10),
            recall_unasked: mean(|score| score.recall_unasked),
            tokens: mean(|score| score.tokens),
            p50_ms: percentile(&times, 50)?,
            p99_ms: percentile(&times, 99)?,
        })
    }

    fn verdict(&self) -> &'static str {
        let (records, limit_ms) = P99_BUDGET;
        let has_budget =
            self.records == records && self.index == MEMORY_INDEX_NAME && self.questions == Group::All.name();
        match (has_budget, self.p99_ms < limit_ms) {
            (false, _) => "",
            (true, true) => "p99 < 10 ms: met",
            (true, false) => "p99 < 10 ms: MISSED",
        }
    }
}

fn compute_figures(answered: &[QuestionResult]) -> Vec<Figures> {
    let mut sizes: Vec<usize> = answered.iter().map(|one| one.records).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut indexes: Vec<&'static str> = Vec::new();
    for one in answered {
        if !indexes.contains(&one.index) {
            indexes.push(one.index);
        }
    }
    let groups = |records| Group::ALL_GROUPS.into_iter().map(move |group| (records, group));
    let rows = sizes.into_iter().flat_map(groups);
    let each = |(records, group)| {
        indexes
            .iter()
            .filter_map(move |index| Figures::compute(answered, records, group, index))
            .collect::<Vec<_>>()
    };
    rows.flat_map(each).collect()
}

const COLUMN_HEADERS: [&str; 10] =
    ["records", "questions", "index", "recall@5", "recall@10", "unasked", "tokens", "p50 ms", "p99 ms", ""];
const LEFT_ALIGNED: [bool; 10] = [false, true, true, false, false, false, false, false, false, true];

/// Renders a line for each size, group of questions and index.
pub(crate) fn render_table(answered: &[QuestionResult]) -> String {
    let mut rows = vec![COLUMN_HEADERS.map(str::to_owned)];
    let mut before = ("", 0);
    for figures in compute_figures(answered) {
        let group = (figures.questions, figures.records);
        let (records, questions) = if group == before {
            (String::new(), String::new())
        } else {
            (figures.records.to_string(), format!("{} ({})", figures.questions, figures.count))
        };
        before = group;
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        rows.push([
            records,
            questions,
            figures.index.to_owned(),
            percent(figures.recall_at_5),
            percent(figures.recall_at_10),
            percent(figures.recall_unasked),
            format!("{:.0}", figures.tokens),
            format!("{:.2}", figures.p50_ms),
            format!("{:.2}", figures.p99_ms),
            figures.verdict().to_owned(),
        ]);
    }
    report::align_columns(&rows, LEFT_ALIGNED)
}

/// Renders the aggregated results, in total and for each seed, as JSON.
pub(crate) fn render_json(answered: &[QuestionResult]) -> serde_json::Result<String> {
    let mut seeds: Vec<u64> = answered.iter().map(|one| one.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let of_seed = |seed: u64| -> Vec<QuestionResult> {
        answered.iter().filter(|one| one.seed == seed).cloned().collect()
    };
    let by_seed: Vec<_> = seeds
        .into_iter()
        .map(|seed| serde_json::json!({"seed": seed, "figures": compute_figures(&of_seed(seed))}))
        .collect();
    serde_json::to_string_pretty(&serde_json::json!({"figures": compute_figures(answered), "seeds": by_seed}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(index: &'static str, kind: QuestionKind, at_5: f64, times_ms: &[f64]) -> QuestionResult {
        let score = Score { recall_at_5: at_5, recall_at_10: 1.0, recall_unasked: 1.0, tokens: 100.0 };
        let times_ms = times_ms.to_vec();
        QuestionResult { seed: 1, records: 100_000, index, kind, is_paraphrase: true, score, times_ms }
    }

    #[test]
    fn the_figures_of_a_kind_are_means_and_times_are_judged_for_memory_alone() {
        let all = [
            answered(MEMORY_INDEX_NAME, QuestionKind::Single, 1.0, &[1.0, 9.0]),
            answered(MEMORY_INDEX_NAME, QuestionKind::Single, 0.0, &[2.0]),
            answered(MEMORY_INDEX_NAME, QuestionKind::Unanswerable, 1.0, &[99.0]),
            answered("plain", QuestionKind::Single, 0.0, &[30.0]),
        ];
        let table = render_table(&all);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = table.lines().map(words).collect();
        assert_eq!(lines[1], "100000 single fact (2) memory 50.0 % 100.0 % 100.0 % 100 2.00 9.00");
        assert!(lines[2].starts_with("plain 0.0 %"), "{table}");
        assert_eq!(table.matches("met").count(), 1, "{table}");
        assert!(
            lines
                .iter()
                .any(|line| line.contains("all with an answer (2)") && line.ends_with("< 10 ms: met"))
        );
        let slow = [answered(MEMORY_INDEX_NAME, QuestionKind::Single, 1.0, &[10.5])];
        assert!(super::render_table(&slow).contains("MISSED"));
        assert!(render_json(&all).unwrap().contains("\"seeds\""));
    }
}
