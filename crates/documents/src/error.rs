//! Why a document could not be read.

use serde::{Deserialize, Serialize};

use crate::limits::MAX_DOCUMENT_BYTES;

/// Why a document could not be read, in words for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentError {
    /// It has another format than was declared.
    #[error("this is not {article_and_format}: its content has another format", article_and_format = .0)]
    OtherFormat(String),
    /// It is protected by a password.
    #[error("the document is protected by a password; send it without one")]
    Encrypted,
    /// It is binary, and was declared as text.
    #[error("this is binary, not text")]
    Binary,
    /// It is broken.
    #[error("the document is broken: {0}")]
    Broken(String),
    /// It is too large.
    #[error("the document is larger than {} MiB", MAX_DOCUMENT_BYTES >> 20)]
    TooLarge,
    /// A part of it is too large once it is unpacked, or has too many parts.
    #[error("the document unpacks to more than is read: {0}")]
    Expands(String),
}

/// The maximum length of a reason, in characters.
const MAX_REASON_CHARS: usize = 200;

impl DocumentError {
    /// A document that is broken for this reason. The words of a parser may quote the document, so they are
    /// cut.
    pub(crate) fn broken(reason: impl std::fmt::Display) -> Self {
        Self::Broken(reason.to_string()).bounded()
    }

    /// The error with its words cut to a length.
    pub(crate) fn bounded(self) -> Self {
        let cut = |reason: String| {
            reason.chars().filter(|char| !char.is_control()).take(MAX_REASON_CHARS).collect::<String>()
        };
        match self {
            Self::OtherFormat(format) => Self::OtherFormat(cut(format)),
            Self::Broken(reason) => Self::Broken(cut(reason)),
            Self::Expands(reason) => Self::Expands(cut(reason)),
            error @ (Self::Encrypted | Self::Binary | Self::TooLarge) => error,
        }
    }
}
