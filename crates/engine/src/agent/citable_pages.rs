//! The pages that the tools of a task have shown to the agent, each with its number. Pure.
//!
//! Numbers are those of the task, not of the turn: an answer may name what an earlier turn has found, whose result is
//! still in the conversation, or a summary of it. A page keeps its number, and no number is used twice, even if the
//! message that brought it is edited away. All of that follows from the journal.

use api::CallId;
use api::citations::NumberedPage;
use llm::ToolOutcome;
use serde::{Deserialize, Serialize};
use tools::CitablePage;

/// The most numbered pages of a task. Pages beyond are shown without a number.
const MAX_PAGES: usize = 500;

/// The pages of a task that may be cited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CitablePages {
    known: Vec<KnownPage>,
    /// The numbers in the results of calls that the agent has not been shown yet.
    #[serde(skip)]
    announced: Vec<(CallId, Vec<u32>)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct KnownPage {
    #[serde(flatten)]
    page: NumberedPage,
    /// Whether the agent has been shown it. Hooks may withhold a result.
    is_shown: bool,
}

impl CitablePages {
    /// Numbers the pages of a result: those that are known as before, the others from the next number on. Returns the
    /// number of each, and the pages that have one.
    pub(super) fn number(&self, found: &[CitablePage]) -> (Vec<Option<u32>>, Vec<NumberedPage>) {
        let mut next = self.known.iter().map(|known| known.page.n).max().unwrap_or(0) + 1;
        let mut free = MAX_PAGES.saturating_sub(self.known.len());
        let mut pages: Vec<NumberedPage> = Vec::new();
        let numbers = found.iter().map(|found| {
            if let Some(page) = pages.iter().find(|page| page.url == found.url) {
                return Some(page.n);
            }
            let known = self.known.iter().find(|known| known.page.url == found.url);
            let page = match known {
                Some(known) => known.page.clone(),
                None if free == 0 => return None,
                None => {
                    let title = (!found.title.is_empty()).then(|| found.title.clone());
                    let new = NumberedPage { n: next, url: found.url.clone(), title };
                    (next, free) = (next + 1, free - 1);
                    new
                }
            };
            let n = page.n;
            pages.push(page);
            Some(n)
        });
        (numbers.collect(), pages)
    }

    /// Records the pages of a call's result, which the agent has not been shown yet.
    pub(super) fn announce(&mut self, call_id: CallId, pages: &[NumberedPage]) {
        for page in pages {
            if !self.known.iter().any(|known| known.page.n == page.n) {
                self.known.push(KnownPage { page: page.clone(), is_shown: false });
            }
        }
        self.announced.push((call_id, pages.iter().map(|page| page.n).collect()));
    }

    /// Records which of them the result shows: a hook may have withheld or replaced it.
    pub(super) fn settle(&mut self, call_id: CallId, outcome: &ToolOutcome) {
        let Some(at) = self.announced.iter().position(|(announced, _)| *announced == call_id) else { return };
        let (_, numbers) = self.announced.remove(at);
        let shows = |n: u32| outcome.error.is_none() && outcome.output.contains(&format!("[{n}]"));
        for known in &mut self.known {
            known.is_shown |= numbers.contains(&known.page.n) && shows(known.page.n);
        }
    }

    /// The page with this number, if the agent has been shown it.
    pub(super) fn get(&self, n: u32) -> Option<&NumberedPage> {
        self.known.iter().find(|known| known.is_shown && known.page.n == n).map(|known| &known.page)
    }
}

#[cfg(test)]
#[path = "../../tests/unit/agent/citable_pages.rs"]
mod tests;
