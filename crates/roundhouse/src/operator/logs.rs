//! `roundhouse engine logs`: what an engine has logged, and what it logs now.

use std::time::Duration;

use api::orchestrator::EngineLogs;
use serde_json::json;

use super::engine::UserArgument;
use super::output::{self, OutputOptions};
use super::session::{ProductOptions, Session};
use crate::client::{Call, Document};
use crate::error::Failure;
use crate::terminal::escape_hidden_characters;

/// How often a log that is followed is read.
const PAUSE: Duration = Duration::from_secs(1);
/// How many lines of a log that is followed are read at once, at least. More between two looks are left out.
const FOLLOWED_LINES: u16 = 1_000;

/// Arguments of `roundhouse engine logs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    user: UserArgument,
    /// Go on with new lines until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    /// The number of lines to begin with.
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    tail: u16,
    /// Print the API's JSON; with `--follow` another document whenever there are new lines.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    product: ProductOptions,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let Args { user, follow, tail, json, product } = args;
    super::run(async {
        let log = Log { session: product.open()?, user: user.user.as_str(), output: OutputOptions { json } };
        let document = log.read(tail).await?;
        log.print(&document)?;
        if follow { log.follow(document.parse()?, tail.max(FOLLOWED_LINES)).await } else { Ok(()) }
    })
}

struct Log<'a> {
    session: Session,
    user: &'a str,
    output: OutputOptions,
}

impl Log<'_> {
    async fn read(&self, tail: u16) -> Result<Document, Failure> {
        self.session.call(&Call::get(&["engines", self.user, "logs"]).with("tail", Some(tail))).await
    }

    fn print(&self, document: &Document) -> Result<(), Failure> {
        if self.output.json {
            return output::print_line(&output::json_of(document));
        }
        // What a program has logged does not drive the terminal.
        let EngineLogs { lines } = document.parse()?;
        output::write(&lines.iter().map(|line| escape_hidden_characters(line) + "\n").collect::<String>())
    }

    async fn follow(&self, first: EngineLogs, tail: u16) -> Result<(), Failure> {
        let mut known = first.lines;
        loop {
            tokio::time::sleep(PAUSE).await;
            let read: EngineLogs = match self.read(tail).await {
                Ok(document) => document.parse()?,
                Err(Failure::Unavailable(message)) => {
                    output::note(&format!("roundhouse: {message}; trying again"));
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let new = new_lines(&known, &read.lines);
            if new.is_left_out {
                output::note("roundhouse: some lines may be missing here");
            }
            if !new.lines.is_empty() {
                self.print(&Document::from(json!({"lines": new.lines}).to_string()))?;
            }
            known = read.lines;
        }
    }
}

/// The lines of a log that are new.
#[derive(Debug, PartialEq, Eq)]
struct NewLines<'a> {
    lines: &'a [String],
    /// Whether lines between what is known and these may have been missed.
    is_left_out: bool,
}

/// Compares the ends of a log at two moments: the later one begins with the end of the earlier one.
fn new_lines<'a>(known: &[String], read: &'a [String]) -> NewLines<'a> {
    let joined = (0..=read.len()).find_map(|count| {
        let (before, new) = read.split_at_checked(read.len() - count)?;
        // The end that was read first may have been the shorter or the longer one.
        (!before.is_empty() && (known.ends_with(before) || (!known.is_empty() && before.ends_with(known))))
            .then_some(new)
    });
    match joined {
        Some(lines) => NewLines { lines, is_left_out: false },
        None => NewLines { lines: read, is_left_out: !known.is_empty() && !read.is_empty() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(known: &str, read: &str) -> (String, bool) {
        let lines = |text: &str| -> Vec<String> { text.chars().map(String::from).collect() };
        let (known, read) = (lines(known), lines(read));
        let NewLines { lines, is_left_out } = new_lines(&known, &read);
        (lines.concat(), is_left_out)
    }

    #[test]
    fn lines_are_new_after_those_that_are_known() {
        for (known, read, expected, is_left_out) in [
            ("abc", "abc", "", false),
            ("abc", "abcde", "de", false),
            ("abc", "bcde", "de", false),
            ("c", "abcde", "de", false),
            ("", "ab", "ab", false),
            ("", "", "", false),
            ("abc", "xyz", "xyz", true),
            ("abc", "", "", false),
        ] {
            assert_eq!(new(known, read), (expected.to_owned(), is_left_out), "{known} {read}");
        }
    }
}
