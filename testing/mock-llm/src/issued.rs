//! Records the parts of answers that a client must send back unchanged: the thinking blocks of the Anthropic wire,
//! the reasoning items of the Responses wire and the signed parts of the Gemini wire, with their location in their
//! answer and the conversation in which they were issued.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The key of the seals. It is not a secret, but keeps clients from computing a valid seal by accident.
const SEAL_KEY: &[u8] = b"strict-provider sealing key";

/// All answers with sealed blocks, with indexes by seal, by tool call and by item.
#[derive(Debug, Default)]
pub(crate) struct IssuedAnswers {
    answers: Vec<IssuedAnswer>,
    by_seal: HashMap<String, BlockLocation>,
    by_tool_use: HashMap<String, BlockLocation>,
    by_item: HashMap<String, BlockLocation>,
}

/// One answer as it was sent.
#[derive(Debug)]
pub(crate) struct IssuedAnswer {
    pub(crate) model: String,
    pub(crate) prefix: Option<Prefix>,
    pub(crate) blocks: Vec<IssuedBlock>,
}

/// A block as it was sent. The seal is the signature of a thinking block, or the data of a redacted one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum IssuedBlock {
    Thinking { text: String, seal: String },
    Redacted { seal: String },
    Text { is_blank: bool },
    ToolUse { id: String },
    Item(IssuedItem),
    Part(IssuedPart),
}

/// An output item of the Responses wire.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct IssuedItem {
    pub(crate) id: String,
    pub(crate) kind: ItemKind,
    /// Whether the request allowed the vendor to store it.
    pub(crate) is_stored: bool,
}

/// The kind of an output item.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ItemKind {
    /// The seal is the encrypted content, if the request asked for it.
    Reasoning {
        seal: Option<String>,
    },
    Message,
    FunctionCall,
}

/// A signed part of the Gemini wire.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct IssuedPart {
    pub(crate) seal: String,
    /// The function call that it signs. `None` for a text.
    pub(crate) call: Option<Value>,
}

/// The location of a block among the issued answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BlockLocation {
    pub(crate) answer: usize,
    pub(crate) block: usize,
}

/// Fingerprints of the conversation before an answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Prefix {
    pub(crate) system: Fingerprint,
    pub(crate) tools: Fingerprint,
    pub(crate) messages: Fingerprint,
}

/// A hash of a JSON value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fingerprint(Vec<u8>);

impl Fingerprint {
    pub(crate) fn compute(value: &Value) -> Self {
        Self(Sha256::digest(value.to_string()).to_vec())
    }
}

impl IssuedBlock {
    /// The seal, if it has one.
    pub(crate) fn seal(&self) -> Option<&str> {
        match self {
            Self::Thinking { seal, .. } | Self::Redacted { seal } => Some(seal),
            Self::Item(item) => item.seal(),
            Self::Part(part) => Some(&part.seal),
            Self::Text { .. } | Self::ToolUse { .. } => None,
        }
    }
}

impl IssuedItem {
    /// The encrypted content, if it has one.
    pub(crate) fn seal(&self) -> Option<&str> {
        match &self.kind {
            ItemKind::Reasoning { seal } => seal.as_deref(),
            ItemKind::Message | ItemKind::FunctionCall => None,
        }
    }

    pub(crate) fn is_reasoning(&self) -> bool {
        matches!(self.kind, ItemKind::Reasoning { .. })
    }
}

impl IssuedAnswers {
    /// Records an answer.
    pub(crate) fn record(&mut self, issued: IssuedAnswer) {
        let answer = self.answers.len();
        for (block, issued_block) in issued.blocks.iter().enumerate() {
            let location = BlockLocation { answer, block };
            if let Some(seal) = issued_block.seal() {
                self.by_seal.insert(seal.to_owned(), location);
            }
            match issued_block {
                IssuedBlock::ToolUse { id } => {
                    self.by_tool_use.insert(id.clone(), location);
                }
                IssuedBlock::Item(item) => {
                    self.by_item.insert(item.id.clone(), location);
                }
                _ => {}
            }
        }
        self.answers.push(issued);
    }

    /// Finds the location of a sealed block.
    pub(crate) fn find_sealed(&self, seal: &str) -> Option<BlockLocation> {
        self.by_seal.get(seal).copied()
    }

    /// Finds the location of a tool call.
    pub(crate) fn find_tool_use(&self, id: &str) -> Option<BlockLocation> {
        self.by_tool_use.get(id).copied()
    }

    /// Finds the location of an item.
    pub(crate) fn find_item(&self, id: &str) -> Option<BlockLocation> {
        self.by_item.get(id).copied()
    }

    /// The answer at a location.
    pub(crate) fn answer(&self, location: BlockLocation) -> Option<&IssuedAnswer> {
        self.answers.get(location.answer)
    }

    /// The block at a location.
    pub(crate) fn block(&self, location: BlockLocation) -> Option<&IssuedBlock> {
        self.answer(location)?.blocks.get(location.block)
    }
}

/// Computes the seal of a block. It is deterministic, and different for every block and text.
pub(crate) fn seal(number: u64, block: usize, text: &str) -> String {
    let position = format!("\n{number}\n{block}\n");
    let digest = |round: &[u8]| {
        Sha256::new()
            .chain_update(SEAL_KEY)
            .chain_update(round)
            .chain_update(position.as_bytes())
            .chain_update(text.as_bytes())
            .finalize()
    };
    // Two digests, because clients that truncate signatures would pass with a short one.
    let mut bytes = digest(b"1").to_vec();
    bytes.extend_from_slice(&digest(b"2"));
    STANDARD.encode(bytes)
}
