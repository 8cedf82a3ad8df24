//! Reads a tool server's key from a person or standard input; never from an argument, which others on the machine
//! can read.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Stderr, Stdin, Write as _};

use anyhow::Context as _;
use api::assets::Credentials;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::error::Failure;

/// The most bytes that are read, several times what any engine accepts.
const MAX_KEY_BYTES: u64 = 64 * 1024;

/// Prompts for the key without echo, or reads standard input if that is no terminal. `None` if it is empty.
pub(super) async fn read_key(server: &str) -> Result<Option<Credentials>, Failure> {
    let terminal = io::stdin().is_terminal();
    // Restored when this future is dropped, also on Ctrl-C.
    let _echo_off = if terminal {
        let echo_off = EchoGuard::disable_echo().context("the terminal's echo cannot be disabled")?;
        let prompt = format!("Key for `{server}` (empty: keep the one given before): ");
        io::stderr().lock().write_all(prompt.as_bytes())?;
        Some(echo_off)
    } else {
        None
    };
    let read = tokio::task::spawn_blocking(move || read_credentials(terminal)).await;
    let key = read.context("standard input cannot be read")?.context("standard input cannot be read")?;
    Ok(Some(key).filter(|credentials| !credentials.api_key.is_empty()))
}

/// Reads one line from a person, or everything that a program writes.
fn read_credentials(terminal: bool) -> io::Result<Credentials> {
    let mut input = io::stdin().lock().take(MAX_KEY_BYTES);
    let mut text = String::new();
    if terminal {
        input.read_line(&mut text)?;
    } else {
        input.read_to_string(&mut text)?;
    }
    Ok(Credentials { api_key: text.trim().to_owned() })
}

/// Disables the terminal's echo until it is dropped.
struct EchoGuard {
    original_termios: Termios,
    input: Stdin,
    output: Stderr,
}

impl EchoGuard {
    fn disable_echo() -> io::Result<Self> {
        let input = io::stdin();
        let original = tcgetattr(&input)?;
        let mut silent = original.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        tcsetattr(&input, OptionalActions::Flush, &silent)?;
        Ok(Self { original_termios: original, input, output: io::stderr() })
    }
}

impl Drop for EchoGuard {
    fn drop(&mut self) {
        // If the terminal is gone, there is no echo to restore.
        let _ = tcsetattr(&self.input, OptionalActions::Now, &self.original_termios);
        // The person's own line ending was not echoed either.
        let _ = self.output.write_all(b"\n");
    }
}
