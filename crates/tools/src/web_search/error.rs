//! Why a search failed, in words that the model can act on. What a provider writes about an error is not shown: it may
//! repeat the key, and it is text from outside.

use std::time::Duration;

use fetch::FetchError;

use super::super::ToolError;

/// The number of attempts at one provider.
pub(super) const MAX_ATTEMPTS: u32 = 3;
/// The delay before the second attempt. It doubles.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// The longest delay that a provider may ask for and still be asked again.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Why a provider gave no results.
#[derive(Debug, thiserror::Error)]
pub(super) enum SearchError {
    /// There were too many searches.
    #[error("it is asked too often (status 429): wait before you search again, or go on without")]
    RateLimited {
        /// The delay that the provider asks for.
        retry_after: Option<Duration>,
    },
    /// The operator's plan is used up.
    #[error("the quota of this service is used up (status {0}): go on without searching")]
    QuotaUsedUp(u16),
    /// The key was refused.
    #[error(
        "it refuses the key or the access of this service (status {0}): only its operator can change that"
    )]
    KeyRefused(u16),
    /// The request was refused.
    #[error("it does not accept this search (status {0}): try other words, without `site` and `freshness`")]
    Refused(u16),
    /// It redirects.
    #[error("it redirects (status {0}), which is not followed: its operator must set the final address")]
    Redirects(u16),
    /// It fails.
    #[error("it fails (status {0}): try again later, or go on without")]
    Fails(u16),
    /// It cannot be reached, or does not answer. What is in the way may be the operator's, and what it answers is
    /// text from outside: neither is shown.
    #[error(
        "it cannot be reached, or does not answer as a web server does: try again later, or go on without"
    )]
    Unreachable(#[source] FetchError),
    /// It takes too long.
    #[error("it does not answer in time: try again later, or go on without")]
    Late,
    /// None of the engines that it asks answers.
    #[error("none of the engines that it asks answers: try again later, or go on without")]
    EnginesUnresponsive,
    /// Its answer is too long.
    #[error("its answer is longer than {0} bytes")]
    TooLong(usize),
    /// Its answer has another form.
    #[error("its answer is not of the expected form: {0}")]
    Malformed(String),
}

impl SearchError {
    /// The error that a status stands for; `None` for one that stands for success.
    pub(super) fn of_status(status: u16, retry_after: Option<Duration>) -> Option<Self> {
        Some(match status {
            200..=299 => return None,
            429 => Self::RateLimited { retry_after },
            // Tavily: 432 is the limit of the plan, 433 that of paid use.
            402 | 432 | 433 => Self::QuotaUsedUp(status),
            401 | 403 => Self::KeyRefused(status),
            300..=399 => Self::Redirects(status),
            400..=499 => Self::Refused(status),
            _ => Self::Fails(status),
        })
    }

    /// How long to wait before the provider is asked again, after this many attempts; `None` if it is not.
    pub(super) fn retry_delay(&self, attempts: u32) -> Option<Duration> {
        if attempts >= MAX_ATTEMPTS {
            return None;
        }
        let backoff = FIRST_DELAY * 2_u32.pow(attempts.saturating_sub(1));
        match self {
            // Plans allow a number of searches a second.
            Self::RateLimited { retry_after } => {
                let delay = retry_after.unwrap_or(Duration::from_secs(1)).max(backoff);
                (delay <= MAX_DELAY).then_some(delay)
            }
            Self::Fails(_) => Some(backoff),
            Self::Unreachable(error) => {
                let may_pass = matches!(
                    error,
                    FetchError::Connection(_) | FetchError::NoAddress { .. } | FetchError::NoMemory(_)
                );
                may_pass.then_some(backoff)
            }
            _ => None,
        }
    }
}

/// Describes the failures of all providers.
pub(super) fn describe(failures: &[(&'static str, SearchError)]) -> ToolError {
    let each: Vec<String> = failures.iter().map(|(name, error)| format!("{name}: {error}")).collect();
    ToolError(format!("the web could not be searched. {}", each.join("; ")))
}
