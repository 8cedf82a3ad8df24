//! What the commands write: tables for people, the API's JSON for programs.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use api::Timestamp;

use super::times;
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::table::Canvas;
use crate::terminal::{columns, escape_json};

/// What `--help` says below the options of a command.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  something failed
  2  the command line, a file or the configuration is wrong
  3  what was named does not exist
  4  the service refuses: the key, the policy, a quota, or a state that does not permit it
  5  the service cannot be reached or is not ready
  130  Ctrl-C";

/// The shortest time between two looks.
const MIN_WATCH_SECONDS: f64 = 0.1;
/// The longest time between two looks.
const MAX_WATCH_SECONDS: f64 = 86_400.0;

/// The form of the output.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OutputOptions {
    /// Print the API's JSON, as one document on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The form of what is read.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ReadOptions {
    #[command(flatten)]
    pub(crate) output: OutputOptions,
    /// Look again and again, until Ctrl-C.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = parse_seconds)]
    pub(crate) watch: Option<Duration>,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (MIN_WATCH_SECONDS..=MAX_WATCH_SECONDS).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("must be a number of seconds from {MIN_WATCH_SECONDS} to {MAX_WATCH_SECONDS}")),
    }
}

/// What an answer is laid out for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) canvas: Canvas,
    pub(crate) now: Timestamp,
}

impl View {
    pub(crate) fn of_output() -> Self {
        let is_terminal = io::stdout().is_terminal();
        let colours = is_terminal && http_service::logging::color_enabled();
        Self { canvas: Canvas { columns: columns(), colours }, now: times::now() }
    }

    pub(crate) fn ago(self, then: Timestamp) -> String {
        times::ago(then, self.now)
    }

    /// How long ago something happened, and when.
    pub(crate) fn exactly(self, then: Timestamp) -> String {
        format!("{} ({then})", self.ago(then))
    }
}

/// Lays out an answer for people. What it cannot read is an error.
pub(crate) type Render<'a> = &'a dyn Fn(&Document, View) -> anyhow::Result<String>;

/// The text of an answer.
pub(crate) fn text_of(
    document: &Document,
    options: OutputOptions,
    render: Render<'_>,
) -> Result<String, Failure> {
    if options.json { Ok(json_of(document)) } else { Ok(render(document, View::of_output())?) }
}

/// The JSON of an answer, on one line.
pub(crate) fn json_of(document: &Document) -> String {
    escape_json(document.text().trim_end())
}

/// Prints an answer.
pub(crate) fn print(document: &Document, options: OutputOptions, render: Render<'_>) -> Result<(), Failure> {
    print_line(&text_of(document, options, render)?)
}

/// Prints a line, or several.
pub(crate) fn print_line(text: &str) -> Result<(), Failure> {
    write(&format!("{text}\n"))
}

/// Writes to the standard output, at once.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(Failure::of_output)
}

/// Tells a person something that is not the result.
pub(crate) fn note(text: &str) {
    // If standard error is closed, there is nobody to tell.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether what is told a person may have colours.
pub(crate) fn errors_have_colours() -> bool {
    io::stderr().is_terminal() && http_service::logging::color_enabled()
}

/// Which part of a list is shown.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Page {
    /// The number of rows at most; without it the API's default.
    #[arg(long)]
    limit: Option<i64>,
    /// The number of rows to skip.
    #[arg(long)]
    offset: Option<i64>,
}

impl Page {
    /// Asks for this part.
    pub(crate) fn of(self, call: Call<'_>) -> Call<'_> {
        call.with("limit", self.limit).with("offset", self.offset)
    }

    /// How many there are, where a list shows only a part of them, and how to see more.
    pub(crate) fn note(self, shown: usize, total: u64) -> Option<String> {
        let offset = u64::try_from(self.offset.unwrap_or_default()).unwrap_or_default();
        let end = offset.saturating_add(shown as u64);
        (end < total && shown > 0).then(|| format!("{shown} of {total}; --offset {end} shows more"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(parse_seconds("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["", "0", "-1", "1e9", "NaN", "soon", "inf"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_part_of_a_list_says_so() {
        let from = |offset| Page { limit: None, offset: Some(offset) };
        assert_eq!(Page::default().note(2, 2), None);
        assert_eq!(from(9).note(0, 2), None);
        assert_eq!(from(1).note(2, 9).unwrap(), "2 of 9; --offset 3 shows more");
    }
}
