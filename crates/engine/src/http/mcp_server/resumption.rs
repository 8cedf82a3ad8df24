//! Where the stream of a call is, as the id of each of its events says it. A caller whose connection broke names the
//! last id that it has, and gets the rest. Nothing is kept for that: the id says which turn's events are to be read
//! and how much of them the caller has. It protects nothing, the key does.

use std::fmt;
use std::str::FromStr;

use api::{HitlId, TurnId};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::http::json_rpc::RequestId;

/// How long a caller waits before it connects again, in milliseconds. The SDKs try it twice, and the engine may be
/// starting.
pub(super) const RETRY_MS: u32 = 3_000;

/// The id of an event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EventId {
    pub(super) turn_id: TurnId,
    /// The request that the stream answers.
    pub(super) request: RequestId,
    pub(super) progress_token: Option<Value>,
    pub(super) place: Place,
}

/// How much of a turn a stream has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The time of the last event of the turn.
    pub(super) ts: i64,
    /// The request that the caller's user was asked last.
    pub(super) asked: Option<HitlId>,
    /// The number of notifications of progress.
    pub(super) progress: u64,
}

/// An id that no event has.
#[derive(Debug)]
pub(super) struct UnknownEvent;

/// The fields of an id, in their order.
type Fields = (TurnId, Value, Option<Value>, i64, Option<HitlId>, u64);

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { turn_id, request, progress_token, place: Place { ts, asked, progress } } = self;
        let fields: Fields =
            (*turn_id, request.value().clone(), progress_token.clone(), *ts, *asked, *progress);
        let fields = serde_json::to_vec(&fields).map_err(|_| fmt::Error)?;
        f.write_str(&URL_SAFE_NO_PAD.encode(fields))
    }
}

impl FromStr for EventId {
    type Err = UnknownEvent;

    fn from_str(text: &str) -> Result<Self, UnknownEvent> {
        let fields = URL_SAFE_NO_PAD.decode(text).map_err(|_| UnknownEvent)?;
        let (turn_id, request, progress_token, ts, asked, progress): Fields =
            serde_json::from_slice(&fields).map_err(|_| UnknownEvent)?;
        let request = RequestId::parse(request).ok_or(UnknownEvent)?;
        Ok(Self { turn_id, request, progress_token, place: Place { ts, asked, progress } })
    }
}
