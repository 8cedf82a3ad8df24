//! Logs: one line per event on standard error.

mod fields;

use std::io::IsTerminal as _;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("must be a level (error, warn, info, debug, trace) or a list such as `info,sqlx=warn`")]
pub struct InvalidFilter;

/// Parses a log filter: a level, or a list of `target=level`.
pub fn parse_filter(text: &str) -> Result<Targets, InvalidFilter> {
    // A bare unknown word would be read as a target, which a person who mistyped a level did not mean.
    let known = |part: &str| part.contains('=') || part.parse::<tracing::Level>().is_ok() || part == "off";
    if text.split(',').all(known) { text.parse().map_err(|_| InvalidFilter) } else { Err(InvalidFilter) }
}

/// Sends this process's logs to standard error. Called once, by `main`; a second call changes nothing.
pub fn init(filter: Targets) {
    let format = tracing_subscriber::fmt::layer()
        .fmt_fields(fields::Fields)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none());
    let _ = tracing_subscriber::registry().with(filter).with(format).try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_or_lists() {
        for good in ["info", "WARN", "off", "info,sqlx=warn", "engine=debug"] {
            assert!(parse_filter(good).is_ok(), "{good}");
        }
        for bad in ["", "loud", "info,,", "engine=loud"] {
            assert!(parse_filter(bad).is_err(), "{bad}");
        }
    }
}
