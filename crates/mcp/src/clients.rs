//! Clients of MCP servers: one per server, created at first use and closed when idle.
//!
//! A server is not trusted: whatever it does, a call ends in time with a reason, and the next call gets a working
//! client. A request that may already have taken effect is not sent again, unless it is idempotent.

mod call;
mod connect;
mod content;
mod elicitation;
mod elicitation_router;
mod failure;
#[cfg(test)]
#[path = "../tests/unit/clients/fixture.rs"]
mod fixture;
mod http;
mod http_sse;
mod session;
mod stdio;
mod transport_guard;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::CallId;
use api::assets::ConnectionStatus;
use call::Call;
use catalog::McpServerSpec;
use connect::{Connector, NewSession};
use content::CallResult;
use failure::CallFailure;
use parking_lot::Mutex;
use sandbox::Sandbox;
use serde_json::Value;
use session::Session;
use tokio_util::sync::CancellationToken;
use tools::Question;

use super::connections::Connections;
use super::request_auth::{AuthError, RequestAuth};
use super::{SERVER_CONNECT_TIMEOUT, ToolDefinition};

/// The maximum size of a server's message, in bytes.
const MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;
/// How long an unused client is kept.
const IDLE_TIMEOUT: Duration = Duration::from_mins(5);
/// The error of requests whose connection is removed or renewed meanwhile.
const CONNECTION_ENDED: &str = "the connection was ended";

/// The clients of all servers. Clones share them.
#[derive(Clone)]
pub(super) struct Clients(Arc<Inner>);

struct Inner {
    connections: Arc<Connections>,
    sandbox: Option<Arc<Sandbox>>,
    timeouts: Timeouts,
    slots: Mutex<HashMap<String, Arc<ClientSlot>>>,
}

/// Time limits.
#[derive(Clone, Copy)]
struct Timeouts {
    /// How long an unused client is kept.
    idle: Duration,
    /// For connecting to a server.
    connect: Duration,
}

/// The client of one server, if any, and the state of its connection attempts.
#[derive(Default)]
struct ClientSlot {
    /// Ends the client and any attempt to connect.
    cancellation: CancellationToken,
    /// Held while a client is created; others who need it wait.
    connector: tokio::sync::Mutex<Connector>,
    session: Mutex<Option<Arc<Session>>>,
}

/// A call of a server's tool.
#[derive(Clone)]
pub(super) struct ToolCall<'a> {
    pub(super) id: CallId,
    /// The tool's name at the server.
    pub(super) tool: &'a str,
    pub(super) input: Value,
    /// The person's answer to the server's last question, if it asked one.
    pub(super) answer: Option<&'a str>,
    /// Whether a person can be asked.
    pub(super) may_elicit: bool,
    /// Whether a second call has the same effect as one.
    pub(super) idempotent: bool,
}

/// The outcome of a call so far.
#[derive(Debug)]
pub(super) enum CallOutcome {
    /// The server has answered, also if its tool failed.
    Done(CallResult),
    /// The server asks a person a question. A call with the same id and the answer continues it.
    Ask(Question),
}

/// Why a request to a server failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClientError {
    /// The server is unreachable, does not answer, answers nonsense, or refuses.
    #[error("{0}")]
    Failed(String),
    /// The server rejects the credentials, or requires further permissions.
    #[error("{0}")]
    Unauthorized(String),
    /// No credentials are available.
    #[error(transparent)]
    Auth(#[from] AuthError),
}

impl ClientError {
    /// The kind of the error, without what the server says.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Failed(_) => "failed",
            Self::Unauthorized(_) => "unauthorized",
            Self::Auth(_) => "auth",
        }
    }
}

/// The purpose for which a client is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientPurpose {
    /// The user connects the server, which overrides the circuit breaker.
    Connect,
    /// The agent calls a tool.
    Call,
}

impl Clients {
    pub(super) fn new(connections: Arc<Connections>, sandbox: Option<Arc<Sandbox>>) -> Self {
        Self::with_timeouts(
            connections,
            sandbox,
            Timeouts { idle: IDLE_TIMEOUT, connect: SERVER_CONNECT_TIMEOUT },
        )
    }

    fn with_timeouts(
        connections: Arc<Connections>,
        sandbox: Option<Arc<Sandbox>>,
        timeouts: Timeouts,
    ) -> Self {
        Self(Arc::new(Inner { connections, sandbox, timeouts, slots: Mutex::default() }))
    }

    /// Lists a server's tools, creating a client if there is none.
    pub(super) async fn list_tools(
        &self,
        spec: &Arc<McpServerSpec>,
        access: RequestAuth,
    ) -> Result<Vec<ToolDefinition>, ClientError> {
        loop {
            match self.client(spec, &access, ClientPurpose::Connect).await? {
                (_, Some(tools)) => return Ok(tools),
                (session, None) => {
                    let Some(_in_use) = session.acquire() else { continue };
                    match session.list_tools().await {
                        // The existing client may be at fault: the request is repeated with a new one.
                        Err(error) => session.transport_state.end(error.to_string()),
                        listed => return listed,
                    }
                }
            }
        }
    }

    /// Calls a tool of a server. Dropping the future cancels the call.
    pub(super) async fn call(
        &self,
        spec: &Arc<McpServerSpec>,
        access: RequestAuth,
        call: ToolCall<'_>,
    ) -> Result<CallOutcome, ClientError> {
        if let Some(answer) = call.answer {
            return self.resume_call(spec, access, &call, answer).await;
        }
        let mut may_retry = true;
        loop {
            let client = self.client_for_call(spec, &access).await;
            let (session, is_new) = client.map_err(|error| with_server_name(spec, error))?;
            let Some(in_use) = session.acquire() else { continue };
            if spec.is_of_user() {
                // A new client has listed the tools: what was approved may have changed just now.
                let recorded = session.wait_tools_recorded().await;
                recorded.map_err(|error| with_server_name(spec, error))?;
                self.0.connections.check_approved(spec, call.tool)?;
            }
            let sent = Call::send(&session, &call).await;
            let failure = match sent {
                Ok(sent) => match drive_call(&session, sent, &call).await {
                    Ok(outcome) => return Ok(outcome),
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            drop(in_use);
            match failure {
                CallFailure::NotSent(reason) if may_retry && !is_new => session.transport_state.end(reason),
                // Not if the server was disconnected meanwhile, or the name now stands for another one.
                CallFailure::OutcomeUnknown(_)
                    if may_retry && call.idempotent && self.0.connections.identity_matches(spec) => {}
                failure => {
                    if let CallFailure::Unauthorized(reason) = &failure {
                        session.transport_state.end(reason.as_str());
                    }
                    return Err(self.call_error(spec, &access, &call, failure).await);
                }
            }
            may_retry = false;
        }
    }

    /// Closes the client of a server, if any; its pending requests fail.
    pub(super) fn drop_client(&self, server: &str) {
        let slot = self.0.slots.lock().remove(server);
        if let Some(slot) = slot {
            slot.cancellation.cancel();
        }
    }

    /// Marks that the client's first list of tools is stored; from now on it stores changes.
    pub(super) fn mark_tools_recorded(&self, server: &str) {
        let slot = self.0.slots.lock().get(server).cloned();
        if let Some(session) = slot.and_then(|slot| slot.session.lock().clone()) {
            session.tools_recorded.cancel();
        }
    }

    /// Cancels a call that waits for a person, if there is one, at its server.
    pub(super) fn cancel_suspended(&self, call: CallId) {
        let slots: Vec<_> = self.0.slots.lock().values().cloned().collect();
        for slot in slots {
            let session = slot.session.lock().clone();
            drop(session.and_then(|session| session.take_suspended(call)));
        }
    }

    /// Closes all clients.
    pub(super) fn close(&self) {
        let slots = std::mem::take(&mut *self.0.slots.lock());
        for slot in slots.into_values() {
            slot.cancellation.cancel();
        }
    }

    /// Resumes a call that waited for a person's answer.
    async fn resume_call(
        &self,
        spec: &Arc<McpServerSpec>,
        access: RequestAuth,
        call: &ToolCall<'_>,
        answer: &str,
    ) -> Result<CallOutcome, ClientError> {
        let slot = self.0.slots.lock().get(&spec.name).cloned();
        let session = slot.and_then(|slot| slot.session.lock().clone());
        let Some((session, mut suspended)) =
            session.and_then(|session| session.take_suspended(call.id).map(|call| (session, call)))
        else {
            let reason = "it no longer waits for the answer".to_owned();
            return Err(self.call_error(spec, &access, call, CallFailure::OutcomeUnknown(reason)).await);
        };
        let _in_use = session.acquire();
        if let Some(question) = suspended.submit_answer(&session, answer) {
            session.suspend(call.id, suspended);
            return Ok(CallOutcome::Ask(question));
        }
        match drive_call(&session, suspended, call).await {
            Ok(outcome) => Ok(outcome),
            Err(failure) => Err(self.call_error(spec, &access, call, failure).await),
        }
    }

    /// Returns a client for a call, and whether it is new; records a failure to connect in the connection.
    async fn client_for_call(
        &self,
        spec: &Arc<McpServerSpec>,
        access: &RequestAuth,
    ) -> Result<(Arc<Session>, bool), ClientError> {
        let connections = &self.0.connections;
        match self.client(spec, access, ClientPurpose::Call).await {
            Ok((session, None)) => Ok((session, false)),
            Ok((session, Some(tools))) => {
                self.record_tools(&session, tools).await?;
                Ok((session, true))
            }
            Err(error) => {
                match &error {
                    ClientError::Failed(reason) if reason != CONNECTION_ENDED => {
                        connections.record_failure(&spec.name, ConnectionStatus::Error, reason).await;
                    }
                    ClientError::Unauthorized(reason) => {
                        connections.record_failure(&spec.name, access.status_if_refused(), reason).await;
                    }
                    ClientError::Failed(_) | ClientError::Auth(_) => {}
                }
                Err(error)
            }
        }
    }

    /// Stores the tools that a new client has listed, or ends the client. It runs to completion even if the caller
    /// goes away, because other calls wait for it.
    async fn record_tools(
        &self,
        session: &Arc<Session>,
        tools: Vec<ToolDefinition>,
    ) -> Result<(), ClientError> {
        let (connections, session) = (Arc::clone(&self.0.connections), Arc::clone(session));
        let recording = self.0.connections.spawn(async move {
            if let Err(error) = connections.record_recovery(&session.spec, tools).await
                && session.spec.is_of_user()
            {
                // Without them it is not known whether they are the approved ones.
                let reason = format!("its tools could not be stored: {error}");
                session.transport_state.end(reason.as_str());
                return Err(ClientError::Failed(reason));
            }
            session.tools_recorded.cancel();
            Ok(())
        });
        recording.await.unwrap_or_else(|_| Err(ClientError::Failed(CONNECTION_ENDED.into())))
    }

    /// Returns the client of a server, with the server's tools if the client was just created.
    async fn client(
        &self,
        spec: &Arc<McpServerSpec>,
        access: &RequestAuth,
        purpose: ClientPurpose,
    ) -> Result<(Arc<Session>, Option<Vec<ToolDefinition>>), ClientError> {
        let slot = Arc::clone(self.0.slots.lock().entry(spec.name.clone()).or_default());
        tokio::select! {
            biased;
            () = slot.cancellation.cancelled() => Err(ClientError::Failed(CONNECTION_ENDED.into())),
            client = self.client_in_slot(&slot, spec, access, purpose) => client,
        }
    }

    async fn client_in_slot(
        &self,
        slot: &Arc<ClientSlot>,
        spec: &Arc<McpServerSpec>,
        access: &RequestAuth,
        purpose: ClientPurpose,
    ) -> Result<(Arc<Session>, Option<Vec<ToolDefinition>>), ClientError> {
        let mut connector = slot.connector.lock().await;
        let existing = slot.session.lock().clone();
        if let Some(session) = existing.filter(|session| session.matches(spec, access)) {
            return Ok((session, None));
        }
        connector.wait_to_start(purpose == ClientPurpose::Connect).await?;
        let (reach, timeouts) =
            ((self.0.sandbox.as_deref(), self.0.connections.web_allowlist()), self.0.timeouts);
        // The future is large, and seldom needed.
        let connecting =
            Box::pin(connector.connect(spec, access, reach, &slot.cancellation, timeouts.connect));
        let connected = connecting.await;
        let NewSession { session, service, tools } =
            connected.inspect_err(|error| connector.record_failure(error.to_string()))?;
        if let Some(old) = slot.session.lock().replace(Arc::clone(&session)) {
            old.transport_state.end("it was reconnected");
        }
        let (slot, running) = (Arc::clone(slot), Arc::clone(&session));
        let connections = Arc::clone(&self.0.connections);
        tokio::spawn(async move {
            running.run_until_idle(service, &connections, timeouts.idle).await;
            slot.connector.lock().await.record_end(&running);
            slot.session.lock().take_if(|session| Arc::ptr_eq(session, &running));
        });
        Ok((session, Some(tools)))
    }

    /// Returns the error for the model about a call without a result.
    async fn call_error(
        &self,
        spec: &McpServerSpec,
        access: &RequestAuth,
        call: &ToolCall<'_>,
        failure: CallFailure,
    ) -> ClientError {
        match failure {
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
                    "It is not known whether `{}` took effect: check before you call it again",
                    call.tool
                );
                with_server_name(spec, ClientError::Failed(format!("{reason}. {unknown}")))
            }
        }
    }
}

/// Drives a call; if it asks a question, it is suspended, and the client is kept for it.
async fn drive_call(
    session: &Arc<Session>,
    mut running_call: Call,
    call: &ToolCall<'_>,
) -> Result<CallOutcome, CallFailure> {
    let outcome = running_call.drive(session).await?;
    if matches!(outcome, CallOutcome::Ask(_)) {
        session.suspend(call.id, running_call);
    }
    Ok(outcome)
}

/// Prefixes an error with the server's name.
fn with_server_name(spec: &McpServerSpec, error: ClientError) -> ClientError {
    let failed = |reason: String| format!("the tool server `{}` failed: {reason}", spec.name);
    match error {
        ClientError::Failed(reason) => ClientError::Failed(failed(reason)),
        ClientError::Unauthorized(reason) => ClientError::Unauthorized(failed(reason)),
        ClientError::Auth(error) => ClientError::Auth(error),
    }
}

#[cfg(test)]
#[path = "../tests/unit/clients.rs"]
mod tests;
