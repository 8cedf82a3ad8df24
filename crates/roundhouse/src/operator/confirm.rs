//! Asks a person before something is lost or replaced.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};

use crate::error::Failure;
use crate::terminal::single_line;

/// The longest answer.
const MAX_ANSWER_BYTES: u64 = 4_096;

/// What has to be typed.
pub(super) enum Expected<'a> {
    Yes,
    /// A name, so that it is not typed by habit.
    Name(&'a str),
}

/// Returns if the person agrees, or agreed already with `--yes`.
pub(super) async fn confirm(question: &str, expected: Expected<'_>, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "{question} This needs a person's agreement, and the standard input is no terminal; pass --yes to go on"
        )));
    }
    let prompt = match expected {
        Expected::Yes => format!("{question} Go on? [y/N] "),
        Expected::Name(name) => format!("{question} Type `{}` to go on: ", single_line(name, usize::MAX)),
    };
    let answer = tokio::task::spawn_blocking(move || ask(&prompt)).await??;
    let agrees = match expected {
        Expected::Yes => matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"),
        Expected::Name(name) => answer.trim_end_matches(['\n', '\r']) == name,
    };
    if agrees {
        Ok(())
    } else {
        Err(Failure::Refused("nothing was changed: it was not confirmed".to_owned()))
    }
}

fn ask(prompt: &str) -> io::Result<String> {
    let mut errors = io::stderr();
    errors.write_all(prompt.as_bytes())?;
    errors.flush()?;
    let mut answer = String::new();
    io::stdin().lock().take(MAX_ANSWER_BYTES).read_line(&mut answer)?;
    Ok(answer)
}
