//! The errors: why a model call failed, and why no model can be used at all.

use std::collections::BTreeMap;
use std::fmt;

use http_service::env::{ConfigErrors, EnvReader};

use super::TokenUsage;

/// The failure of a model call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ModelError {
    /// The kind of failure, which decides whether to retry, fall back or give up.
    pub kind: ModelErrorKind,
    /// A message for the user. Never contains a key.
    pub message: String,
    /// The delay before the next attempt that the provider asked for.
    pub retry_after: Option<std::time::Duration>,
    /// The tokens that the failed call used, as far as the provider reported them.
    pub usage: TokenUsage,
    /// The number of bytes of the answer that had been received before the failure.
    pub received_bytes: usize,
}

/// The kinds of failure of a model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelErrorKind {
    /// No usable provider is configured.
    NotConfigured,
    /// The provider refused the key (401, 403).
    Auth,
    /// The provider does not have the model, or does not offer it to this account (404).
    NoSuchModel,
    /// The provider refused the request (400, 413, 422); it will refuse the same request again.
    Refused,
    /// The conversation is too long for the model.
    TooLong,
    /// The provider considers something in the history invalid, such as reasoning that it did not sign.
    BrokenHistory,
    /// The account's quota is exhausted: waiting does not help.
    Quota,
    /// The answer had neither text nor a call. This says nothing about the provider's health; another model may
    /// answer.
    Empty,
    /// The provider is overloaded, rate limiting or failing (408, 409, 429, 5xx); the failure may be temporary.
    Busy,
    /// The provider could not be reached, stopped sending, or its stream broke off.
    Broken,
}

impl ModelError {
    /// Creates a failure of `kind` without a retry delay.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
            usage: TokenUsage::default(),
            received_bytes: 0,
        }
    }

    /// The failure of a stream that ended before the answer was complete.
    pub fn ended_early() -> Self {
        Self::new(ModelErrorKind::Broken, "the provider's answer ended before it was complete")
    }

    /// Whether the failure is caused by this request and says nothing about the provider's health.
    pub const fn is_request_error(&self) -> bool {
        use ModelErrorKind::{BrokenHistory, Empty, Refused, TooLong};
        matches!(self.kind, Refused | TooLong | BrokenHistory | Empty)
    }
}

/// Why no model can be used: all errors of the configuration, with what to set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NotConfigured(pub(super) ConfigErrors);

impl NotConfigured {
    /// The configuration's errors.
    pub const fn errors(&self) -> &ConfigErrors {
        &self.0
    }

    /// Combines the errors of both.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let none = BTreeMap::new();
        let mut reader = EnvReader::new(&none);
        reader.extend(&self.0);
        reader.extend(&other.0);
        Self(reader.finish(None::<()>).err().unwrap_or_else(|| self.0.clone()))
    }
}

impl fmt::Display for NotConfigured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&faults.join("; "))
    }
}

impl From<NotConfigured> for ModelError {
    fn from(reason: NotConfigured) -> Self {
        Self::new(ModelErrorKind::NotConfigured, reason.to_string())
    }
}
