//! The figures of a retrieval benchmark: as a table for people and as JSON.

use serde::Serialize;

use super::plan::Kind;
use super::score::Score;
use crate::report;
use crate::stats::percentile;

/// What came of asking one index one question.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) seed: u64,
    /// How many records the life was to have.
    pub(crate) records: usize,
    pub(crate) index: &'static str,
    pub(crate) kind: Kind,
    pub(crate) is_paraphrase: bool,
    pub(crate) score: Score,
    /// How long each search took.
    pub(crate) times_ms: Vec<f64>,
}

/// What the slowest hundredth of memory's searches in a life of so many records must keep to.
const BUDGET: (usize, f64) = (100_000, 10.0);
/// The name of what the budget is for.
pub(crate) const MEMORY: &str = "memory";

/// Questions that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Of(Kind),
    /// Those that share no content word with their evidence.
    Paraphrases,
    /// Those that share some.
    Alike,
    All,
}

impl Group {
    const EACH: [Self; 9] = [
        Self::Of(Kind::Single),
        Self::Of(Kind::Joined),
        Self::Of(Kind::Superseded),
        Self::Of(Kind::Date),
        Self::Of(Kind::Preference),
        Self::Of(Kind::Unanswerable),
        Self::Paraphrases,
        Self::Alike,
        Self::All,
    ];

    fn has(self, answered: &Answered) -> bool {
        let is_answerable = answered.kind != Kind::Unanswerable;
        match self {
            Self::Of(kind) => answered.kind == kind,
            Self::Paraphrases => is_answerable && answered.is_paraphrase,
            Self::Alike => is_answerable && !answered.is_paraphrase,
            Self::All => is_answerable,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Of(Kind::Single) => "single fact",
            Self::Of(Kind::Joined) => "two facts joined",
            Self::Of(Kind::Superseded) => "superseded fact",
            Self::Of(Kind::Date) => "date",
            Self::Of(Kind::Preference) => "preference",
            Self::Of(Kind::Unanswerable) => "unanswerable",
            Self::Paraphrases => "paraphrased",
            Self::Alike => "in the same words",
            Self::All => "all with an answer",
        }
    }
}

/// The figures of a group, an index and a size.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    records: usize,
    questions: &'static str,
    count: usize,
    index: &'static str,
    recall_at_5: f64,
    recall_at_10: f64,
    tokens: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Figures {
    /// None where there is nothing of it.
    fn of(answered: &[Answered], records: usize, group: Group, index: &'static str) -> Option<Self> {
        let of = |one: &&Answered| one.records == records && one.index == index && group.has(one);
        let answered: Vec<&Answered> = answered.iter().filter(of).collect();
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
            recall_at_5: mean(|score| score.at_5),
            recall_at_10: mean(|score| score.at_10),
            tokens: mean(|score| score.tokens),
            p50_ms: percentile(&times, 50)?,
            p99_ms: percentile(&times, 99)?,
        })
    }

    fn verdict(&self) -> &'static str {
        let (records, most_ms) = BUDGET;
        let is_judged =
            self.records == records && self.index == MEMORY && self.questions == Group::All.name();
        match (is_judged, self.p99_ms < most_ms) {
            (false, _) => "",
            (true, true) => "p99 < 10 ms: met",
            (true, false) => "p99 < 10 ms: MISSED",
        }
    }
}

fn figures(answered: &[Answered]) -> Vec<Figures> {
    let mut sizes: Vec<usize> = answered.iter().map(|one| one.records).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut indexes: Vec<&'static str> = Vec::new();
    for one in answered {
        if !indexes.contains(&one.index) {
            indexes.push(one.index);
        }
    }
    let groups = |records| Group::EACH.into_iter().map(move |group| (records, group));
    let rows = sizes.into_iter().flat_map(groups);
    let each = |(records, group)| {
        indexes
            .iter()
            .filter_map(move |index| Figures::of(answered, records, group, index))
            .collect::<Vec<_>>()
    };
    rows.flat_map(each).collect()
}

const HEAD: [&str; 9] =
    ["records", "questions", "index", "recall@5", "recall@10", "tokens", "p50 ms", "p99 ms", ""];
const LEFT: [bool; 9] = [false, true, true, false, false, false, false, false, true];

/// A line for each size, group of questions and index.
pub(crate) fn table(answered: &[Answered]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    let mut before = ("", 0);
    for figures in figures(answered) {
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
            format!("{:.0}", figures.tokens),
            format!("{:.2}", figures.p50_ms),
            format!("{:.2}", figures.p99_ms),
            figures.verdict().to_owned(),
        ]);
    }
    report::aligned(&rows, LEFT)
}

/// The same, and once more for each seed.
pub(crate) fn json(answered: &[Answered]) -> serde_json::Result<String> {
    let mut seeds: Vec<u64> = answered.iter().map(|one| one.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let of_seed =
        |seed: u64| -> Vec<Answered> { answered.iter().filter(|one| one.seed == seed).cloned().collect() };
    let by_seed: Vec<_> = seeds
        .into_iter()
        .map(|seed| serde_json::json!({"seed": seed, "figures": figures(&of_seed(seed))}))
        .collect();
    serde_json::to_string_pretty(&serde_json::json!({"figures": figures(answered), "seeds": by_seed}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(index: &'static str, kind: Kind, at_5: f64, times_ms: &[f64]) -> Answered {
        let score = Score { at_5, at_10: 1.0, tokens: 100.0 };
        let times_ms = times_ms.to_vec();
        Answered { seed: 1, records: 100_000, index, kind, is_paraphrase: true, score, times_ms }
    }

    #[test]
    fn the_figures_of_a_kind_are_means_and_times_are_judged_for_memory_alone() {
        let all = [
            answered(MEMORY, Kind::Single, 1.0, &[1.0, 9.0]),
            answered(MEMORY, Kind::Single, 0.0, &[2.0]),
            answered(MEMORY, Kind::Unanswerable, 1.0, &[99.0]),
            answered("plain", Kind::Single, 0.0, &[30.0]),
        ];
        let table = table(&all);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = table.lines().map(words).collect();
        assert_eq!(lines[1], "100000 single fact (2) memory 50.0 % 100.0 % 100 2.00 9.00");
        assert!(lines[2].starts_with("plain 0.0 %"), "{table}");
        assert_eq!(table.matches("met").count(), 1, "{table}");
        assert!(
            lines
                .iter()
                .any(|line| line.contains("all with an answer (2)") && line.ends_with("< 10 ms: met"))
        );
        let slow = [answered(MEMORY, Kind::Single, 1.0, &[10.5])];
        assert!(super::table(&slow).contains("MISSED"));
        assert!(json(&all).unwrap().contains("\"seeds\""));
    }
}
