//! What the provider has issued that a client must bring back unchanged: the thinking blocks of the
//! Anthropic wire, the reasoning items of the Responses wire and the signed parts of the Gemini wire, their
//! place in their answer, and the conversation they were made in.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Not a secret: it only has to be something that a client does not compute by accident.
const SEAL_KEY: &[u8] = b"strict-provider sealing key";

/// All answers with thinking, and where each sealed block, each tool call and each item is among them.
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

/// A block as it was sent. The seal is a thinking block's signature or a redacted one's data.
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
    /// Whether the request let the vendor keep it.
    pub(crate) is_stored: bool,
}

/// The kind of an output item.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ItemKind {
    /// With the encrypted content, when it was asked for.
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
    /// The call it was issued for, none for a text.
    pub(crate) call: Option<Value>,
}

/// The location of a block among the issued answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BlockLocation {
    pub(crate) answer: usize,
    pub(crate) block: usize,
}

/// Fingerprints of what stood before an answer.
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
    /// The seal, when it has one.
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
    /// The encrypted content, when it has one.
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
    /// Notes an answer.
    pub(crate) fn record(&mut self, issued: IssuedAnswer) {
        let answer = self.answers.len();
        for (block, issued_block) in issued.blocks.iter().enumerate() {
            let place = BlockLocation { answer, block };
            if let Some(seal) = issued_block.seal() {
                self.by_seal.insert(seal.to_owned(), place);
            }
            match issued_block {
                IssuedBlock::ToolUse { id } => {
                    self.by_tool_use.insert(id.clone(), place);
                }
                IssuedBlock::Item(item) => {
                    self.by_item.insert(item.id.clone(), place);
                }
                _ => {}
            }
        }
        self.answers.push(issued);
    }

    /// Where a sealed block was issued.
    pub(crate) fn find_sealed(&self, seal: &str) -> Option<BlockLocation> {
        self.by_seal.get(seal).copied()
    }

    /// Where a tool call was issued.
    pub(crate) fn find_tool_use(&self, id: &str) -> Option<BlockLocation> {
        self.by_tool_use.get(id).copied()
    }

    /// Where an item was issued.
    pub(crate) fn find_item(&self, id: &str) -> Option<BlockLocation> {
        self.by_item.get(id).copied()
    }

    /// The answer at a place.
    pub(crate) fn answer(&self, place: BlockLocation) -> Option<&IssuedAnswer> {
        self.answers.get(place.answer)
    }

    /// The block at a place.
    pub(crate) fn block(&self, place: BlockLocation) -> Option<&IssuedBlock> {
        self.answer(place)?.blocks.get(place.block)
    }
}

/// The seal of a block: the same in every run, different for every block and text.
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
    // Two digests, because a short signature would not show a client that truncates.
    let mut bytes = digest(b"1").to_vec();
    bytes.extend_from_slice(&digest(b"2"));
    STANDARD.encode(bytes)
}
