//! What a service logs, changed while it runs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamp;
use crate::serde_helpers::BoundedInt;

/// For how long a log filter holds, in seconds: up to a day.
pub type FilterSeconds = BoundedInt<1, 86_400>;

/// For how long a log filter holds if a request does not say, in seconds.
pub const DEFAULT_FILTER_SECONDS: i64 = 900;

/// The most bytes of a log filter.
pub const MAX_FILTER_BYTES: usize = 1_000;

/// Request that changes what a service logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetLogFilter {
    /// A level (`error`, `warn`, `info`, `debug`, `trace`), `off`, or a list such as `info,engine=debug`.
    #[schema(max_length = 1000)]
    pub filter: String,
    /// After how many seconds the configured filter holds again: 1 to 86400; 900 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<FilterSeconds>,
}

/// What a service logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogFilter {
    /// What holds now.
    pub active: String,
    /// What the service was configured with at its start.
    pub configured: String,
    /// When the configured one holds again; null if it holds now.
    #[schema(required)]
    pub expires_at: Option<Timestamp>,
}
