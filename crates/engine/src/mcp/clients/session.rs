//! A live client of one server: what its calls share, and the task that keeps it while it is of use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::CallId;
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
use crate::catalog::McpServerSpec;
use crate::mcp::connections::Connections;
use crate::mcp::definition::{MAX_TOOLS, validate_tools};
use crate::mcp::request_auth::RequestAuth;
use crate::mcp::{SERVER_CONNECT_TIMEOUT, ToolDefinition};

/// The most pages of a list of tools that are read, and the most tools that are looked at.
const MAX_TOOL_PAGES: usize = 64;
const MAX_LISTED_TOOLS: usize = 32 * MAX_TOOLS;
/// The most calls that wait for a person, and how long they may.
const MAX_SUSPENDED_CALLS: usize = 64;
const SUSPENDED_CALL_TTL: Duration = Duration::from_hours(72);
/// How far apart a server's tools are listed again, however often it says that they have changed.
const MIN_RELIST_INTERVAL: Duration = Duration::from_secs(5);
/// The most messages that a server in its right mind sends instead of an answer.
const MAX_MESSAGES_WITHOUT_ANSWER: u64 = 1_000;
/// How long the end of a client may take: what is left of it is let go of then.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Session {
    pub(super) spec: Arc<McpServerSpec>,
    pub(super) auth: RequestAuth,
    pub(super) peer: Peer<RoleClient>,
    pub(super) router: Arc<ElicitationRouter>,
    pub(super) transport_state: Arc<TransportState>,
    pub(super) connected_at: Instant,
    /// Told when the server says that it has other tools.
    pub(super) tools_changed: Arc<Notify>,
    /// Cancelled once the tools that it listed first are on record.
    pub(super) tools_recorded: CancellationToken,
    usage: Mutex<Usage>,
    usage_changed: Notify,
}

/// What a client is used for.
struct Usage {
    /// Requests that somebody waits for.
    active_requests: usize,
    suspended: Vec<(CallId, SuspendedCall)>,
    last_used: Instant,
}

/// Says, as long as it is there, that somebody waits for the client.
pub(super) struct UsageGuard(Arc<Session>);

impl Drop for UsageGuard {
    fn drop(&mut self) {
        let mut usage = self.0.usage();
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
        (desk, line, tools_changed): (Arc<ElicitationRouter>, Arc<TransportState>, Arc<Notify>),
    ) -> Arc<Self> {
        let now = Instant::now();
        let usage = Mutex::new(Usage { active_requests: 0, suspended: Vec::new(), last_used: now });
        Arc::new(Self {
            spec,
            auth: access,
            peer,
            router: desk,
            transport_state: line,
            connected_at: now,
            tools_changed,
            tools_recorded: CancellationToken::new(),
            usage,
            usage_changed: Notify::new(),
        })
    }

    /// Whether it does for requests to such a server on such a user's behalf.
    pub(super) fn matches(&self, spec: &McpServerSpec, access: &RequestAuth) -> bool {
        !self.transport_state.has_ended() && *self.spec == *spec && self.auth.is_same_auth(access)
    }

    /// Keeps it from becoming idle; none where it has ended.
    pub(super) fn acquire(self: &Arc<Self>) -> Option<UsageGuard> {
        let mut usage = self.usage();
        if self.transport_state.has_ended() {
            return None;
        }
        usage.active_requests += 1;
        Some(UsageGuard(Arc::clone(self)))
    }

    /// Keeps a call that waits for a person.
    pub(super) fn suspend(&self, id: CallId, call: Call) {
        let mut usage = self.usage();
        let oldest = (usage.suspended.len() >= MAX_SUSPENDED_CALLS).then(|| usage.suspended.remove(0));
        usage.suspended.push((id, SuspendedCall { call, suspended_at: Instant::now() }));
        drop(usage);
        drop(oldest);
    }

    /// Gives back a call that waits for a person.
    pub(super) fn take_suspended(&self, id: CallId) -> Option<Call> {
        let mut usage = self.usage();
        let at = usage.suspended.iter().position(|(suspended, _)| *suspended == id)?;
        Some(usage.suspended.remove(at).1.call)
    }

    /// A request was not answered in time. A server that has said nothing at all since it had said `heard` messages, or
    /// has said far too many, is out of its mind. Where nobody else waits for it, the next request gets a new client.
    pub(super) fn record_timeout(&self, heard: u64) {
        let alone = {
            let usage = self.usage();
            usage.active_requests <= 1 && usage.suspended.is_empty()
        };
        let since = self.transport_state.received_count().saturating_sub(heard);
        if alone && (since == 0 || since > MAX_MESSAGES_WITHOUT_ANSWER) {
            self.transport_state.end("it does not answer any more");
        }
    }

    /// Asks for all of the server's tools.
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
            Ok(validate_tools(&self.spec.name, &tools))
        };
        let within = tokio::time::timeout(self.spec.timeout.min(SERVER_CONNECT_TIMEOUT), listing).await;
        within.unwrap_or_else(|_| Err(ClientError::Failed("it does not list its tools in time".into())))
    }

    /// One page of the list, as the server sent it: what of it is faulty is told apart later.
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
            _ => Err(ClientError::Failed("it lists no tools where it was asked for them".into())),
        }
    }

    /// Keeps the client until its line ends or nobody has needed it for `idle`.
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
        self.usage().suspended.clear();
        if tokio::time::timeout(CLOSE_TIMEOUT, service.waiting()).await.is_err() {
            tracing::debug!(
                server = self.spec.name,
                "A client of a tool server does not end, and is let go of."
            );
        }
    }

    /// Waits until nobody has needed it for so long, and ends it.
    async fn end_when_idle(&self, idle: Duration) {
        loop {
            let until = {
                let mut usage = self.usage();
                let now = Instant::now();
                usage.suspended.retain(|(_, suspended)| now - suspended.suspended_at < SUSPENDED_CALL_TTL);
                let until = match (usage.active_requests, usage.suspended.first()) {
                    (0, None) => Some(usage.last_used + idle),
                    (0, Some((_, oldest))) => Some(oldest.suspended_at + SUSPENDED_CALL_TTL),
                    _ => None,
                };
                if until.is_some_and(|until| until <= now) {
                    // Nobody begins to need it in between.
                    self.transport_state.end("nobody needed it");
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

    /// Has changes of the tools told, where the revision wants that asked for.
    async fn subscribe(&self) -> Option<Subscription> {
        let info = self.peer.peer_info()?;
        let tells = info.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true));
        if !tells || info.protocol_version < ProtocolVersion::NO_INITIALIZE {
            return None;
        }
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        let listening = tokio::time::timeout(SERVER_CONNECT_TIMEOUT, self.peer.listen(filter)).await;
        if let Ok(Ok(subscribe)) = listening {
            return Some(subscribe);
        }
        tracing::debug!(server = self.spec.name, "A tool server does not tell when its tools change.");
        None
    }

    /// Takes down that the tools have changed, as often as the subscription says so.
    async fn listen_for_tool_changes(&self) {
        if let Some(mut subscribe) = self.subscribe().await {
            while let Ok(Some(_)) = subscribe.next().await {
                self.tools_changed.notify_one();
            }
        }
        std::future::pending::<()>().await;
    }

    /// Lists the tools again when they have changed.
    async fn relist_on_change(&self, connections: &Arc<Connections>) {
        // The first list comes first.
        self.tools_recorded.cancelled().await;
        loop {
            self.tools_changed.notified().await;
            match self.list_tools().await {
                Ok(tools) => connections.update_tools(&self.spec, tools).await,
                Err(error) => {
                    tracing::warn!(server = self.spec.name, %error, "The tools of a server cannot be listed again.");
                }
            }
            tokio::time::sleep(MIN_RELIST_INTERVAL).await;
        }
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
