//! A session with one server: the state that its calls share, and the task that runs it while it is used.

use std::sync::Arc;
use std::time::Duration;

use api::CallId;
use catalog::McpServerSpec;
use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::model::{
    ClientRequest, ListToolsRequest, PaginatedRequestParams, ProtocolVersion, ServerResult,
    SubscriptionFilter,
};
use rmcp::service::{Peer, PeerRequestOptions, RunningService, Subscription};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::{Call, SuspendedCall};
use super::elicitation_router::{ElicitationRouter, SessionHandler};
use super::failure::call_failure;
use super::transport_guard::TransportState;
use super::{ClientError, MAX_MESSAGE_BYTES};
use crate::connections::Connections;
use crate::definition::{MAX_TOOLS, validate_tools};
use crate::request_auth::RequestAuth;
use crate::{SERVER_CONNECT_TIMEOUT, ToolDefinition};

/// The maximum number of pages of a tool list, and of tools, that are read.
const MAX_TOOL_PAGES: usize = 64;
const MAX_LISTED_TOOLS: usize = 32 * MAX_TOOLS;
/// The maximum number of calls that wait for a person, and how long they may.
const MAX_SUSPENDED_CALLS: usize = 64;
const SUSPENDED_CALL_TTL: Duration = Duration::from_hours(72);
/// The minimum interval between two listings of a server's tools, however often it reports changes.
const MIN_RELIST_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum number of messages that a working server sends without answering.
const MAX_MESSAGES_WITHOUT_ANSWER: u64 = 1_000;
/// How long closing a session may take before it is abandoned.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A client's session with a server.
pub(super) struct Session {
    pub(super) spec: Arc<McpServerSpec>,
    pub(super) auth: RequestAuth,
    pub(super) peer: Peer<RoleClient>,
    pub(super) router: Arc<ElicitationRouter>,
    pub(super) transport_state: Arc<TransportState>,
    pub(super) connected_at: Instant,
    /// Notified when the server reports that its tools have changed.
    pub(super) tools_changed: Arc<Notify>,
    /// Cancelled once its first list of tools is stored.
    pub(super) tools_recorded: CancellationToken,
    usage: Mutex<Usage>,
    usage_changed: Notify,
}

/// The use of a session.
struct Usage {
    /// The number of requests that somebody waits for.
    active_requests: usize,
    suspended: Vec<(CallId, SuspendedCall)>,
    last_used: Instant,
}

/// RAII guard: somebody waits for the session while it is held.
pub(super) struct UsageGuard(Arc<Session>);

impl Drop for UsageGuard {
    fn drop(&mut self) {
        let mut usage = self.0.usage.lock();
        usage.active_requests = usage.active_requests.saturating_sub(1);
        usage.last_used = Instant::now();
        drop(usage);
        self.0.usage_changed.notify_one();
    }
}

impl Session {
    pub(super) fn new(
        spec: Arc<McpServerSpec>,
        access: RequestAuth,
        peer: Peer<RoleClient>,
        (router, transport_state, tools_changed): (Arc<ElicitationRouter>, Arc<TransportState>, Arc<Notify>),
    ) -> Arc<Self> {
        let now = Instant::now();
        let usage = Mutex::new(Usage { active_requests: 0, suspended: Vec::new(), last_used: now });
        Arc::new(Self {
            spec,
            auth: access,
            peer,
            router,
            transport_state,
            connected_at: now,
            tools_changed,
            tools_recorded: CancellationToken::new(),
            usage,
            usage_changed: Notify::new(),
        })
    }

    /// Whether the session fits requests to this server with these credentials.
    pub(super) fn matches(&self, spec: &McpServerSpec, access: &RequestAuth) -> bool {
        !self.transport_state.has_ended() && *self.spec == *spec && self.auth.is_same_auth(access)
    }

    /// Keeps the session from becoming idle; `None` if it has ended.
    pub(super) fn acquire(self: &Arc<Self>) -> Option<UsageGuard> {
        let mut usage = self.usage.lock();
        if self.transport_state.has_ended() {
            return None;
        }
        usage.active_requests += 1;
        Some(UsageGuard(Arc::clone(self)))
    }

    /// Waits until its first list of tools is stored, or it has ended; not longer than a request may take.
    pub(super) async fn wait_tools_recorded(&self) -> Result<(), ClientError> {
        let recorded = async {
            tokio::select! {
                () = self.tools_recorded.cancelled() => {}
                () = self.transport_state.wait_ended() => {}
            }
        };
        let within = tokio::time::timeout(self.spec.timeout, recorded).await;
        within.map_err(|_| ClientError::Failed("its tools could not be stored in time".into()))
    }

    /// Suspends a call that waits for a person.
    pub(super) fn suspend(&self, id: CallId, call: Call) {
        let mut usage = self.usage.lock();
        let oldest = (usage.suspended.len() >= MAX_SUSPENDED_CALLS).then(|| usage.suspended.remove(0));
        usage.suspended.push((id, SuspendedCall { call, suspended_at: Instant::now() }));
        drop(usage);
        drop(oldest);
    }

    /// Removes and returns a suspended call.
    pub(super) fn take_suspended(&self, id: CallId) -> Option<Call> {
        let mut usage = self.usage.lock();
        let at = usage.suspended.iter().position(|(suspended, _)| *suspended == id)?;
        Some(usage.suspended.remove(at).1.call)
    }

    /// Records that a request timed out. A server that has sent nothing since message number `heard`, or far too
    /// many messages, is considered broken. If nobody else waits for the session, it ends, and the next request
    /// gets a new one.
    pub(super) fn record_timeout(&self, received_before: u64) {
        let is_only_request = {
            let usage = self.usage.lock();
            usage.active_requests <= 1 && usage.suspended.is_empty()
        };
        let since = self.transport_state.received_count().saturating_sub(received_before);
        if is_only_request && (since == 0 || since > MAX_MESSAGES_WITHOUT_ANSWER) {
            self.transport_state.end("it no longer answers");
        }
    }

    /// Lists all of the server's tools.
    pub(super) async fn list_tools(&self) -> Result<Vec<ToolDefinition>, ClientError> {
        let listing = async {
            let (mut tools, mut bytes, mut cursor) = (Vec::new(), 0, None);
            for _ in 0..MAX_TOOL_PAGES {
                let page = self.tool_page(cursor).await?;
                bytes += serde_json::to_vec(&page).map_or(0, |page| page.len());
                if let Some(Value::Array(more)) = page.get("tools") {
                    tools.extend(more.iter().take(MAX_LISTED_TOOLS - tools.len()).cloned());
                }
                cursor = page.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
                if cursor.is_none() || tools.len() >= MAX_LISTED_TOOLS || bytes > MAX_MESSAGE_BYTES {
                    break;
                }
            }
            Ok(validate_tools(&self.spec.name, self.spec.origin, &tools))
        };
        let within = tokio::time::timeout(self.spec.timeout.min(SERVER_CONNECT_TIMEOUT), listing).await;
        within.unwrap_or_else(|_| Err(ClientError::Failed("it did not list its tools in time".into())))
    }

    /// Returns one page of the list as the server sent it; it is validated later.
    async fn tool_page(&self, cursor: Option<String>) -> Result<Value, ClientError> {
        let params = Some(PaginatedRequestParams::default().with_cursor(cursor));
        let request = ListToolsRequest { params, ..ListToolsRequest::default() };
        let request = ClientRequest::ListToolsRequest(request);
        let options = PeerRequestOptions::no_options();
        let sent = match self.peer.send_request_with_option(request, options).await {
            Ok(handle) => tokio::select! {
                response = handle.await_response() => response,
                () = self.transport_state.wait_ended() => return Err(ClientError::Failed(self.transport_state.reason().to_owned())),
            },
            Err(error) => Err(error),
        };
        let result = sent.map_err(|error| call_failure(error, &self.transport_state).into_error())?;
        match result {
            result @ (ServerResult::ListToolsResult(_) | ServerResult::CustomResult(_)) => {
                Ok(serde_json::to_value(&result).unwrap_or(Value::Null))
            }
            _ => Err(ClientError::Failed("its response to a request for its tools lists none".into())),
        }
    }

    /// Runs the session until its transport ends or it has been unused for `idle`.
    pub(super) async fn run_until_idle(
        &self,
        service: RunningService<RoleClient, SessionHandler>,
        connections: &Arc<Connections>,
        idle: Duration,
    ) {
        tokio::select! {
            () = self.transport_state.wait_ended() => {}
            () = self.end_when_idle(idle) => {}
            () = self.listen_for_tool_changes() => {}
            () = self.relist_on_change(connections) => {}
        }
        self.usage.lock().suspended.clear();
        if tokio::time::timeout(CLOSE_TIMEOUT, service.waiting()).await.is_err() {
            tracing::debug!(
                server = self.spec.name,
                "A client of a tool server did not end in time and is dropped."
            );
        }
    }

    /// Waits until the session has been unused for `idle`, and ends it.
    async fn end_when_idle(&self, idle: Duration) {
        loop {
            let until = {
                let mut usage = self.usage.lock();
                let now = Instant::now();
                usage.suspended.retain(|(_, suspended)| now - suspended.suspended_at < SUSPENDED_CALL_TTL);
                let until = match (usage.active_requests, usage.suspended.first()) {
                    (0, None) => Some(usage.last_used + idle),
                    (0, Some((_, oldest))) => Some(oldest.suspended_at + SUSPENDED_CALL_TTL),
                    _ => None,
                };
                if until.is_some_and(|until| until <= now) {
                    // No request can start in between.
                    self.transport_state.end("it was idle");
                    return;
                }
                until
            };
            match until {
                Some(until) => tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = self.usage_changed.notified() => {}
                },
                None => self.usage_changed.notified().await,
            }
        }
    }

    /// Subscribes to changes of the tools, if the protocol revision requires a subscription.
    async fn subscribe(&self) -> Option<Subscription> {
        let info = self.peer.peer_info()?;
        let announces_changes =
            info.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true));
        if !announces_changes || info.protocol_version < ProtocolVersion::NO_INITIALIZE {
            return None;
        }
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        let listening = tokio::time::timeout(SERVER_CONNECT_TIMEOUT, self.peer.listen(filter)).await;
        if let Ok(Ok(subscription)) = listening {
            return Some(subscription);
        }
        tracing::debug!(
            server = self.spec.name,
            "A tool server does not accept a subscription to changes of its tools."
        );
        None
    }

    /// Sends a notification for each tool change that the subscription reports.
    async fn listen_for_tool_changes(&self) {
        if let Some(mut subscription) = self.subscribe().await {
            while let Ok(Some(_)) = subscription.next().await {
                self.tools_changed.notify_one();
            }
        }
        std::future::pending::<()>().await;
    }

    /// Lists the tools again when they have changed.
    async fn relist_on_change(&self, connections: &Arc<Connections>) {
        // The first list has to be stored before.
        self.tools_recorded.cancelled().await;
        loop {
            self.tools_changed.notified().await;
            let failure = match self.list_tools().await {
                Ok(tools) => {
                    connections.update_tools(&self.spec, tools).await.err().map(|error| error.to_string())
                }
                Err(error) => {
                    tracing::warn!(server = self.spec.name, %error, "The changed tools of a server could not be listed.");
                    Some(error.to_string())
                }
            };
            if let Some(reason) = failure.filter(|_| self.spec.is_of_user()) {
                // They are no longer the approved ones, as far as is known: the next client lists them first.
                self.transport_state.end(reason);
                return;
            }
            tokio::time::sleep(MIN_RELIST_INTERVAL).await;
        }
    }
}
