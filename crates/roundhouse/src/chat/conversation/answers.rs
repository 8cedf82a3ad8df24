//! The agent's requests, and the answers that are given here.

use std::time::Instant;

use api::ErrorCode;
use api::engine::HitlRespond;
use api::event::HitlRequest;

use super::commands::Done;
use super::{Conversation, Input, Outcome, Phase};
use crate::chat::answer_parser::parse_answer;
use crate::client::ClientError;
use crate::remote::Remote;

/// A request that awaits an answer from this terminal.
pub(super) struct OpenQuestion {
    pub(super) request: HitlRequest,
    pub(super) shown_at: Instant,
}

/// What became of an answer.
pub(super) enum AnswerOutcome {
    Accepted,
    /// Somebody else has answered, or the turn has ended.
    NotNeeded,
    /// It was refused, and another one is needed.
    Refused(String),
}

impl Conversation {
    /// Shows a request of the agent, and waits for an answer if it needs one.
    pub(super) fn ask(&mut self, request: HitlRequest, is_open: bool) {
        self.close_question();
        self.screen.question(&request);
        if is_open && self.session.phase != Phase::Cancelling {
            self.await_answer(OpenQuestion { request, shown_at: Instant::now() });
        }
    }

    fn await_answer(&mut self, question: OpenQuestion) {
        self.screen.answer_hint(&question.request);
        self.session.phase = Phase::Asked;
        self.has_prompt = false;
        if let Input::Editor(input) = &mut self.input {
            input.put_draft_aside();
        }
        self.question = Some(question);
    }

    /// The open question needs no answer any more.
    pub(super) fn close_question(&mut self) {
        if self.question.take().is_none() {
            return;
        }
        self.resume_after_question();
    }

    fn resume_after_question(&mut self) {
        if self.session.phase == Phase::Asked {
            self.session.phase = Phase::Running;
        }
        if let Input::Editor(input) = &mut self.input {
            input.restore_draft();
        }
    }

    /// Sends a line as the answer to the open question, if it can be one.
    pub(super) fn answer(&mut self, line: &str) {
        let Some(question) = self.question.take() else { return };
        let answer = match parse_answer(&question.request, line) {
            Ok(answer) => answer,
            Err(instead) => {
                self.screen.note(&instead);
                self.question = Some(question);
                return;
            }
        };
        self.answering = Some(question);
        self.resume_after_question();
        let remote = self.remote.clone();
        self.spawn(async move { Done::Answered(respond(&remote, &answer).await) });
    }

    /// The engine has taken the answer, or has not.
    pub(super) fn handle_answered(&mut self, outcome: AnswerOutcome) {
        let Some(question) = self.answering.take() else { return };
        match outcome {
            AnswerOutcome::Accepted => self.last_answered = Some(question.request.request_id),
            AnswerOutcome::NotNeeded => self.screen.note("This no longer needs an answer."),
            AnswerOutcome::Refused(why) => {
                self.fail(Outcome::Failed, &why);
                if self.session.phase == Phase::Running {
                    self.await_answer(question);
                }
            }
        }
    }
}

async fn respond(remote: &Remote, answer: &HitlRespond) -> AnswerOutcome {
    match remote.call(async |engine| engine.respond(answer).await).await {
        Ok(()) => AnswerOutcome::Accepted,
        Err(ClientError::Refused { code: ErrorCode::HitlNotPending, .. }) => AnswerOutcome::NotNeeded,
        Err(ClientError::Refused { message, .. }) => AnswerOutcome::Refused(message),
        Err(error) => AnswerOutcome::Refused(format!("{:#}", anyhow::Error::new(error))),
    }
}
