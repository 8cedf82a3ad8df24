//! Reads something again and again: on a terminal in place, elsewhere one after the other.

use std::io::{self, IsTerminal as _, Write as _};

use rustix::termios::tcgetwinsize;

use super::output::{self, ReadOptions, Render};
use crate::client::Document;
use crate::error::Failure;
use crate::terminal::single_line;

/// The height that is assumed of a terminal that does not know its own.
const DEFAULT_ROWS: usize = 24;
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Shows what `load` returns: once, or again and again.
pub(super) async fn show(
    options: ReadOptions,
    load: impl AsyncFn() -> Result<Document, Failure>,
    render: Render<'_>,
) -> Result<(), Failure> {
    let Some(pause) = options.watch else {
        return output::print(&load().await?, options.output, render);
    };
    if options.output.json || !io::stdout().is_terminal() {
        loop {
            match load().await {
                Ok(document) => output::print(&document, options.output, render)?,
                Err(Failure::Unavailable(message)) => output::note(&format!("roundhouse: {message}")),
                Err(failure) => return Err(failure),
            }
            if !options.output.json {
                output::print_line("")?;
            }
            tokio::time::sleep(pause).await;
        }
    }
    let _screen = OwnScreen::enter()?;
    loop {
        let text = match load().await {
            Ok(document) => output::text_of(&document, options.output, render)?,
            Err(Failure::Unavailable(message)) => single_line(&message, usize::MAX),
            Err(failure) => return Err(failure),
        };
        output::write(&frame(&text, height()))?;
        tokio::time::sleep(pause).await;
    }
}

/// The terminal's other screen, so that what was there before is there afterwards.
struct OwnScreen;

impl OwnScreen {
    fn enter() -> Result<Self, Failure> {
        output::write(ENTER)?;
        Ok(Self)
    }
}

impl Drop for OwnScreen {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let mut output = io::stdout().lock();
        let _ = output.write_all(LEAVE.as_bytes()).and_then(|()| output.flush());
    }
}

/// The height of the terminal now.
fn height() -> usize {
    let size = tcgetwinsize(io::stdout()).ok();
    size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0).unwrap_or(DEFAULT_ROWS)
}

/// What draws a text over the one before, without a moment in which there is nothing.
fn frame(text: &str, rows: usize) -> String {
    let count = text.lines().count();
    let shown = if count > rows { rows.saturating_sub(1) } else { count };
    let mut lines: Vec<String> = text.lines().take(shown).map(|line| format!("{line}\x1b[K")).collect();
    if shown < count {
        lines.push(format!("… {} more lines\x1b[K", count - shown));
    }
    format!("\x1b[H{}\x1b[J", lines.join("\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_the_screen() {
        assert_eq!(frame("a\nb", 2), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
        assert_eq!(frame("a\nb\nc", 2), "\x1b[Ha\x1b[K\r\n… 2 more lines\x1b[K\x1b[J");
    }
}
