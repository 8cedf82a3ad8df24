//! The provenance of the texts that the engine adds to a conversation: its notes, its plans and the results of its
//! tools. It is stored in the step that contains the text, so how a text is worded for a model decides nothing.

use api::memory::Source;

use crate::steps::{Opened, Step, StoredSource};

/// The words that marked content from a tool before its source was stored. Journals contain them, so they never
/// change; what a model is shown is [`crate::memory_format::TOOL_ORIGIN_NOTE`].
const MARK_WITHOUT_SOURCE: &str = "came from a tool or the web, unverified";

impl StoredSource {
    /// The source of `texts`. Without a stored one, a mark in them shows that a tool's content is among them.
    fn of_texts<'a>(self, texts: impl IntoIterator<Item = &'a String>) -> Source {
        let detect = || {
            let is_marked = texts.into_iter().any(|text| text.contains(MARK_WITHOUT_SOURCE));
            if is_marked { Source::Tool } else { Source::Agent }
        };
        self.0.unwrap_or_else(detect)
    }
}

impl Step {
    /// The source of the text that the engine adds to the conversation by this step. What the user and the model
    /// say themselves does not count.
    pub fn source(&self) -> Source {
        match self {
            Self::Opened(opened) => opened.source_of_notes(),
            Self::Recalled { note, source } => source.of_texts(note),
            Self::Planned { plan, source, .. } => source.of_texts(plan),
            Self::Hooked { notes, source, .. } => source.of_texts(notes),
            Self::Resulted { outcome, source, .. } | Self::Returned { outcome, source, .. } => {
                source.of_texts([&outcome.output].into_iter().chain(&outcome.error))
            }
            Self::Delegated { did, .. } => did.source(),
            _ => Source::Agent,
        }
    }
}

impl Opened {
    /// The source of the notes.
    pub fn source_of_notes(&self) -> Source {
        self.notes_source.of_texts(&self.notes)
    }
}

#[cfg(test)]
#[path = "../tests/unit/provenance.rs"]
mod tests;
