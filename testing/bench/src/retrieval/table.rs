//! Renders the results of the retrieval benchmark as tables and as JSON.

use serde::Serialize;

use super::resources::Resources;
use super::score::{Found, Score};
use crate::report;
use crate::stats::percentile;

/// The result of one question with one search.
#[derive(Clone, Debug)]
pub(crate) struct QuestionResult {
    pub(crate) seed: u64,
    /// The size that the conversation was asked to have, or has.
    pub(crate) messages: usize,
    pub(crate) search: &'static str,
    pub(crate) kind: String,
    pub(crate) has_answer: bool,
    pub(crate) score: Score,
    /// The duration of each search in milliseconds.
    pub(crate) times_ms: Vec<f64>,
}

/// The budget for the 99th percentile of memory search: the messages, and the limit in milliseconds.
const P99_BUDGET: (usize, f64) = (100_000, 10.0);
/// The budgets of a brain: the anonymous memory that one search takes, and the writer's time to take a turn in.
const SEARCH_BUDGET_KIB: i64 = 2_048;
const TURN_BUDGET_MS: f64 = 0.3;
/// How much more of the answers memory is to find than windows, in the same room.
const MIN_LEAD: f64 = 0.03;
/// The name of the engine's search.
pub(crate) const MEMORY: &str = "memory";
/// The name of the group of all questions that have an answer.
const ALL_ANSWERS: &str = "all with an answer";
const BYTES_PER_MB: f64 = 1e6;

/// The means of a group of questions, a search and a size.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    messages: usize,
    questions: String,
    count: usize,
    search: &'static str,
    /// For the first 5 and 10 results: how often some of the evidence is there, and how often all of it.
    any: [f64; 2],
    all: [f64; 2],
    /// The same in the room of 5 and 10 windows.
    any_in_room: Option<[f64; 2]>,
    all_in_room: Option<[f64; 2]>,
    tokens: [f64; 2],
    /// How often something among the first 5 and 10 results is relevant enough for a turn, how often a turn
    /// is told something, and how often that has evidence.
    relevant: [f64; 2],
    told: f64,
    told_evidence: f64,
    p50_ms: f64,
    p99_ms: f64,
}

impl Figures {
    /// Aggregates results; `None` if there are none.
    fn compute(questions: &str, search: &'static str, results: &[&QuestionResult]) -> Option<Self> {
        let first = results.first()?;
        let times: Vec<f64> = results.iter().flat_map(|one| one.times_ms.iter().copied()).collect();
        let share = |is: &dyn Fn(&Score) -> bool| mean(results, &|score| f64::from(is(score)));
        let both = |is: &dyn Fn(&Score, usize) -> Option<bool>| {
            [0, 1].map(|at| share(&|score| is(score, at).unwrap_or_default()))
        };
        let in_room = |is: fn(&Found) -> bool| {
            first.score.equal?;
            Some(both(&|score, at| score.equal?.get(at).map(is)))
        };
        Some(Self {
            messages: first.messages,
            questions: questions.to_owned(),
            count: results.len(),
            search,
            any: both(&|score, at| score.first.get(at).map(|found| found.any)),
            all: both(&|score, at| score.first.get(at).map(|found| found.all)),
            any_in_room: in_room(|found| found.any),
            all_in_room: in_room(|found| found.all),
            tokens: [0, 1]
                .map(|at| mean(results, &|score| score.tokens.get(at).copied().unwrap_or_default())),
            relevant: both(&|score, at| score.is_relevant.get(at).copied()),
            told: share(&|score| score.is_told),
            told_evidence: share(&|score| score.told.any),
            p50_ms: percentile(&times, 50)?,
            p99_ms: percentile(&times, 99)?,
        })
    }

    /// What the figures say about the budgets, which are those of memory over all questions.
    fn verdict(&self, windows: Option<&Self>) -> String {
        if self.search != MEMORY || self.questions != ALL_ANSWERS {
            return String::new();
        }
        let mut verdicts = Vec::new();
        let lead = |of: &Self| {
            let (ours, theirs) = (self.any_in_room?, of.any_in_room?);
            Some(ours.into_iter().zip(theirs).all(|(ours, theirs)| ours - theirs >= MIN_LEAD))
        };
        if let Some(is_met) = windows.and_then(lead) {
            verdicts.push(format!("windows + 3: {}", verdict(is_met)));
        }
        let (messages, limit_ms) = P99_BUDGET;
        if self.messages == messages {
            verdicts.push(format!("p99 < {limit_ms} ms: {}", verdict(self.p99_ms < limit_ms)));
        }
        verdicts.join(", ")
    }
}

const fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}

#[expect(clippy::cast_precision_loss, reason = "there are some hundred questions")]
fn mean(results: &[&QuestionResult], value: &dyn Fn(&Score) -> f64) -> f64 {
    results.iter().map(|one| value(&one.score)).sum::<f64>() / results.len() as f64
}

/// The values of a field, each once, in the order in which they come up.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// The figures of each size, kind of question and search, and of all questions with an answer.
fn compute_figures(results: &[QuestionResult]) -> Vec<Figures> {
    let searches = distinct(results.iter().map(|one| one.search));
    let kinds = distinct(results.iter().map(|one| one.kind.as_str()));
    let mut figures = Vec::new();
    for messages in distinct(results.iter().map(|one| one.messages)) {
        for kind in kinds.iter().copied().chain([ALL_ANSWERS]) {
            for search in &searches {
                let is_of_kind =
                    |one: &QuestionResult| one.kind == kind || kind == ALL_ANSWERS && one.has_answer;
                let of = |one: &&QuestionResult| {
                    one.messages == messages && one.search == *search && is_of_kind(one)
                };
                let of: Vec<&QuestionResult> = results.iter().filter(of).collect();
                figures.extend(Figures::compute(kind, search, &of));
            }
        }
    }
    figures
}

fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

/// Renders what is found, what a turn is told unasked, and what it costs.
pub(crate) fn render_tables(results: &[QuestionResult], resources: &[Resources]) -> String {
    let figures = compute_figures(results);
    [render_found(&figures), render_told(&figures), render_costs(results, resources)].join("\n")
}

fn render_found(figures: &[Figures]) -> String {
    let mut rows = vec![
        [
            "messages",
            "questions",
            "search",
            "any@5",
            "any@10",
            "all@5",
            "all@10",
            "in room: any@5",
            "any@10",
            "all@5",
            "all@10",
            "tokens@5",
            "tokens@10",
            "p50 ms",
            "p99 ms",
            "",
        ]
        .map(str::to_owned),
    ];
    let of_answers = |one: &&Figures| {
        // What has no answer is not found.
        one.any[1] > 0.0 || figures.iter().any(|other| other.questions == one.questions && other.any[1] > 0.0)
    };
    for one in figures.iter().filter(of_answers) {
        let windows = figures.iter().find(|other| {
            (other.messages, &other.questions) == (one.messages, &one.questions) && other.search != MEMORY
        });
        let room = |shares: Option<[f64; 2]>| shares.map_or(["-".into(), "-".into()], |two| two.map(percent));
        let ([any_5, any_10], [all_5, all_10]) = (one.any.map(percent), one.all.map(percent));
        let ([room_any_5, room_any_10], [room_all_5, room_all_10]) =
            (room(one.any_in_room), room(one.all_in_room));
        let [tokens_5, tokens_10] = one.tokens.map(|tokens| format!("{tokens:.0}"));
        rows.push([
            one.messages.to_string(),
            format!("{} ({})", one.questions, one.count),
            one.search.to_owned(),
            any_5,
            any_10,
            all_5,
            all_10,
            room_any_5,
            room_any_10,
            room_all_5,
            room_all_10,
            tokens_5,
            tokens_10,
            format!("{:.2}", one.p50_ms),
            format!("{:.2}", one.p99_ms),
            one.verdict(windows),
        ]);
    }
    let mut left = [false; 16];
    left[1] = true;
    left[2] = true;
    left[15] = true;
    report::align_columns(&rows, left)
}

fn render_told(figures: &[Figures]) -> String {
    let mut rows = vec![
        ["messages", "questions", "relevant@5", "relevant@10", "told", "told evidence"].map(str::to_owned),
    ];
    for one in figures.iter().filter(|one| one.search == MEMORY) {
        let [relevant_5, relevant_10] = one.relevant.map(percent);
        rows.push([
            one.messages.to_string(),
            format!("{} ({})", one.questions, one.count),
            relevant_5,
            relevant_10,
            percent(one.told),
            percent(one.told_evidence),
        ]);
    }
    report::align_columns(&rows, [false, true, false, false, false, false])
}

#[expect(clippy::cast_precision_loss, reason = "an index is far smaller than that")]
fn render_costs(results: &[QuestionResult], resources: &[Resources]) -> String {
    let headers = [
        "messages",
        "seed",
        "index MB",
        "older MB",
        "bytes/message",
        "search KiB",
        "all KiB",
        "p50 ms",
        "p99 ms",
        "turn ms",
        "",
    ];
    let mut rows = vec![headers.map(str::to_owned)];
    let megabytes = |bytes: u64| format!("{:.2}", bytes as f64 / BYTES_PER_MB);
    for (one, times) in resources.iter().map(|one| (one, search_times(one, results))) {
        let time = |share| percentile(&times, share).map_or("-".into(), |ms| format!("{ms:.2}"));
        rows.push([
            one.messages.to_string(),
            one.seed.to_string(),
            megabytes(one.index_bytes),
            one.older_index_bytes.map_or("-".into(), megabytes),
            format!("{:.1}", one.index_bytes as f64 / one.messages.max(1) as f64),
            one.one_search.anonymous_kib.to_string(),
            one.all_searches.anonymous_kib.to_string(),
            time(50),
            time(99),
            format!("{:.3}", one.turn_ms),
            cost_verdict(one),
        ]);
    }
    let mut left = [false; 11];
    left[10] = true;
    report::align_columns(&rows, left)
}

/// What the costs say about the budgets of a brain.
fn cost_verdict(of: &Resources) -> String {
    let mut budgets = vec![
        ("search ≤ 2 MiB", of.one_search.anonymous_kib <= SEARCH_BUDGET_KIB),
        ("turn ≤ 0.3 ms", of.turn_ms <= TURN_BUDGET_MS),
    ];
    budgets.extend(of.older_index_bytes.map(|older| ("index ≤ older", of.index_bytes <= older)));
    let verdicts = budgets.into_iter().map(|(budget, is_met)| format!("{budget}: {}", verdict(is_met)));
    verdicts.collect::<Vec<_>>().join(", ")
}

/// The times of memory's searches of one brain.
fn search_times(of: &Resources, results: &[QuestionResult]) -> Vec<f64> {
    let is_of = |one: &&QuestionResult| {
        one.search == MEMORY && one.seed == of.seed && one.messages == of.requested_messages
    };
    results.iter().filter(is_of).flat_map(|one| one.times_ms.iter().copied()).collect()
}

/// Renders the figures, in total and for each seed, and the costs, as JSON.
pub(crate) fn render_json(results: &[QuestionResult], resources: &[Resources]) -> serde_json::Result<String> {
    let of_seed = |seed: &u64| -> Vec<QuestionResult> {
        results.iter().filter(|one| one.seed == *seed).cloned().collect()
    };
    let seeds = distinct(results.iter().map(|one| one.seed));
    let by_seed: Vec<_> = seeds
        .iter()
        .map(|seed| serde_json::json!({"seed": seed, "figures": compute_figures(&of_seed(seed))}))
        .collect();
    serde_json::to_string_pretty(&serde_json::json!({
        "figures": compute_figures(results), "seeds": by_seed, "costs": resources,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::resources::Growth;
    use super::*;

    fn result(search: &'static str, kind: &str, is_found: bool, times_ms: &[f64]) -> QuestionResult {
        let found = Found { any: is_found, all: false };
        let score = Score {
            first: [found; 2],
            equal: Some([found; 2]),
            tokens: [50.0, 100.0],
            is_relevant: [false, true],
            is_told: true,
            told: found,
        };
        QuestionResult {
            seed: 1,
            messages: 100_000,
            search,
            kind: kind.into(),
            has_answer: kind != "none",
            score,
            times_ms: times_ms.to_vec(),
        }
    }

    #[test]
    fn figures_are_means_and_budgets_are_those_of_memory() {
        let results = [
            result(MEMORY, "single", true, &[1.0, 9.0]),
            result(MEMORY, "single", false, &[2.0]),
            result(MEMORY, "none", false, &[99.0]),
            result("windows", "single", false, &[30.0]),
        ];
        let costs = Resources {
            seed: 1,
            messages: 100_010,
            requested_messages: 100_000,
            index_bytes: 4_000_400,
            older_index_bytes: None,
            one_search: Growth { total_kib: 1_600, anonymous_kib: 900 },
            all_searches: Growth { total_kib: 2_600, anonymous_kib: 1_500 },
            turn_ms: 0.25,
        };
        let text = render_tables(&results, std::slice::from_ref(&costs));
        let over_budget = Resources {
            index_bytes: 4_000_400,
            older_index_bytes: Some(4_000_000),
            one_search: Growth { total_kib: 3_000, anonymous_kib: 2_049 },
            turn_ms: 0.31,
            ..costs
        };
        let missed = "search ≤ 2 MiB: MISSED, turn ≤ 0.3 ms: MISSED, index ≤ older: MISSED";
        assert_eq!(cost_verdict(&over_budget), missed);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        let figures = "50.0 50.0 0.0 0.0 50.0 50.0 0.0 0.0 50 100 2.00 9.00";
        assert_eq!(lines[1], format!("100000 single (2) memory {figures}"));
        assert!(lines[3].ends_with("2.00 9.00 windows + 3: met, p99 < 10 ms: met"), "{text}");
        assert!(lines.contains(&"100000 none (1) 0.0 100.0 100.0 0.0".into()), "{text}");
        let costs = "100010 1 4.00 - 40.0 900 1500 2.00 99.00 0.250 search ≤ 2 MiB: met, turn ≤ 0.3 ms: met";
        assert!(lines.contains(&costs.into()), "{text}");
        let slow = [result(MEMORY, "single", true, &[10.5]), result("windows", "single", true, &[1.0])];
        assert_eq!(render_tables(&slow, &[]).matches("MISSED").count(), 2);
        assert!(render_json(&results, &[]).unwrap().contains("\"seeds\""));
    }
}
