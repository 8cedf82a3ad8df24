//! The turn that is read: what its events lead to, and what follows its end.

use api::event::{Event, HitlResolved, Lifecycle};

use super::{Conversation, OpenQuestion, Outcome, Phase, TurnUpdate, Typed};
use crate::terminal::single_line;

impl Conversation {
    pub(super) fn handle_update(&mut self, update: TurnUpdate) {
        match update {
            TurnUpdate::Event(event) => {
                self.follow_event(&event.event);
                self.screen.event(&event);
                self.last_ts = self.last_ts.max(event.ts);
            }
            TurnUpdate::Request { event, request, is_open } => {
                self.last_ts = self.last_ts.max(event.ts);
                self.screen.event(&event);
                self.ask(request, is_open);
            }
            TurnUpdate::RestFirst => {
                self.reading.is_rest = true;
                self.screen.note("The rest of the previous turn:");
            }
            TurnUpdate::OwnTurn => {
                self.reading.is_rest = false;
                self.screen.forget_answer();
            }
            TurnUpdate::Away => {
                if !std::mem::replace(&mut self.reading.is_away, true) && !self.screen.paper.is_live() {
                    self.screen.note("reconnecting …");
                }
            }
            TurnUpdate::Back => self.reading.is_away = false,
            TurnUpdate::Ended(ended) => self.end_turn(ended),
        }
    }

    fn follow_event(&mut self, event: &Event) {
        match event {
            Event::HitlResolved(resolved) => self.handle_resolved(resolved),
            // How the turn before ended is not what a program wants to know of its own message.
            _ if self.reading.is_rest => {}
            Event::Error(_) => self.note_outcome(Outcome::TurnFailed),
            Event::ThreadLifecycle(Lifecycle::Cancelled { .. }) => self.note_outcome(Outcome::Cancelled),
            _ => {}
        }
        // An unanswered request is void once the turn has ended.
        if event.ends_turn() {
            self.close_question();
        }
    }

    fn handle_resolved(&mut self, resolved: &HitlResolved) {
        let answer = single_line(&resolved.answer, usize::MAX);
        let is_ours = |question: &OpenQuestion| question.request.request_id == resolved.request_id;
        if self.question.as_ref().is_some_and(is_ours) {
            self.close_question();
            self.screen.note(&format!("Someone else has answered: {answer}"));
        } else if !self.answering.as_ref().is_some_and(is_ours)
            && self.last_answered != Some(resolved.request_id)
        {
            self.screen.note(&format!("Answered: {answer}"));
        }
    }

    fn end_turn(&mut self, ended: anyhow::Result<()>) {
        self.screen.finish_turn();
        self.reading.is_away = false;
        self.reading.is_rest = false;
        self.close_question();
        self.session.phase = Phase::Idle;
        self.has_prompt = false;
        if let Err(error) = ended {
            // The turn may be running, or not: the next message waits for its end.
            self.reading.is_unseen = true;
            self.queue.clear();
            self.fail(Outcome::Failed, &format!("{error:#}"));
        }
        self.take_from_queue();
    }

    /// Sends or runs what has waited, as far as it leaves the conversation idle.
    pub(super) fn take_from_queue(&mut self) {
        while self.session.phase.is_idle()
            && let Some(typed) = self.queue.pop_front()
        {
            match typed {
                Typed::Message(text) => self.send_text(text),
                Typed::Command(command) => self.run_command(command),
                Typed::Mistake(text) => self.screen.problem(&text),
            }
        }
    }
}
