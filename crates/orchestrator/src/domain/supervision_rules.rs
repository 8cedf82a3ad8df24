//! The rules by which engines are watched, restarted and put to sleep.

use std::time::Duration;

/// The supervisor's settings, as the operator configured them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupervisionRules {
    /// The interval between the health checks of a running engine.
    pub check_interval: Duration,
    /// The timeout of a health check.
    pub check_timeout: Duration,
    /// The number of consecutive failed checks after which an engine has failed.
    pub max_failures: u32,
    /// The wait before the first restart; it doubles with each further restart.
    pub backoff_base: Duration,
    /// The longest wait before a restart. An engine that was healthy for this long has its restart count reset.
    pub backoff_max: Duration,
    /// The number of restarts that are attempted.
    pub max_restarts: u32,
    /// The time without an admit after which an engine is put to sleep; zero means never.
    pub idle_threshold: Duration,
}

impl Default for SupervisionRules {
    /// The example values of the contract.
    fn default() -> Self {
        Self {
            check_interval: Duration::from_secs(30),
            check_timeout: Duration::from_secs(10),
            max_failures: 3,
            backoff_base: Duration::from_secs(5),
            backoff_max: Duration::from_mins(5),
            max_restarts: 8,
            idle_threshold: Duration::from_hours(1),
        }
    }
}
