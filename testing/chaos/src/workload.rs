//! The composition of the load.

use clap::ValueEnum;

/// A part of the contract that a run may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Feature {
    /// Permissions and questions.
    Hitl,
    /// `POST /execute/steer`.
    Steer,
    /// `POST /execute/cancel`.
    Cancel,
    /// `edit_message_id`.
    Edit,
    /// `retry_message_id`.
    Retry,
    /// `client_request_id`.
    RequestId,
}

/// How often what happens: probabilities from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// A turn asks for thinking.
    pub thinking: f64,
    /// A model step breaks off and is repeated.
    pub fault: f64,
    /// A model step fails for good.
    pub failure: f64,
    /// A repeated model step says something else than before.
    pub diverges: f64,
    /// A turn has a low cap on its model calls.
    pub call_limited: f64,
    /// A connection is cut by the client.
    pub disconnect: f64,
    /// An end of the engine is a SIGTERM.
    pub sigterm: f64,
    /// A kill comes while the engine starts.
    pub kill_at_start: f64,
    /// A tool call edits a file, which needs the user's permission.
    pub edit_file: f64,
    /// A tool call asks a person.
    pub ask_user: f64,
    /// A person sends two answers at once.
    pub concurrent_answers: f64,
    /// A person lets an agent wait for long.
    pub slow_user: f64,
    /// A turn is steered.
    pub steer: f64,
    /// A turn is cancelled.
    pub cancel: f64,
    /// A turn edits an earlier message.
    pub edit: f64,
    /// A turn retries an earlier message.
    pub retry: f64,
    /// A turn is begun by a request that is safe to repeat.
    pub request_id: f64,
}

impl Workload {
    /// All of the contract.
    pub const fn all_features() -> Self {
        Self {
            thinking: 0.4,
            fault: 0.03,
            failure: 0.002,
            diverges: 0.5,
            call_limited: 0.1,
            disconnect: 0.4,
            sigterm: 0.06,
            kill_at_start: 0.04,
            edit_file: 0.45,
            ask_user: 0.15,
            concurrent_answers: 0.2,
            slow_user: 0.06,
            steer: 0.3,
            cancel: 0.06,
            edit: 0.06,
            retry: 0.06,
            request_id: 0.5,
        }
    }

    /// Without what needs `features`.
    #[must_use]
    pub fn without(mut self, features: &[Feature]) -> Self {
        for feature in features {
            let probabilities: &mut [&mut f64] = match feature {
                Feature::Hitl => &mut [&mut self.edit_file, &mut self.ask_user],
                Feature::Steer => &mut [&mut self.steer],
                Feature::Cancel => &mut [&mut self.cancel],
                Feature::Edit => &mut [&mut self.edit],
                Feature::Retry => &mut [&mut self.retry],
                Feature::RequestId => &mut [&mut self.request_id],
            };
            for probability in probabilities {
                **probability = 0.0;
            }
        }
        self
    }

    /// The kinds of journal steps that turns must have been killed after in a run of full size.
    pub fn expected_steps(&self) -> Vec<&'static str> {
        let mut steps = vec!["opened", "answered", "intended", "resulted"];
        if self.edit_file + self.ask_user > 0.0 {
            steps.extend(["asked", "resolved"]);
        }
        if self.steer > 0.0 {
            steps.push("steered");
        }
        steps
    }

    /// What a client can wait for in order to kill the engine right after it.
    pub fn trigger_events(&self) -> Vec<&'static str> {
        let mut trigger_events = vec![
            "started",
            "resumed",
            "retrying",
            "text_delta",
            "content_block_stop",
            "usage",
            "tool_call",
            "tool_call",
            "tool_result",
            "completed",
            "working_memory_update",
            "model asked",
            "execute accepted",
        ];
        if self.thinking > 0.0 {
            trigger_events.push("thinking_delta");
        }
        if self.edit_file + self.ask_user > 0.0 {
            trigger_events.extend(["hitl_request", "hitl_resolved", "answer accepted"]);
        }
        if self.edit_file > 0.0 {
            trigger_events.extend(["file modified", "file closed", "file moved"]);
        }
        if self.steer > 0.0 {
            trigger_events.push("steer accepted");
        }
        if self.cancel > 0.0 {
            trigger_events.extend(["cancel accepted", "cancelled"]);
        }
        trigger_events
    }
}
