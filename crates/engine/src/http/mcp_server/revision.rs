//! The revisions of the protocol.

use std::str::FromStr;

use serde_json::{Value, json};

use super::server_info;

/// The key under which results name the server.
const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";

/// A revision, in the order in which they appeared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Revision {
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    /// The one without a handshake: each request says by itself what its caller can do.
    V2026_07_28,
}

/// A revision that is not spoken here.
#[derive(Debug)]
pub(super) struct UnknownRevision;

impl Revision {
    pub(super) const ALL: [Self; 4] =
        [Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25, Self::V2026_07_28];
    /// The newest one with a handshake.
    pub(super) const LAST_WITH_HANDSHAKE: Self = Self::V2025_11_25;

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    pub(super) fn has_handshake(self) -> bool {
        self <= Self::LAST_WITH_HANDSHAKE
    }

    /// Whether a stream whose connection broke is taken up again with the id of its last event.
    pub(super) fn has_event_ids(self) -> bool {
        self.has_handshake()
    }

    /// Whether a stream begins with an event that has an id and no message.
    pub(super) fn has_first_event(self) -> bool {
        self == Self::V2025_11_25
    }

    /// Whether a server can ask the caller's user something.
    pub(super) fn has_elicitation(self) -> bool {
        self >= Self::V2025_06_18
    }

    /// A result that is the outcome of its request, as the revision writes it.
    pub(super) fn complete(self, result: Value) -> Value {
        self.with_type("complete", result)
    }

    /// A result that asks for something before the request can go on.
    pub(super) fn input_required(self, result: Value) -> Value {
        self.with_type("input_required", result)
    }

    /// Adds the type that results have since the revision without a handshake.
    fn with_type(self, kind: &str, mut result: Value) -> Value {
        if !self.has_handshake()
            && let Some(fields) = result.as_object_mut()
        {
            fields.insert("resultType".to_owned(), json!(kind));
            fields.insert("_meta".to_owned(), json!({ SERVER_INFO_KEY: server_info() }));
        }
        result
    }
}

impl FromStr for Revision {
    type Err = UnknownRevision;

    fn from_str(text: &str) -> Result<Self, UnknownRevision> {
        Self::ALL.into_iter().find(|revision| revision.as_str() == text).ok_or(UnknownRevision)
    }
}
