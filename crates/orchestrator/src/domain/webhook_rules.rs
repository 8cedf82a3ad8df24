//! How webhooks send: where to, how long an attempt may take, and when a row is sent again or given up.

use std::time::Duration;

use fetch::WebAllowlist;

/// The rules of all webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookRules {
    /// The receivers that may be reached although they are not on the public internet, or without TLS.
    pub allow: WebAllowlist,
    /// How long an attempt may take.
    pub timeout: Duration,
    /// The delay before a row is sent again for the first time; each further delay is twice as long.
    pub backoff_base: Duration,
    /// The longest delay.
    pub backoff_max: Duration,
    /// How long a row is sent again before it is given up.
    pub give_up_after: Duration,
}

impl Default for WebhookRules {
    fn default() -> Self {
        Self {
            allow: WebAllowlist::default(),
            timeout: Duration::from_secs(20),
            backoff_base: Duration::from_secs(5),
            backoff_max: Duration::from_hours(1),
            give_up_after: Duration::from_hours(24),
        }
    }
}
