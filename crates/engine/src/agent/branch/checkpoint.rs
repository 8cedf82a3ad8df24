//! The form in which a checkpoint keeps a branch.

use api::MessageId;
use llm::Message;
use serde::{Deserialize, Serialize};
use store::steps::MemoryWrite;

use super::{Branch, EVICTED, Evicted, MessageOrigin};
use crate::agent::citable_pages::CitablePages;
use crate::agent::compaction_view::Rewrite;

/// The serialized form of a branch in a checkpoint.
#[derive(Serialize, Deserialize)]
struct BranchCheckpoint {
    hidden: Evicted,
    /// The evicted messages that are retained all the same, each with its index.
    held: Vec<(usize, Message)>,
    messages: Vec<Message>,
    places: Vec<MessageOrigin>,
    listed: Vec<MessageId>,
    written: Vec<(usize, MemoryWrite)>,
    #[serde(default)]
    noted: Vec<(usize, MemoryWrite)>,
    tool_texts: Vec<usize>,
    rewrites: Vec<Rewrite>,
    measured: Option<(usize, u64)>,
    citable_pages: CitablePages,
}

impl Branch {
    /// Serializes the branch for a checkpoint.
    pub(in crate::agent) fn to_checkpoint(&self) -> Result<String, serde_json::Error> {
        let (hidden, messages) = self.messages.split_at(self.evicted.count.min(self.messages.len()));
        let retained = hidden.iter().cloned().enumerate().filter(|(_, message)| *message != EVICTED);
        serde_json::to_string(&BranchCheckpoint {
            hidden: self.evicted,
            held: retained.collect(),
            messages: messages.to_vec(),
            places: self.origins.get(self.evicted.count..).unwrap_or_default().to_vec(),
            listed: self.listed.clone(),
            written: self.memory_writes.clone(),
            noted: self.unsent_memory_writes.clone(),
            tool_texts: self.tool_texts.clone(),
            rewrites: self.rewrites.clone(),
            measured: self.measured,
            citable_pages: self.citable_pages.clone(),
        })
    }

    /// Restores a branch from a checkpoint.
    pub(in crate::agent) fn from_checkpoint(checkpoint: &str) -> Result<Self, serde_json::Error> {
        let BranchCheckpoint {
            hidden,
            held,
            messages,
            places,
            listed,
            written,
            noted,
            tool_texts,
            rewrites,
            measured,
            citable_pages,
        } = serde_json::from_str(checkpoint)?;
        let mut all = vec![EVICTED; hidden.count];
        for (at, message) in held {
            all.get_mut(at).into_iter().for_each(|hidden| hidden.clone_from(&message));
        }
        all.extend(messages);
        let places = std::iter::repeat_n(MessageOrigin::Results, hidden.count).chain(places).collect();
        let mut branch = Self {
            messages: all,
            origins: places,
            listed,
            memory_writes: written,
            unsent_memory_writes: noted,
            tool_texts,
            rewrites,
            measured,
            citable_pages,
            evicted: hidden,
            ..Self::default()
        };
        branch.rebuild_view();
        Ok(branch)
    }
}
