//! Calls with an `Idempotency-Key`: what a key may be, which calls are the same, and what becomes of a call that is made
//! again. Pure.
//!
//! A call is first stored, then executed, and then answered. The transaction that commits its change says in the call's
//! row that it did, so whoever retries a call that was cut off knows whether its change was made.

use api::{EngineId, ProductId};
use sha2::{Digest as _, Sha256};

/// How long a call is kept after it was made first.
pub(crate) const KEPT_MS: i64 = 24 * 60 * 60 * 1_000;
/// The longest key, in characters.
pub(crate) const MAX_KEY_CHARS: usize = 255;
/// Calls that are kept of one caller; one more removes the oldest.
pub(crate) const MAX_CALLS_OF_CALLER: i64 = 10_000;
/// Calls of one caller that are under way at once.
pub(crate) const MAX_UNDER_WAY_OF_CALLER: usize = 64;

/// A key that identifies a call among those of its caller to the same path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Parses the value of the header: 1 to 255 visible ASCII characters.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let is_valid = (1..=MAX_KEY_CHARS).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
        let text = is_valid.then(|| std::str::from_utf8(value).ok())?;
        text.map(|text| Self(text.to_owned()))
    }
}

/// Who makes a call. Nobody gets the answers of another caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyHolder {
    /// A product, with its platform key.
    Product(ProductId),
    /// The operator, for a product if it is named.
    Operator(Option<ProductId>),
}

impl KeyHolder {
    /// Its name in the registry.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Product(product_id) => product_id.to_string(),
            Self::Operator(None) => "admin".to_owned(),
            Self::Operator(Some(product_id)) => format!("admin {product_id}"),
        }
    }
}

/// The identity of a call, which does not reveal its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallId(String);

impl CallId {
    /// The call that `holder` makes to this path with this method and key.
    pub(crate) fn new(holder: &KeyHolder, method: &str, path: &str, key: &IdempotencyKey) -> Self {
        Self(digest([holder.name().as_bytes(), method.as_bytes(), path.as_bytes(), key.0.as_bytes()]))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What distinguishes a request from another one with the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(String);

impl Fingerprint {
    pub(crate) fn of(method: &str, path: &str, query: Option<&str>, body: &[u8]) -> Self {
        // An empty query is another request than none, as its URL is.
        let query = query.map_or_else(String::new, |query| format!("?{query}"));
        Self(digest([method.as_bytes(), path.as_bytes(), query.as_bytes(), body]))
    }

    pub(crate) const fn from_stored(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Hashes the parts so that no two lists of parts are hashed alike.
fn digest<const N: usize>(parts: [&[u8]; N]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    hex::encode(hash.finalize())
}

/// The claim of an engine under which the change of a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineClaim {
    pub(crate) engine_id: EngineId,
    pub(crate) generation: i64,
}

/// How far a call has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallState<A> {
    /// No change of it is committed. An engine may be claimed for one.
    Open(Option<EngineClaim>),
    /// Its change is committed. The answer was committed with it, or is to be found from what is.
    Applied(Option<A>),
    /// It was answered.
    Answered(A),
}

/// What to do about a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallStep<A> {
    /// Execute it.
    Execute {
        /// Its change is committed already: only what follows the change is done, and it is answered.
        applied: bool,
    },
    /// Somebody may still be at the change of the engine: wait for its end, then decide again.
    AwaitClaim(EngineClaim),
    /// Answer it with what was committed with its change.
    Conclude(A),
    /// Answer it as before.
    Replay(A),
    /// Another request has its key.
    Refuse,
}

/// Decides what to do about a call with this fingerprint: `stored` is what is known of the call with its key.
/// `claim_ended` is a claim that is known to be over.
pub(crate) fn decide<A>(
    stored: (&Fingerprint, CallState<A>),
    fingerprint: &Fingerprint,
    claim_ended: Option<EngineClaim>,
) -> CallStep<A> {
    let (first, state) = stored;
    if first != fingerprint {
        return CallStep::Refuse;
    }
    match state {
        CallState::Open(Some(claim)) if claim_ended != Some(claim) => CallStep::AwaitClaim(claim),
        CallState::Open(_) => CallStep::Execute { applied: false },
        CallState::Applied(None) => CallStep::Execute { applied: true },
        CallState::Applied(Some(answer)) => CallStep::Conclude(answer),
        CallState::Answered(answer) => CallStep::Replay(answer),
    }
}

/// What becomes of a call with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// Whoever makes it again gets the same answer.
    Keep,
    /// It was refused before anything was done, or for now: it is as if it had never been made.
    Forget,
    /// It failed, and what became of its change may be unknown: whoever makes it again finds out, and executes it if
    /// nothing was changed.
    LeaveOpen,
}

impl CallEnd {
    /// The end of a call that is answered with this status.
    pub(crate) const fn of(status: u16) -> Self {
        match status {
            // Not authenticated, not understood, or asked to come back later.
            400 | 401 | 408 | 413 | 429 => Self::Forget,
            500.. => Self::LeaveOpen,
            _ => Self::Keep,
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/domain/idempotency.rs"]
mod tests;
