//! Citations: the pages that an answer names.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::MessageId;

/// A page that a tool of a task shows to the agent. Its number is its own for as long as the task exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedPage {
    /// The number.
    pub n: u32,
    /// The address, `http` or `https`.
    pub url: String,
    /// The title; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// The data of `citations`: the pages that the turn's answer names. Sent before the turn completes, if there are any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Citations {
    /// The message that contains the answer.
    pub message_id: MessageId,
    /// The pages, in the order in which the answer names them first.
    pub citations: Vec<Citation>,
}

/// A page that an answer names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Citation {
    /// The page's number, as the marks have it.
    pub n: u32,
    /// The address, `http` or `https`.
    pub url: String,
    /// The title as its page or the search gave it, which is not trusted: show it as text. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The marks in the answer's text that name it, such as `[1]`, in their order.
    pub ranges: Vec<TextRange>,
}

/// A part of a text, in Unicode code points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TextRange {
    /// The first code point.
    pub start: u32,
    /// The one after the last.
    pub end: u32,
}
