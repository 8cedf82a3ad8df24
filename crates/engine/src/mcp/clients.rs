//! Clients of tool servers: one per server, made when it is first needed and gone when it is idle.
//!
//! A server is not trusted: whatever it does, a call ends in time with a reason, and the next one gets a client that
//! works. Nothing that a server may have done already is asked of it again, unless it is the same twice.

mod call;
mod connect;
mod content;
mod elicitation;
mod elicitation_router;
mod failure;
#[cfg(test)]
mod fixture;
mod http;
mod http_sse;
mod session;
mod stdio;
mod transport_guard;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::CallId;
use contract::assets::ConnectionStatus;
use leash::Sandbox;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::connections::Connections;
use super::request_auth::{AuthError, RequestAuth};
use super::{SERVER_CONNECT_TIMEOUT, ToolDefinition};
use crate::catalog::McpServerSpec;
use crate::tools::Question;

use call::Call;
use connect::{Connector, NewSession};
use failure::CallFailure;
use session::Session;

/// The most bytes of a message of a server.
const MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;
/// How long a client is kept that nobody needs.
const IDLE_TIMEOUT: Duration = Duration::from_mins(5);
/// Why something fails while its connection is removed or renewed.
const CONNECTION_ENDED: &str = "the connection was ended";

/// See the module.
#[derive(Clone)]
pub(super) struct Clients(Arc<Inner>);

struct Inner {
    connections: Arc<Connections>,
    sandbox: Option<Arc<Sandbox>>,
    timeouts: Timeouts,
    slots: Mutex<HashMap<String, Arc<ClientSlot>>>,
}

/// How long things may take.
#[derive(Clone, Copy)]
struct Timeouts {
    /// That nobody needs a client.
    idle: Duration,
    /// That a server is connected.
    connect: Duration,
}

/// A server's place among the clients.
#[derive(Default)]
struct ClientSlot {
    /// Ends whatever is in it.
    cancellation: CancellationToken,
    /// Held while a client is made: who needs it too waits for that.
    connector: tokio::sync::Mutex<Connector>,
    session: Mutex<Option<Arc<Session>>>,
}

/// A call of a tool.
#[derive(Clone)]
pub(super) struct ToolCall<'a> {
    pub(super) id: CallId,
    /// The tool's name at the server.
    pub(super) tool: &'a str,
    pub(super) input: Value,
    /// What a person answered to what the server asked last, if it asked.
    pub(super) answer: Option<&'a str>,
    /// Whether there is a person who can be asked.
    pub(super) may_elicit: bool,
    /// Whether doing it twice is as good as once.
    pub(super) idempotent: bool,
}

/// How far a call came.
#[derive(Debug)]
pub(super) enum CallOutcome {
    /// To its end: what the model is told.
    Done(String),
    /// To a question for a person. Called again with the same id and the answer, it goes on.
    Ask(Question),
}

/// Why a server did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClientError {
    /// It cannot be reached, does not answer, answers nonsense, or refuses.
    #[error("{0}")]
    Failed(String),
    /// It does not take what shows it who the user is, or wants more leave.
    #[error("{0}")]
    Unauthorized(String),
    /// The tool says that it failed.
    #[error("{0}")]
    Tool(String),
    /// What shows it who the user is cannot be had.
    #[error(transparent)]
    Auth(#[from] AuthError),
}

/// Who wants a client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientPurpose {
    /// The user connects the server: what there is about it is put aside.
    Connect,
    /// The agent calls a tool.
    Call,
}

impl Clients {
    pub(super) fn new(connections: Arc<Connections>, leash: Option<Arc<Sandbox>>) -> Self {
        Self::with_timeouts(
            connections,
            leash,
            Timeouts { idle: IDLE_TIMEOUT, connect: SERVER_CONNECT_TIMEOUT },
        )
    }

    fn with_timeouts(connections: Arc<Connections>, leash: Option<Arc<Sandbox>>, times: Timeouts) -> Self {
        Self(Arc::new(Inner { connections, sandbox: leash, timeouts: times, slots: Mutex::default() }))
    }

    /// Asks a server for its tools; a client is made where there is none.
    pub(super) async fn list_tools(
        &self,
        spec: &Arc<McpServerSpec>,
        access: RequestAuth,
    ) -> Result<Vec<ToolDefinition>, ClientError> {
        loop {
            match self.client(spec, &access, ClientPurpose::Connect).await? {
                (_, Some(tools)) => return Ok(tools),
                (live, None) => {
                    let Some(_in_use) = live.acquire() else { continue };
                    match live.list_tools().await {
                        // It may be the client's own fault: a new one shows.
                        Err(error) => live.transport_state.end(error.to_string()),
                        listed => return listed,
                    }
                }
            }
        }
    }

    /// Calls a tool of a server. Dropped, the call is cancelled.
    pub(super) async fn call(
        &self,
        spec: &Arc<McpServerSpec>,
        access: RequestAuth,
        call: ToolCall<'_>,
    ) -> Result<CallOutcome, ClientError> {
        if let Some(answer) = call.answer {
            return self.resume_call(spec, access, &call, answer).await;
        }
        let mut again = true;
        loop {
            let found = self.client_for_call(spec, &access).await;
            let (live, is_new) = found.map_err(|error| with_server_name(spec, error))?;
            let Some(in_use) = live.acquire() else { continue };
            let sent = Call::send(&live, &call).await;
            let gone = match sent {
                Ok(sent) => match drive_call(&live, sent, &call).await {
                    Ok(called) => return Ok(called),
                    Err(lost) => lost,
                },
                Err(lost) => lost,
            };
            drop(in_use);
            match gone {
                CallFailure::NotSent(reason) if again && !is_new => live.transport_state.end(reason),
                // Not where it was disconnected meanwhile, or is another one by now.
                CallFailure::OutcomeUnknown(_)
                    if again && call.idempotent && self.0.connections.identity_matches(spec) => {}
                lost => {
                    if let CallFailure::Unauthorized(reason) = &lost {
                        live.transport_state.end(reason.as_str());
                    }
                    return Err(self.call_error(spec, &access, &call, lost).await);
                }
            }
            again = false;
        }
    }

    /// Ends the client of a server, if there is one; what it has under way fails.
    pub(super) fn drop_client(&self, server: &str) {
        let slot = self.slots().remove(server);
        if let Some(slot) = slot {
            slot.cancellation.cancel();
        }
    }

    /// The tools that the client of a server has listed are on record: from now on changes of them are.
    pub(super) fn mark_tools_recorded(&self, server: &str) {
        let slot = self.slots().get(server).cloned();
        if let Some(live) = slot.and_then(|slot| slot.session().clone()) {
            live.tools_recorded.cancel();
        }
    }

    /// Gives up a call that waits for a person, if it does: it is cancelled at its server.
    pub(super) fn cancel_suspended(&self, call: CallId) {
        let slots: Vec<_> = self.slots().values().cloned().collect();
        for slot in slots {
            let live = slot.session().clone();
            drop(live.and_then(|live| live.take_suspended(call)));
        }
    }

    /// Ends all of them.
    pub(super) fn close(&self) {
        let slots = std::mem::take(&mut *self.slots());
        for slot in slots.into_values() {
            slot.cancellation.cancel();
        }
    }

    /// Goes on with a call that waited for a person's answer.
    async fn resume_call(
        &self,
        spec: &Arc<McpServerSpec>,
        access: RequestAuth,
        call: &ToolCall<'_>,
        answer: &str,
    ) -> Result<CallOutcome, ClientError> {
        let slot = self.slots().get(&spec.name).cloned();
        let live = slot.and_then(|slot| slot.session().clone());
        let Some((live, mut suspended)) =
            live.and_then(|live| live.take_suspended(call.id).map(|call| (live, call)))
        else {
            let reason = "it waits for the answer no more".to_owned();
            return Err(self.call_error(spec, &access, call, CallFailure::OutcomeUnknown(reason)).await);
        };
        let _in_use = live.acquire();
        if let Some(question) = suspended.submit_answer(&live, answer) {
            live.suspend(call.id, suspended);
            return Ok(CallOutcome::Ask(question));
        }
        match drive_call(&live, suspended, call).await {
            Ok(called) => Ok(called),
            Err(lost) => Err(self.call_error(spec, &access, call, lost).await),
        }
    }

    /// A client for a call, and whether it is new; how the connection fares by that is taken down.
    async fn client_for_call(
        &self,
        spec: &Arc<McpServerSpec>,
        access: &RequestAuth,
    ) -> Result<(Arc<Session>, bool), ClientError> {
        let connections = &self.0.connections;
        match self.client(spec, access, ClientPurpose::Call).await {
            Ok((live, None)) => Ok((live, false)),
            Ok((live, Some(tools))) => {
                connections.record_recovery(spec, tools).await;
                live.tools_recorded.cancel();
                Ok((live, true))
            }
            Err(error) => {
                match &error {
                    ClientError::Failed(reason) if reason != CONNECTION_ENDED => {
                        connections.record_failure(&spec.name, ConnectionStatus::Error, reason).await;
                    }
                    ClientError::Unauthorized(reason) => {
                        connections.record_failure(&spec.name, access.status_if_refused(), reason).await;
                    }
                    ClientError::Failed(_) | ClientError::Tool(_) | ClientError::Auth(_) => {}
                }
                Err(error)
            }
        }
    }

    /// The client of a server; with the server's tools where it was made just now.
    async fn client(
        &self,
        spec: &Arc<McpServerSpec>,
        access: &RequestAuth,
        purpose: ClientPurpose,
    ) -> Result<(Arc<Session>, Option<Vec<ToolDefinition>>), ClientError> {
        let slot = Arc::clone(self.slots().entry(spec.name.clone()).or_default());
        tokio::select! {
            biased;
            () = slot.cancellation.cancelled() => Err(ClientError::Failed(CONNECTION_ENDED.into())),
            made = self.client_in_slot(&slot, spec, access, purpose) => made,
        }
    }

    async fn client_in_slot(
        &self,
        slot: &Arc<ClientSlot>,
        spec: &Arc<McpServerSpec>,
        access: &RequestAuth,
        purpose: ClientPurpose,
    ) -> Result<(Arc<Session>, Option<Vec<ToolDefinition>>), ClientError> {
        let mut record = slot.connector.lock().await;
        let there = slot.session().clone();
        if let Some(live) = there.filter(|live| live.matches(spec, access)) {
            return Ok((live, None));
        }
        record.wait_to_start(purpose == ClientPurpose::Connect).await?;
        let (leash, times) = (self.0.sandbox.as_deref(), self.0.timeouts);
        // Large, and seldom run.
        let connecting = Box::pin(record.connect(spec, access, leash, &slot.cancellation, times.connect));
        let connected = connecting.await;
        let NewSession { session: live, service, tools } =
            connected.inspect_err(|error| record.record_failure(error.to_string()))?;
        if let Some(old) = slot.session().replace(Arc::clone(&live)) {
            old.transport_state.end("it was connected anew");
        }
        let (slot, kept) = (Arc::clone(slot), Arc::clone(&live));
        let connections = Arc::clone(&self.0.connections);
        tokio::spawn(async move {
            kept.run_until_idle(service, &connections, times.idle).await;
            slot.connector.lock().await.record_end(&kept);
            slot.session().take_if(|live| Arc::ptr_eq(live, &kept));
        });
        Ok((live, Some(tools)))
    }

    /// What the model is told of a call without a result.
    async fn call_error(
        &self,
        spec: &McpServerSpec,
        access: &RequestAuth,
        call: &ToolCall<'_>,
        lost: CallFailure,
    ) -> ClientError {
        match lost {
            CallFailure::Refused(error) => with_server_name(spec, error),
            CallFailure::NotSent(reason) => {
                self.0.connections.record_failure(&spec.name, ConnectionStatus::Error, &reason).await;
                with_server_name(spec, ClientError::Failed(reason))
            }
            CallFailure::Unauthorized(reason) => {
                self.0.connections.record_failure(&spec.name, access.status_if_refused(), &reason).await;
                with_server_name(spec, ClientError::Unauthorized(reason))
            }
            CallFailure::TimedOut(reason) | CallFailure::OutcomeUnknown(reason) => {
                let unknown = format!(
                    "Whether `{}` took effect is not known: look before you call it again",
                    call.tool
                );
                with_server_name(spec, ClientError::Failed(format!("{reason}. {unknown}")))
            }
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<String, Arc<ClientSlot>>> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSlot {
    fn session(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Goes on with a call; where it asks something it waits, and the client with it.
async fn drive_call(
    live: &Arc<Session>,
    mut under_way: Call,
    call: &ToolCall<'_>,
) -> Result<CallOutcome, CallFailure> {
    let called = under_way.drive(live).await?;
    if matches!(called, CallOutcome::Ask(_)) {
        live.suspend(call.id, under_way);
    }
    Ok(called)
}

/// Says whose failure it is.
fn with_server_name(spec: &McpServerSpec, error: ClientError) -> ClientError {
    let failed = |reason: String| format!("the tool server `{}` failed: {reason}", spec.name);
    match error {
        ClientError::Failed(reason) => ClientError::Failed(failed(reason)),
        ClientError::Unauthorized(reason) => ClientError::Unauthorized(failed(reason)),
        ClientError::Tool(text) => ClientError::Tool(text),
        ClientError::Auth(error) => ClientError::Auth(error),
    }
}

#[cfg(test)]
#[path = "clients_tests.rs"]
mod tests;
