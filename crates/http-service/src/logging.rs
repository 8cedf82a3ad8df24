//! Logging: one line per event on standard error, as text or JSON.

use std::ffi::OsStr;
use std::io::IsTerminal as _;
use std::sync::Arc;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::log_filter::{self, SwitchableFilter};

/// The error for a log filter that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("must be a level (error, warn, info, debug, trace) or a list such as `info,sqlx=warn`")]
pub struct InvalidFilter;

/// Parses a log filter: a level, or a list of `target=level`.
pub fn parse_filter(text: &str) -> Result<Targets, InvalidFilter> {
    // A bare unknown word would be parsed as a target, although it is more likely a mistyped level.
    let known = |part: &str| part.contains('=') || part.parse::<tracing::Level>().is_ok() || part == "off";
    if text.split(',').all(known) { text.parse().map_err(|_| InvalidFilter) } else { Err(InvalidFilter) }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line, for log collectors: `timestamp`, `level`, `target`, `message`, the event's
    /// fields, and `spans`, the outermost first.
    Json,
}

impl LogFormat {
    /// Returns the format of this name: `text` or `json`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }

    /// Returns the format's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Sends this process's logs to standard error, as text. To be called once, by `main`; a second call has no
/// effect.
pub fn init(filter: Targets) {
    init_with_format(LogFormat::Text, filter);
}

/// Like [`init`], in the given format.
pub fn init_with_format(format: LogFormat, filter: Targets) {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let control = log_filter::control();
    control.configure(filter);
    let registry = tracing_subscriber::registry().with(SwitchableFilter(Arc::clone(control)));
    let _ = match format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && color_enabled();
            registry.with(lines.with_ansi(colours)).try_init()
        }
        LogFormat::Json => {
            registry.with(lines.json().flatten_event(true).with_current_span(false)).try_init()
        }
    };
}

/// Whether colours may be sent to a terminal: `TERM` is not `dumb`, and `NO_COLOR` is unset or empty
/// (<https://no-color.org>).
pub fn color_enabled() -> bool {
    color_enabled_for(std::env::var_os("NO_COLOR").as_deref(), std::env::var_os("TERM").as_deref())
}

fn color_enabled_for(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|kind| kind != "dumb")
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

    #[test]
    fn colours_are_for_terminals_that_know_them_and_people_who_want_them() {
        let set = |text: &'static str| Some(OsStr::new(text));
        for (no_color, term, expected) in [
            (None, None, true),
            (None, set("xterm-256color"), true),
            (set(""), set("xterm"), true),
            (set("0"), set("xterm"), false),
            (set("1"), None, false),
            (None, set("dumb"), false),
        ] {
            assert_eq!(color_enabled_for(no_color, term), expected, "{no_color:?} {term:?}");
        }
    }
}
