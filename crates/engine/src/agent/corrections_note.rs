//! The user's corrections of answers, and the lessons drawn from them, as a note in a turn. A turn receives
//! those that its conversation does not contain yet, without the model asking for them, as the user's own
//! words.

use std::time::{Duration, Instant};

use store::memory_format::{date, quote_lines};
use store::{Brain, Corrections, MemoryQuery, SearchHit, SearchScope};

/// The size limit of the note, in tokens and as a percentage of the model's context window.
pub(super) const SIZE_LIMIT: (u64, u64) = (3_000, 5);
/// The most corrections and the most lessons in one turn's note.
const MAX_CORRECTIONS: usize = 8;
const MAX_LESSONS: usize = 12;
/// How many a conversation contains before it receives only those that are relevant to its messages.
const MAX_SHOWN_UNFILTERED: usize = 32;
/// Remaining room below this size, in bytes, is not used.
const MIN_ITEM_BYTES: usize = 120;
/// The number of results of the relevance search.
const SEARCH_LIMIT: usize = 40;

/// The heading of the note.
const HEADING: &str = "[What the user taught you: corrections of earlier answers, and lessons drawn from them. They hold \
                       from now on wherever they apply, in this answer too. What the user says later counts more.";

/// Selects what a turn with `message` receives of what was found, in at most `budget` bytes. The search for what is
/// relevant ends after `search_timeout`. Blocks.
pub(super) fn choose(
    brain: &Brain,
    found: Corrections,
    message: &str,
    budget: usize,
    search_timeout: Duration,
) -> Vec<SearchHit> {
    if fits(&found, budget) {
        let Corrections { corrections, lessons, .. } = found;
        return fit_to_budget(corrections.into_iter().chain(lessons).collect(), budget);
    }
    let relevant_ids = relevant_ids(brain, message.to_owned(), search_timeout);
    fit_to_budget(select(found, &relevant_ids), budget)
}

/// The note for the model; `None` if there is nothing to say.
pub(super) fn note(hits: &[SearchHit]) -> Option<String> {
    let items: String = hits.iter().map(render_item).collect();
    (!hits.is_empty()).then(|| format!("{HEADING}{items}]"))
}

/// Renders one correction or lesson for the model.
fn render_item(hit: &SearchHit) -> String {
    format!("\n{}:{}", date(hit), quote_lines(&hit.excerpt))
}

/// Returns whether all of them fit into one note.
fn fits(found: &Corrections, budget: usize) -> bool {
    let Corrections { corrections, lessons, already_shown } = found;
    let bytes: usize = corrections.iter().chain(lessons).map(rendered_bytes).sum();
    let count = corrections.len() + lessons.len();
    let few = corrections.len() <= MAX_CORRECTIONS && lessons.len() <= MAX_LESSONS;
    few && (count == 0 || already_shown + count <= MAX_SHOWN_UNFILTERED) && HEADING.len() + bytes <= budget
}

/// The ids of the records that are relevant to a message, the best first. Blocks.
fn relevant_ids(brain: &Brain, text: String, search_timeout: Duration) -> Vec<String> {
    let query = MemoryQuery {
        text,
        scope: SearchScope::Knowledge,
        offset: 0,
        limit: SEARCH_LIMIT,
        conversation: None,
        deadline: Instant::now() + search_timeout,
    };
    let found = brain.search(&query).unwrap_or_default();
    found.into_iter().filter(|found| found.is_relevant).map(|found| found.id).collect()
}

/// Selects what to include if not all fit: the newest correction, then the relevant ones, then the newest; a
/// conversation that already contains enough does not receive these last.
fn select(found: Corrections, relevant_ids: &[String]) -> Vec<SearchHit> {
    let Corrections { corrections, lessons, already_shown } = found;
    let rank = |hit: &SearchHit| relevant_ids.iter().position(|id| *id == hit.id).unwrap_or(usize::MAX);
    let choose = |mut all: Vec<SearchHit>, first: usize, limit: usize| {
        if let Some(rest) = all.get_mut(first..) {
            rest.sort_by_key(rank);
        }
        let mut all: Vec<SearchHit> = all
            .into_iter()
            .enumerate()
            .filter(|(at, hit)| {
                *at < first || already_shown < MAX_SHOWN_UNFILTERED || rank(hit) != usize::MAX
            })
            .map(|(_, hit)| hit)
            .collect();
        all.truncate(limit);
        all
    };
    let mut chosen = choose(corrections, 1, MAX_CORRECTIONS);
    chosen.extend(choose(lessons, 0, MAX_LESSONS));
    chosen
}

/// Takes as many as fit, cutting the last one.
fn fit_to_budget(chosen: Vec<SearchHit>, budget: usize) -> Vec<SearchHit> {
    let mut bytes_left = budget.saturating_sub(HEADING.len());
    let mut fitted = Vec::new();
    for mut hit in chosen {
        // The newest one is always included.
        if bytes_left < MIN_ITEM_BYTES && !fitted.is_empty() {
            break;
        }
        let max_bytes = bytes_left.max(MIN_ITEM_BYTES);
        if rendered_bytes(&hit) > max_bytes {
            hit.excerpt.truncate(hit.excerpt.floor_char_boundary(max_bytes.saturating_sub(20)));
            hit.excerpt.push('…');
        }
        bytes_left = bytes_left.saturating_sub(rendered_bytes(&hit));
        fitted.push(hit);
    }
    fitted
}

/// The size of a rendered item, in bytes.
fn rendered_bytes(hit: &SearchHit) -> usize {
    // The date, and a mark before each line.
    12 + hit.excerpt.len() + 3 * hit.excerpt.lines().count()
}

#[cfg(test)]
#[path = "../../tests/unit/agent/corrections_note.rs"]
mod tests;
