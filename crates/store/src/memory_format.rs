//! Formats memory for a model: each record is labelled with its origin and quoted as data.

use api::Timestamp;
use api::memory::{MemoryKind, Source};
use api::tool_names::{
    ASK_USER, LOAD_SKILL, MEMORY_FORGET, MEMORY_SAVE, MEMORY_SEARCH, SCHEDULE_CREATE, SCHEDULE_DELETE,
    WORKING_MEMORY_SET,
};

use crate::SearchHit;

/// The words with which a model is shown that content came from tools or the web. They decide nothing: the source
/// of what is stored is a [`Source`].
pub const TOOL_ORIGIN_NOTE: &str = "came from a tool or the web, unverified";

/// Tools whose whole result comes from the user, the agent, the catalog, memory that names its own origin, or the
/// engine itself (a number, a date, a fixed sentence). A tool whose result can contain text from files, programs or
/// the network does not belong here, not even if only its error messages can. In doubt a tool is not trusted.
const TRUSTED_TOOLS: [&str; 8] = [
    ASK_USER,
    LOAD_SKILL,
    MEMORY_FORGET,
    MEMORY_SAVE,
    MEMORY_SEARCH,
    SCHEDULE_CREATE,
    SCHEDULE_DELETE,
    WORKING_MEMORY_SET,
];

/// Whether a tool's results may contain content that nobody has vouched for.
pub fn is_untrusted_tool(tool: &str) -> bool {
    !TRUSTED_TOOLS.contains(&tool)
}

/// The source of a text that shows these memory records: a tool's if one of them is.
pub fn source_of<'a>(hits: impl IntoIterator<Item = &'a SearchHit>) -> Source {
    let is_tainted = hits.into_iter().any(|hit| hit.source == Some(Source::Tool));
    if is_tainted { Source::Tool } else { Source::Agent }
}

/// Describes the origin of a memory record in words.
pub fn describe_origin(hit: &SearchHit) -> String {
    match (hit.kind, hit.source) {
        (MemoryKind::Knowledge, source) => describe_source(source.unwrap_or(Source::Agent)),
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

/// Describes the origin of a knowledge record in words.
pub fn describe_source(source: Source) -> String {
    match source {
        Source::User => "the user saved".to_owned(),
        Source::Feedback | Source::Learned => "learned from the user".to_owned(),
        Source::Tool => format!("you noted, {TOOL_ORIGIN_NOTE}"),
        Source::Agent => "you noted".to_owned(),
    }
}

/// The date of a memory record, as `YYYY-MM-DD`.
pub fn date(hit: &SearchHit) -> String {
    day(hit.created_at)
}

/// The date of a time, as `YYYY-MM-DD`.
pub fn day(at: Timestamp) -> String {
    at.to_string().chars().take(10).collect()
}

/// Prefixes each line of a text with `> `, so that no part of it can be mistaken for anything but a quotation.
pub fn quote_lines(text: &str) -> String {
    text.lines().flat_map(|line| ["\n> ", line]).collect()
}

#[cfg(test)]
#[path = "../tests/unit/memory_format.rs"]
mod tests;
