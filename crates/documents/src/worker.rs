//! The process that reads one document: it takes the document from its standard input, and writes one JSON
//! value to its standard output.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::limits::{MAX_DOCUMENT_BYTES, MAX_TEXT_CHARS};
use crate::{DocumentError, Extracted, Format, extract};

/// The hidden subcommand that makes `roundhouse` run as such a process.
pub const WORKER_ARG: &str = "__document";
/// The maximum length of what it writes, in bytes: a character takes at most six in JSON.
pub const MAX_ANSWER_BYTES: usize = 6 * MAX_TEXT_CHARS + 4_096;

/// The maximum length of the notes after a text, in characters.
const MAX_NOTE_CHARS: usize = 1_000;
/// The size of the stack of the thread that reads the document. Parsers recurse, within limits of their own.
const STACK_BYTES: usize = 16 << 20;

/// What the process writes.
#[derive(Serialize, Deserialize)]
enum Answer {
    Read(Extracted),
    Failed(DocumentError),
}

/// The arguments of the process, after the program's name.
pub fn worker_args(format: Format) -> Vec<OsString> {
    vec![WORKER_ARG.into(), format.media_type().into()]
}

/// The main function of the process: `args` are those after [`WORKER_ARG`].
pub fn worker_main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let format = args.next().and_then(|media_type| Format::detect(media_type.to_str()?, None));
    let Some(format) = format else { return ExitCode::FAILURE };
    let mut document = Vec::new();
    let limit = u64::try_from(MAX_DOCUMENT_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    if std::io::stdin().lock().take(limit).read_to_end(&mut document).is_err() {
        return ExitCode::FAILURE;
    }
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    let Ok(reading) = thread.spawn(move || extract(format, &document)) else { return ExitCode::FAILURE };
    let answer = match reading.join() {
        Ok(Ok(extracted)) => Answer::Read(extracted),
        Ok(Err(error)) => Answer::Failed(error),
        Err(_) => Answer::Failed(DocumentError::Broken("the parser gave up".into())),
    };
    let Ok(answer) = serde_json::to_vec(&answer) else { return ExitCode::FAILURE };
    match std::io::stdout().lock().write_all(&answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Parses what the process wrote; `None` if it is nothing that it writes. The process may have been taken
/// over by the document, so its words are held to their limits once more.
pub fn parse_answer(answer: &str) -> Option<Result<Extracted, DocumentError>> {
    match serde_json::from_str(answer).ok()? {
        Answer::Read(Extracted { text, pages }) => Some(Ok(Extracted { text: printable(&text), pages })),
        Answer::Failed(error) => Some(Err(error.bounded())),
    }
}

/// The text without control characters, of at most the length of a whole one with its notes.
fn printable(text: &str) -> String {
    let chars = text.chars().filter(|char| !char.is_control() || matches!(char, '\n' | '\t'));
    chars.take(MAX_TEXT_CHARS + MAX_NOTE_CHARS).collect()
}
