//! Who calls: the revision, what the caller can do, and its session if it has one.
//!
//! A session is kept nowhere: its id says all that was agreed on, so it outlives the engine. It protects nothing,
//! the key does.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use uuid::Uuid;

use super::revision::Revision;

/// The caller of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Caller {
    pub(super) revision: Revision,
    /// Whether its user can be asked something.
    pub(super) elicits: bool,
    /// The id of its session.
    pub(super) session: Option<Uuid>,
}

impl Caller {
    /// A caller that has no session, and said nothing about itself.
    pub(super) const fn unknown(revision: Revision) -> Self {
        Self { revision, elicits: false, session: None }
    }

    /// A caller with these capabilities.
    pub(super) fn with_capabilities(revision: Revision, capabilities: &Value) -> Self {
        let elicitation = capabilities.get("elicitation").filter(|elicitation| elicitation.is_object());
        // A caller that names no mode can show forms; that was the only mode first.
        let shows_forms = elicitation.is_some_and(|modes| {
            modes.get("form").is_some_and(|form| !form.is_null())
                || modes.get("url").is_none_or(Value::is_null)
        });
        Self { elicits: shows_forms && revision.has_elicitation(), ..Self::unknown(revision) }
    }
}

/// What `initialize` agreed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Session {
    revision: Revision,
    elicits: bool,
    id: Uuid,
}

/// An id that no session has.
#[derive(Debug)]
pub(super) struct UnknownSession;

impl Session {
    /// A new session of this caller.
    pub(super) fn begin(caller: &Caller) -> Self {
        Self { revision: caller.revision, elicits: caller.elicits, id: Uuid::now_v7() }
    }

    pub(super) const fn revision(self) -> Revision {
        self.revision
    }

    pub(super) const fn caller(self) -> Caller {
        Caller { revision: self.revision, elicits: self.elicits, session: Some(self.id) }
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = if self.elicits { "asks" } else { "plain" };
        write!(f, "{}.{mode}.{}", self.revision.as_str(), self.id.simple())
    }
}

impl FromStr for Session {
    type Err = UnknownSession;

    fn from_str(text: &str) -> Result<Self, UnknownSession> {
        let mut parts = text.splitn(3, '.');
        let mut next = || parts.next().ok_or(UnknownSession);
        let revision: Revision = next()?.parse().map_err(|_| UnknownSession)?;
        let elicits = match next()? {
            "asks" => true,
            "plain" => false,
            _ => return Err(UnknownSession),
        };
        let id = Uuid::try_parse(next()?).map_err(|_| UnknownSession)?;
        let session = Self { revision, elicits, id };
        (revision.has_handshake() && session.to_string() == text).then_some(session).ok_or(UnknownSession)
    }
}
