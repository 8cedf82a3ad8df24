//! The commands that reach a turn: cancel, steer and the user's answers. An active turn handles them wherever
//! it waits, so everything that happens to it has one order.

use std::pin::pin;
use std::sync::Arc;

use api::event::Event;
use api::{HitlId, MessageId};
use llm::{Content, Gateway};
use store::WriteError;
use store::event_log::Commit;
use store::steps::Step;
use tokio_util::sync::CancellationToken;

use super::hitl::{Decision, HitlResponse, Resolution};
use super::interrupt::{Interrupt, reply_committed};
use super::journal::Journal;
use super::thread::PendingHitl;
use super::turn_registry::{Command, Commands, Reply};
use super::{AgentError, AgentSnapshot};

/// The commands of a turn, and what is needed to handle them.
pub(super) struct Inbox {
    commands: Commands,
    /// Cancelled when the engine stops.
    stopping: CancellationToken,
    gateway: Arc<Gateway>,
    snapshot: Arc<AgentSnapshot>,
}

/// What a turn that waits for its user has received.
pub(super) enum Received {
    /// A command.
    Command(Command),
    /// The time is up.
    Nothing,
    /// The engine is stopping.
    Stop,
}

impl Inbox {
    pub(super) fn new(
        commands: Commands,
        stopping: CancellationToken,
        gateway: Arc<Gateway>,
        snapshot: Arc<AgentSnapshot>,
    ) -> Self {
        Self { commands, stopping, gateway, snapshot }
    }

    /// Whether the engine is stopping.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Returns [`Interrupt::EngineStopping`] if the engine is stopping. Called between two steps.
    pub(super) fn check_stopping(&self) -> Result<(), Interrupt> {
        if self.is_stopping() { Err(Interrupt::EngineStopping) } else { Ok(()) }
    }

    /// Waits for `work` and handles the commands that arrive meanwhile.
    pub(super) async fn run_while_handling_commands<F: Future>(
        &mut self,
        journal: &mut Journal,
        work: F,
    ) -> Result<F::Output, Interrupt> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(command) = self.commands.recv() => self.handle_command(journal, command).await?,
                output = &mut work => return Ok(output),
            }
        }
    }

    /// Like [`Inbox::run_while_handling_commands`], for work that a stop of the engine may abandon.
    pub(super) async fn run_until_stop<F: Future>(
        &mut self,
        journal: &mut Journal,
        work: F,
    ) -> Result<F::Output, Interrupt> {
        let stopping = self.stopping.clone();
        let either = async move {
            tokio::select! {
                biased;
                () = stopping.cancelled() => None,
                output = work => Some(output),
            }
        };
        self.run_while_handling_commands(journal, either).await?.ok_or(Interrupt::EngineStopping)
    }

    /// Handles the commands that have arrived.
    pub(super) async fn handle_arrived(&mut self, journal: &mut Journal) -> Result<(), Interrupt> {
        while let Ok(command) = self.commands.try_recv() {
            self.handle_command(journal, command).await?;
        }
        Ok(())
    }

    /// Closes the inbox: commands sent from here on find no turn.
    pub(super) fn close(&mut self) {
        self.commands.close();
    }

    /// Waits for a command until `deadline`, without handling it.
    pub(super) async fn receive_until(&mut self, deadline: impl Future<Output = ()>) -> Received {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => Received::Stop,
            command = self.commands.recv() => command.map_or(Received::Stop, Received::Command),
            () = deadline => Received::Nothing,
        }
    }

    /// Refuses all commands until `deadline`, because none could be recorded. Returns `false` if the engine
    /// is stopping.
    pub(super) async fn refuse_until(&mut self, deadline: impl Future<Output = ()>) -> bool {
        let mut deadline = pin!(deadline);
        loop {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return false,
                Some(command) = self.commands.recv() => command.refuse(),
                () = &mut deadline => return true,
            }
        }
    }

    /// Handles a command sent to the turn.
    pub(super) async fn handle_command(
        &self,
        journal: &mut Journal,
        command: Command,
    ) -> Result<(), Interrupt> {
        match command {
            Command::Cancel(reply) => Err(Interrupt::Cancelled(reply)),
            Command::Steer(message, reply) => {
                let message_id = MessageId::new();
                // A steering message is for the agent that the user talks to, even while a sub-agent is
                // running.
                let step = Step::Steered { message_id, message };
                let committed = journal.commit_to_turn(Commit::new(), vec![step], Vec::new()).await;
                Ok(reply_committed(reply, message_id, committed)?)
            }
            Command::Respond(response, reply, _busy_guard) => self.respond(journal, response, reply).await,
        }
    }

    /// Handles a user's answer.
    async fn respond(
        &self,
        journal: &mut Journal,
        response: HitlResponse,
        reply: Reply<HitlId>,
    ) -> Result<(), Interrupt> {
        let (pending, decision, attachments) = match self.validate_response(journal, &response) {
            Ok(validated) => validated,
            Err(error) => {
                // The caller may be gone.
                let _ = reply.send(Err(error));
                return Ok(());
            }
        };
        let request_id = pending.request_id;
        let resolution = Resolution::new(
            journal.thread(),
            &self.snapshot.toolbox,
            &pending,
            decision,
            response,
            attachments,
        );
        let committed = commit_resolution(journal, resolution).await;
        Ok(reply_committed(reply, request_id, committed)?)
    }

    /// Returns the request that is answered, the decision, and the attachments of the answer.
    fn validate_response(
        &self,
        journal: &Journal,
        response: &HitlResponse,
    ) -> Result<(PendingHitl, Decision, Vec<Content>), AgentError> {
        let (pending, decision) = response.decide(journal.thread(), &self.snapshot.toolbox)?;
        // The model that the turn goes on with.
        let routes = self.gateway.routes().ok();
        let chain = routes.map(|routes| routes.chain_for(journal.thread().turn().model()));
        let route = chain.and_then(|chain| chain.into_iter().next());
        let model = route.as_ref().map(|route| &*route.model);
        let attachments = response.attachments(model)?;
        Ok((pending, decision, attachments))
    }
}

/// Commits the resolution of a request. The next pending request is shown to the user with it.
async fn commit_resolution(journal: &mut Journal, resolution: Resolution) -> Result<(), WriteError> {
    let Resolution { mut commit, steps, mut events, next } = resolution;
    if let Some(next) = next {
        let request = journal.hitl_request(next.request_id, next.kind, next.question, next.options);
        events.push(Event::HitlRequest(request.clone()));
        commit = commit.open_hitl_request(request);
    }
    journal.commit_to_turn(commit, steps, events).await
}
