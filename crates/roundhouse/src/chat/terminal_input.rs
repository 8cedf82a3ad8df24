//! The input of a person at a terminal: keys that change the message that is being written.

use api::UserId;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::editor::{Edit, Editor};
use super::history::History;
use super::keys::Decoder;
use super::raw_terminal::{self, RawTerminal};
use crate::error::Failure;

/// The terminal's input.
pub(super) struct TerminalInput {
    pub(super) terminal: RawTerminal,
    pub(super) editor: Editor,
    /// Why the history could not be loaded.
    pub(super) history_error: Option<String>,
    decoder: Decoder,
    reads: mpsc::Receiver<Vec<u8>>,
    resized: Signal,
    continued: Signal,
    /// What was being written when the agent asked something.
    draft: Option<String>,
}

/// What has come from the terminal.
pub(super) enum TerminalEvent {
    /// What the keys have led to, in their order.
    Edits(Vec<Edit>),
    Resized,
    /// The program was stopped, and goes on.
    Continued,
    /// The terminal is gone.
    Gone,
}

impl TerminalInput {
    /// Takes over the terminal.
    pub(super) fn open(user: &UserId) -> Result<Self, Failure> {
        let mut editor = Editor::default();
        let mut history_error = None;
        match History::load(user) {
            Ok(history) => editor.history = history,
            Err(error) => history_error = Some(error.to_string()),
        }
        Ok(Self {
            resized: signal(SignalKind::window_change())?,
            continued: signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?,
            terminal: RawTerminal::enter()?,
            editor,
            history_error,
            decoder: Decoder::default(),
            reads: raw_terminal::spawn_reader(),
            draft: None,
        })
    }

    /// Waits for keys. All that have arrived are applied at once, so that pasted text is shown at once.
    pub(super) async fn next(&mut self) -> TerminalEvent {
        let first = tokio::select! {
            read = self.reads.recv() => read,
            _ = self.resized.recv() => return TerminalEvent::Resized,
            _ = self.continued.recv() => return TerminalEvent::Continued,
        };
        let Some(mut bytes) = first else { return TerminalEvent::Gone };
        while let Ok(more) = self.reads.try_recv() {
            bytes.extend(more);
        }
        let keys = self.decoder.feed(&bytes);
        let edits = keys.into_iter().map(|key| self.editor.apply(key)).filter(|edit| *edit != Edit::None);
        TerminalEvent::Edits(edits.collect())
    }

    /// Puts aside what is being written: it was not written as an answer.
    pub(super) fn put_draft_aside(&mut self) {
        let text = self.editor.take_text();
        if !text.is_empty() {
            self.draft = Some(text);
        }
    }

    /// Brings it back once the question is answered.
    pub(super) fn restore_draft(&mut self) {
        if self.editor.is_empty()
            && let Some(draft) = self.draft.take()
        {
            self.editor.set_text(draft);
        }
    }
}
