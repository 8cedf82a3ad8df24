//! A terminal in which the binary runs, and what a person sees in it.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pty_process::Size;
use pty_process::blocking::{Command, Pty};
use rustix::process::Pid;
use rustix::termios::{LocalModes, tcgetattr};
use testkit::terminal::{Emulator, OnResize};

use super::test_env::BINARY;
use super::{DEADLINE, Fleet, TestEnv, eventually};

/// The widths at which everything is tried in a terminal.
pub(crate) const WIDTHS: [u16; 2] = [40, 120];

/// The height of the terminals.
const ROWS: u16 = 24;

/// A terminal with a program in it. Dropping it ends the program.
pub(crate) struct Terminal {
    child: Child,
    pty: Arc<Pty>,
    seen: Arc<Mutex<Seen>>,
}

/// What the program has written.
struct Seen {
    screen: Emulator,
    bytes: Vec<u8>,
    /// Whether nothing more will come.
    is_complete: bool,
}

impl Terminal {
    /// Starts a program, with its arguments, in a terminal of this width. With the variable `XTERM_VERSION` the terminal
    /// cuts rows off when it becomes narrower, as xterm does.
    pub(crate) fn start(
        test_env: &TestEnv,
        line: &[&str],
        variables: &BTreeMap<String, String>,
        columns: u16,
    ) -> Self {
        let (pty, pts) = pty_process::blocking::open().unwrap();
        pty.resize(Size::new(ROWS, columns)).unwrap();
        let child = Command::new(line[0])
            .args(&line[1..])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", test_env.path())
            .env("TERM", "xterm-256color")
            .envs(variables)
            .spawn(pts)
            .unwrap();
        let on_resize =
            if variables.contains_key("XTERM_VERSION") { OnResize::Cut } else { OnResize::Reflow };
        let pty = Arc::new(pty);
        let screen = Emulator::new(columns, ROWS, on_resize);
        let seen = Arc::new(Mutex::new(Seen { screen, bytes: Vec::new(), is_complete: false }));
        let (output, record) = (Arc::clone(&pty), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // Reading fails once the program has ended.
            while let Ok(count @ 1..) = (&*output).read(&mut bytes) {
                let mut seen = record.lock();
                seen.screen.write(&bytes[..count]);
                seen.bytes.extend_from_slice(&bytes[..count]);
            }
            record.lock().is_complete = true;
        });
        Self { child, pty, seen }
    }

    /// Opens the conversation of the user `ada` in `roundhouse chat` that has the terminal's width for a name.
    pub(crate) async fn open_chat(fleet: &Fleet, columns: u16, variables: &[(&str, &str)]) -> Self {
        Self::open_chat_about(fleet, &format!("wide-{columns}"), columns, variables).await
    }

    /// Opens a conversation of the user `ada` in `roundhouse chat`, and waits for its prompt.
    pub(crate) async fn open_chat_about(
        fleet: &Fleet,
        task: &str,
        columns: u16,
        variables: &[(&str, &str)],
    ) -> Self {
        let folder = fleet.folder().to_str().unwrap();
        let line = [BINARY, "chat", "--user", "ada", "--dir", folder, "--task", task];
        let mut environment = fleet.variables.clone();
        environment.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let mut terminal = Self::start(&fleet.test_env, &line, &environment, columns);
        terminal.wait_for(">").await;
        terminal
    }

    /// Sends bytes, as the keyboard does.
    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) {
        (&*self.pty).write_all(bytes.as_ref()).unwrap();
    }

    /// Types a line and sends it.
    pub(crate) fn enter(&self, line: &str) {
        self.send(format!("{line}\r"));
    }

    /// Pastes text, as most terminals do: marked, and with carriage returns for line breaks.
    pub(crate) fn paste(&self, text: &str) {
        self.paste_as_it_is(&text.replace('\n', "\r"));
    }

    /// Pastes text with its own line breaks.
    pub(crate) fn paste_as_it_is(&self, text: &str) {
        self.send(format!("\x1b[200~{text}\x1b[201~"));
    }

    /// Changes the width, as a person does who drags the window's border, once all is drawn: what a program has begun
    /// to write for one width and a terminal shows in another, nobody can set right.
    pub(crate) async fn resize(&self, columns: u16) {
        eventually("all is drawn", async || {
            // What the program writes for the new size must not be shown in the old one.
            let mut seen = self.seen.lock();
            // The cursor is shown again after all else.
            seen.bytes.ends_with(b"\x1b[?25h").then_some(())?;
            seen.screen.resize(columns, ROWS);
            self.pty.resize(Size::new(ROWS, columns)).unwrap();
            Some(())
        })
        .await;
    }

    /// All rows, with those that have scrolled out.
    pub(crate) fn rows(&self) -> Vec<String> {
        self.seen.lock().screen.rows()
    }

    /// The rows on the screen.
    pub(crate) fn screen_rows(&self) -> Vec<String> {
        self.seen.lock().screen.screen_rows()
    }

    /// The row of the cursor up to it.
    pub(crate) fn text_before_cursor(&self) -> String {
        self.seen.lock().screen.text_before_cursor()
    }

    /// The text of all rows, with single spaces, so that it does not depend on where lines are broken.
    pub(crate) fn text(&self) -> String {
        self.rows().join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// What was written, with its escape sequences.
    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().bytes).into_owned()
    }

    /// Waits until the text contains `words`; returns it.
    pub(crate) async fn wait_for(&mut self, words: &str) -> String {
        self.wait_for_count(words, 1).await
    }

    /// Waits until the text contains `words` this many times; returns it.
    pub(crate) async fn wait_for_count(&mut self, words: &str, count: usize) -> String {
        let start = Instant::now();
        loop {
            let text = self.text();
            if text.matches(words).count() >= count {
                return text;
            }
            let ended = self.child.try_wait().unwrap();
            let shown = || self.rows().join("\n");
            assert!(ended.is_none(), "no {words:?}, but it ended with {ended:?}:\n{}", shown());
            assert!(start.elapsed() < DEADLINE, "no {words:?} within {DEADLINE:?}:\n{}", shown());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the text no longer contains `words`.
    pub(crate) async fn wait_without(&self, words: &str) {
        eventually(&format!("the terminal no longer shows {words:?}"), async || {
            (!self.text().contains(words)).then_some(())
        })
        .await;
    }

    /// Whether the terminal edits and shows lines itself, as a shell expects it to.
    pub(crate) fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&*self.pty).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// The program's process.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Waits for the end of the program, and for the last of its output.
    pub(crate) async fn wait_for_exit(&mut self) -> ExitStatus {
        eventually("the program's output ends", async || self.seen.lock().is_complete.then_some(())).await;
        eventually("the program ends", async || self.child.try_wait().unwrap()).await
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
