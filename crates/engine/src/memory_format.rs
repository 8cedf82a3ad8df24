//! How what is remembered is shown to a model: where it came from, and as data.

use contract::memory::{MemoryKind, Source};

use crate::store::SearchHit;
use crate::tools::{ASK_USER, LOAD_SKILL, MEMORY_SAVE, MEMORY_SEARCH, WORKING_MEMORY_SET};

/// What is said of what came from tools or the web.
pub(crate) const TOOL_ORIGIN_NOTE: &str = "came from a tool or the web, unverified";

/// Tools whose results are the user's words, the agent's, the catalog's, or what is remembered and says itself where it
/// came from.
const TRUSTED_TOOLS: [&str; 5] = [ASK_USER, LOAD_SKILL, MEMORY_SAVE, MEMORY_SEARCH, WORKING_MEMORY_SET];

/// Whether results of a tool bring in what nobody has vouched for.
pub(crate) fn is_untrusted_tool(tool: &str) -> bool {
    !TRUSTED_TOOLS.contains(&tool)
}

/// Where something remembered came from, in words.
pub(crate) fn describe_origin(found: &SearchHit) -> String {
    match (found.kind, found.source) {
        (MemoryKind::Knowledge, Some(Source::User)) => "the user saved".to_owned(),
        (MemoryKind::Knowledge, Some(Source::Feedback | Source::Learned)) => {
            "learned from the user".to_owned()
        }
        (MemoryKind::Knowledge, Some(Source::Tool)) => format!("you noted, {TOOL_ORIGIN_NOTE}"),
        (MemoryKind::Knowledge, _) => "you noted".to_owned(),
        (MemoryKind::Episode, Some(Source::Tool)) => {
            format!("an earlier turn, some of which {TOOL_ORIGIN_NOTE}")
        }
        (MemoryKind::Episode, _) => "an earlier turn".to_owned(),
        (MemoryKind::Message, Some(Source::Tool)) => {
            format!("earlier messages, some of which {TOOL_ORIGIN_NOTE}")
        }
        (MemoryKind::Message, _) => "earlier messages".to_owned(),
    }
}

/// The day that something remembered is of.
pub(crate) fn date(found: &SearchHit) -> String {
    found.created_at.to_string().chars().take(10).collect()
}

/// A text with each line marked, so that none of it can look like anything else.
pub(crate) fn quote_lines(text: &str) -> String {
    text.lines().flat_map(|line| ["\n> ", line]).collect()
}
