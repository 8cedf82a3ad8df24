//! The terminal as the editor needs it: every byte arrives as it is typed, and pasted text is marked as such.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};

use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

/// How much is read at once.
const READ_BYTES: usize = 16 * 1024;
/// How many reads wait for the program; then the terminal waits.
const MAX_READS_AHEAD: usize = 16;
/// What is assumed of a terminal that does not know its size.
const DEFAULT_SIZE: Size = Size { columns: 80, rows: 24 };

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// The terminal's size now.
pub(super) fn size() -> Size {
    let known = |value: u16, default| if value == 0 { default } else { usize::from(value) };
    match tcgetwinsize(io::stdout()) {
        Ok(size) => Size {
            columns: known(size.ws_col, DEFAULT_SIZE.columns),
            rows: known(size.ws_row, DEFAULT_SIZE.rows),
        },
        Err(_) => DEFAULT_SIZE,
    }
}

/// Whether the terminal breaks its rows anew when it becomes narrower. Nearly all do; those that do not, and can be
/// known, are named here.
pub(super) fn reflows(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_set = |name| variable(name).is_some_and(|value| !value.is_empty());
    // A terminal within another one decides by itself.
    is_set("TMUX")
        || !(is_set("XTERM_VERSION") || is_set("STY") || variable("TERM").is_some_and(|term| term == "linux"))
}

/// The terminal in raw mode. It is as before when this is dropped.
pub(super) struct RawTerminal {
    original: Termios,
}

impl RawTerminal {
    /// Enters raw mode.
    pub(super) fn enter() -> io::Result<Self> {
        let this = Self { original: tcgetattr(io::stdin())? };
        this.make_raw()?;
        Ok(this)
    }

    fn make_raw(&self) -> io::Result<()> {
        let mut raw = self.original.clone();
        raw.make_raw();
        // What was typed already is kept.
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        write_now("\x1b[?2004h")
    }

    /// Enters raw mode again if somebody has left it, as a shell does while the program is stopped. Returns whether that
    /// was necessary.
    pub(super) fn make_raw_again(&self) -> io::Result<bool> {
        let is_raw = !tcgetattr(io::stdin())?.local_modes.contains(LocalModes::ICANON);
        if !is_raw {
            self.make_raw()?;
        }
        Ok(!is_raw)
    }

    fn restore(&self) -> io::Result<()> {
        write_now("\x1b[?2004l")?;
        Ok(tcsetattr(io::stdin(), OptionalActions::Now, &self.original)?)
    }

    /// Stops the program, as Ctrl-Z does, until the shell continues it.
    pub(super) fn suspend(&self) -> io::Result<()> {
        self.restore()?;
        kill_current_process_group(Signal::TSTP)?;
        self.make_raw()
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = self.restore();
    }
}

fn write_now(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// Starts to read the terminal, on a thread of its own. The channel closes when the terminal is gone.
pub(super) fn spawn_reader() -> mpsc::Receiver<Vec<u8>> {
    let (sender, reads) = mpsc::channel(MAX_READS_AHEAD);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        let mut bytes = vec![0; READ_BYTES];
        loop {
            match input.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    let read = bytes.get(..count).unwrap_or_default().to_vec();
                    if sender.blocking_send(read).is_err() {
                        return;
                    }
                }
            }
        }
    });
    reads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_that_cut_rows_off_are_known() {
        for (variables, expected) in [
            (&[("TERM", "xterm-256color")][..], true),
            (&[("TERM", "xterm"), ("XTERM_VERSION", "XTerm(390)")][..], false),
            (&[("TERM", "tmux"), ("XTERM_VERSION", "XTerm(390)"), ("TMUX", "/tmp/tmux")][..], true),
            (&[("TERM", "linux")][..], false),
            (&[("TERM", "screen"), ("STY", "1.pts")][..], false),
        ] {
            let variable = |name: &str| {
                variables.iter().find(|(set, _)| *set == name).map(|(_, value)| OsString::from(value))
            };
            assert_eq!(reflows(variable), expected, "{variables:?}");
        }
    }
}
