//! What the commands do, and what they have led to.

use api::engine::{Execute, TaskMessage};
use api::{ErrorCode, TaskId};
use uuid::Uuid;

use super::{AnswerOutcome, Conversation, Input, Outcome, Phase};
use crate::chat::command::{Command, help};
use crate::chat::look_up;
use crate::chat::opening::{self, Opening};
use crate::chat::paper::row_columns;
use crate::client::ClientError;
use crate::remote::Remote;
use crate::terminal::single_line;

/// The name of the model that the configuration chooses.
const DEFAULT_MODEL: &str = "default";

/// What a request beside the turn has led to.
pub(super) enum Done {
    Nothing,
    Shown(Result<String, ClientError>),
    Answered(AnswerOutcome),
    NotCancelled(ClientError),
    Opened(Result<Opening, ClientError>),
    /// The message that is to be written or answered again, with its text.
    Found(Again, Result<Option<(TaskMessage, String)>, ClientError>),
    /// A model was named, and exists or does not.
    Model(String, Result<bool, ClientError>),
}

/// What is to be done with the last message.
pub(super) enum Again {
    /// Answer it again.
    Retry,
    /// Replace it, by this text or by what is written next.
    Edit(Option<String>),
}

impl Conversation {
    pub(super) fn run_command(&mut self, command: Command) {
        let (remote, task) = (self.remote.clone(), self.task.clone());
        match command {
            Command::Help => self.screen.listing(&help(self.screen.paper.is_live(), row_columns())),
            Command::New(name) => self.open(name.unwrap_or_else(|| self.new_task())),
            Command::Open(name) => self.open(name),
            Command::Tasks => self.spawn(async move { Done::Shown(look_up::tasks(&remote, &task).await) }),
            Command::Memory(query) => self
                .spawn(async move { Done::Shown(look_up::memory(&remote, &task, query.as_deref()).await) }),
            Command::Files(folder) => self.spawn(async move {
                Done::Shown(look_up::files(&remote, folder.as_deref().unwrap_or_default()).await)
            }),
            Command::Model(None) => {
                let chosen = self.model.clone();
                self.spawn(async move { Done::Shown(look_up::models(&remote, chosen.as_deref()).await) });
            }
            Command::Model(Some(name)) if name == DEFAULT_MODEL => {
                self.model = None;
                self.screen.note("The configuration chooses the model.");
            }
            Command::Model(Some(name)) => self.spawn(async move {
                let found = look_up::has_model(&remote, &name).await;
                Done::Model(name, found)
            }),
            Command::Edit(None) if !self.screen.paper.is_live() => {
                self.screen.note("Write the new text behind /edit.");
            }
            Command::Edit(text) => self.find_last(remote, task, Again::Edit(text)),
            Command::Retry => self.find_last(remote, task, Again::Retry),
            // Leaving is decided by the session.
            Command::Quit => {}
        }
    }

    fn find_last(&mut self, remote: Remote, task: TaskId, again: Again) {
        // Nothing else may begin a turn meanwhile.
        self.session.phase = Phase::Running;
        self.spawn(async move {
            let found = opening::last_message(&remote, &task).await;
            Done::Found(again, found)
        });
    }

    fn open(&mut self, task: TaskId) {
        self.session.phase = Phase::Running;
        let remote = self.remote.clone();
        self.spawn(async move { Done::Opened(opening::open(&remote, task).await) });
    }

    /// A name that no conversation has: the random end of an id.
    fn new_task(&self) -> TaskId {
        let id = Uuid::now_v7().simple().to_string();
        let end = id.get(id.len() - 8..).unwrap_or(&id);
        TaskId::new(format!("chat-{end}")).unwrap_or_else(|_| self.task.clone())
    }

    pub(super) fn handle_done(&mut self, done: Done) {
        self.has_prompt = false;
        match done {
            Done::Nothing => {}
            Done::Shown(Ok(text)) => self.screen.listing(&text),
            Done::Answered(outcome) => self.handle_answered(outcome),
            Done::NotCancelled(error) => self.handle_not_cancelled(error),
            Done::Opened(Ok(opening)) => self.handle_opened(opening),
            Done::Found(again, Ok(Some(found))) => self.handle_found(again, found),
            Done::Found(_, Ok(None)) => {
                self.session.phase = Phase::Idle;
                self.screen.note("There is no message of yours in this conversation.");
                self.take_from_queue();
            }
            Done::Opened(Err(error)) | Done::Found(_, Err(error)) => self.give_up(error),
            Done::Model(name, Ok(true)) => {
                self.screen.note(&format!("{} answers from now on.", single_line(&name, usize::MAX)));
                self.model = Some(name);
            }
            Done::Model(name, Ok(false)) => {
                self.screen.problem(&format!("There is no model {name:?}; /model lists those there are."));
            }
            Done::Shown(Err(error)) | Done::Model(_, Err(error)) => self.report(error),
        }
    }

    fn handle_opened(&mut self, opening: Opening) {
        let task = single_line(opening.task.as_str(), usize::MAX);
        let state = if opening.messages.is_empty() && !opening.is_running { ", which is new" } else { "" };
        self.screen.note(&format!("Conversation `{task}`{state}."));
        self.show_opening(opening);
    }

    fn handle_found(&mut self, again: Again, (message, text): (TaskMessage, String)) {
        self.session.phase = Phase::Idle;
        match again {
            Again::Retry => {
                self.screen.echo(&text, false);
                let id = message.message_id.to_string();
                let retry = Execute { retry_message_id: Some(id), ..Execute::new(self.task.clone(), "") };
                self.send(retry);
            }
            Again::Edit(Some(text)) => {
                self.editing = Some(message.message_id);
                self.send_text(text);
            }
            Again::Edit(None) => {
                self.editing = Some(message.message_id);
                self.screen.note("Change your message; Enter sends it, Ctrl-C leaves it as it was.");
                if let Input::Editor(input) = &mut self.input {
                    input.editor.set_text(text);
                }
            }
        }
    }

    fn handle_not_cancelled(&mut self, error: ClientError) {
        // The turn has ended by itself, or its end is about to arrive.
        if matches!(error, ClientError::Refused { code: ErrorCode::TaskNotRunning, .. }) {
            return;
        }
        if self.session.phase == Phase::Cancelling {
            self.session.phase = Phase::Running;
        }
        self.report(error);
    }

    fn give_up(&mut self, error: ClientError) {
        self.session.phase = Phase::Idle;
        self.queue.clear();
        self.report(error);
    }

    fn report(&mut self, error: ClientError) {
        let problem = match error {
            ClientError::Refused { message, .. } => message,
            error @ ClientError::Failed(_) => format!("{:#}", anyhow::Error::new(error)),
        };
        self.fail(Outcome::Failed, &problem);
    }
}
