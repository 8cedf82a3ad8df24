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

use super::call::{Call, Parked};
use super::desk::{Desk, Handler};
use super::failure::lost;
use super::line::Line;
use super::{ClientError, MAX_MESSAGE};
use crate::assets::access::Access;
use crate::assets::connections::Connections;
use crate::assets::definition::{MAX_TOOLS, checked};
use crate::assets::{CONNECTING, ToolDefinition};
use crate::catalog::ServerSpec;

/// The most pages of a list of tools that are read, and the most tools that are looked at.
const MAX_PAGES: usize = 64;
const MAX_LISTED: usize = 32 * MAX_TOOLS;
/// The most calls that wait for a person, and how long they may.
const MAX_PARKED: usize = 64;
const PARKED: Duration = Duration::from_hours(72);
/// How far apart a server's tools are listed again, however often it says that they have changed.
const BETWEEN_LISTS: Duration = Duration::from_secs(5);
/// The most messages that a server in its right mind sends instead of an answer.
const MAX_CHATTER: u64 = 1_000;
/// How long the end of a client may take: what is left of it is let go of then.
const ENDING: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Live {
    pub(super) spec: Arc<ServerSpec>,
    pub(super) access: Access,
    pub(super) peer: Peer<RoleClient>,
    pub(super) desk: Arc<Desk>,
    pub(super) line: Arc<Line>,
    pub(super) since: Instant,
    /// Told when the server says that it has other tools.
    pub(super) tools_changed: Arc<Notify>,
    /// Cancelled once the tools that it listed first are on record.
    pub(super) on_record: CancellationToken,
    usage: Mutex<Usage>,
    usage_changed: Notify,
}

/// What a client is used for.
struct Usage {
    /// Requests that somebody waits for.
    under_way: usize,
    parked: Vec<(CallId, Parked)>,
    last: Instant,
}

/// Says, as long as it is there, that somebody waits for the client.
pub(super) struct InUse(Arc<Live>);

impl Drop for InUse {
    fn drop(&mut self) {
        let mut usage = self.0.usage();
        usage.under_way = usage.under_way.saturating_sub(1);
        usage.last = Instant::now();
        drop(usage);
        self.0.usage_changed.notify_one();
    }
}

impl Live {
    pub(super) fn new(
        spec: Arc<ServerSpec>,
        access: Access,
        peer: Peer<RoleClient>,
        (desk, line, tools_changed): (Arc<Desk>, Arc<Line>, Arc<Notify>),
    ) -> Arc<Self> {
        let now = Instant::now();
        let usage = Mutex::new(Usage { under_way: 0, parked: Vec::new(), last: now });
        Arc::new(Self {
            spec,
            access,
            peer,
            desk,
            line,
            since: now,
            tools_changed,
            on_record: CancellationToken::new(),
            usage,
            usage_changed: Notify::new(),
        })
    }

    /// Whether it does for requests to such a server on such a user's behalf.
    pub(super) fn serves(&self, spec: &ServerSpec, access: &Access) -> bool {
        !self.line.has_ended() && *self.spec == *spec && self.access.is_same(access)
    }

    /// Keeps it from becoming idle; none where it has ended.
    pub(super) fn in_use(self: &Arc<Self>) -> Option<InUse> {
        let mut usage = self.usage();
        if self.line.has_ended() {
            return None;
        }
        usage.under_way += 1;
        Some(InUse(Arc::clone(self)))
    }

    /// Keeps a call that waits for a person.
    pub(super) fn park(&self, id: CallId, call: Call) {
        let mut usage = self.usage();
        let oldest = (usage.parked.len() >= MAX_PARKED).then(|| usage.parked.remove(0));
        usage.parked.push((id, Parked { call, since: Instant::now() }));
        drop(usage);
        drop(oldest);
    }

    /// Gives back a call that waits for a person.
    pub(super) fn unpark(&self, id: CallId) -> Option<Call> {
        let mut usage = self.usage();
        let at = usage.parked.iter().position(|(parked, _)| *parked == id)?;
        Some(usage.parked.remove(at).1.call)
    }

    /// A request was not answered in time. A server that has said nothing at all since it had said `heard` messages, or
    /// has said far too many, is out of its mind. Where nobody else waits for it, the next request gets a new client.
    pub(super) fn timed_out(&self, heard: u64) {
        let alone = {
            let usage = self.usage();
            usage.under_way <= 1 && usage.parked.is_empty()
        };
        let since = self.line.heard().saturating_sub(heard);
        if alone && (since == 0 || since > MAX_CHATTER) {
            self.line.end("it does not answer any more");
        }
    }

    /// Asks for all of the server's tools.
    pub(super) async fn list_tools(&self) -> Result<Vec<ToolDefinition>, ClientError> {
        let listing = async {
            let (mut tools, mut bytes, mut cursor) = (Vec::new(), 0, None);
            for _ in 0..MAX_PAGES {
                let page = self.page(cursor).await?;
                bytes += serde_json::to_vec(&page).map_or(0, |page| page.len());
                if let Some(Value::Array(more)) = page.get("tools") {
                    tools.extend(more.iter().take(MAX_LISTED - tools.len()).cloned());
                }
                cursor = page.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
                if cursor.is_none() || tools.len() >= MAX_LISTED || bytes > MAX_MESSAGE {
                    break;
                }
            }
            Ok(checked(&self.spec.name, &tools))
        };
        let within = tokio::time::timeout(self.spec.timeout.min(CONNECTING), listing).await;
        within.unwrap_or_else(|_| Err(ClientError::Failed("it does not list its tools in time".into())))
    }

    /// One page of the list, as the server sent it: what of it is faulty is told apart later.
    async fn page(&self, cursor: Option<String>) -> Result<Value, ClientError> {
        let params = Some(PaginatedRequestParams::default().with_cursor(cursor));
        let request = ListToolsRequest { params, ..ListToolsRequest::default() };
        let request = ClientRequest::ListToolsRequest(request);
        let options = PeerRequestOptions::no_options();
        let sent = match self.peer.send_request_with_option(request, options).await {
            Ok(handle) => tokio::select! {
                response = handle.await_response() => response,
                () = self.line.ended() => return Err(ClientError::Failed(self.line.reason().to_owned())),
            },
            Err(error) => Err(error),
        };
        let result = sent.map_err(|error| lost(error, &self.line).error())?;
        match result {
            result @ (ServerResult::ListToolsResult(_) | ServerResult::CustomResult(_)) => {
                Ok(serde_json::to_value(&result).unwrap_or(Value::Null))
            }
            _ => Err(ClientError::Failed("it lists no tools where it was asked for them".into())),
        }
    }

    /// Keeps the client until its line ends or nobody has needed it for `idle`.
    pub(super) async fn keep(
        &self,
        service: RunningService<RoleClient, Handler>,
        connections: &Arc<Connections>,
        idle: Duration,
    ) {
        tokio::select! {
            () = self.line.ended() => {}
            () = self.idle(idle) => {}
            () = self.listen() => {}
            () = self.follow(connections) => {}
        }
        self.usage().parked.clear();
        if tokio::time::timeout(ENDING, service.waiting()).await.is_err() {
            tracing::debug!(
                server = self.spec.name,
                "A client of a tool server does not end, and is let go of."
            );
        }
    }

    /// Waits until nobody has needed it for so long, and ends it.
    async fn idle(&self, idle: Duration) {
        loop {
            let until = {
                let mut usage = self.usage();
                let now = Instant::now();
                usage.parked.retain(|(_, parked)| now - parked.since < PARKED);
                let until = match (usage.under_way, usage.parked.first()) {
                    (0, None) => Some(usage.last + idle),
                    (0, Some((_, oldest))) => Some(oldest.since + PARKED),
                    _ => None,
                };
                if until.is_some_and(|until| until <= now) {
                    // Nobody begins to need it in between.
                    self.line.end("nobody needed it");
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
    async fn subscription(&self) -> Option<Subscription> {
        let info = self.peer.peer_info()?;
        let tells = info.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true));
        if !tells || info.protocol_version < ProtocolVersion::NO_INITIALIZE {
            return None;
        }
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        let listening = tokio::time::timeout(CONNECTING, self.peer.listen(filter)).await;
        if let Ok(Ok(subscription)) = listening {
            return Some(subscription);
        }
        tracing::debug!(server = self.spec.name, "A tool server does not tell when its tools change.");
        None
    }

    /// Takes down that the tools have changed, as often as the subscription says so.
    async fn listen(&self) {
        if let Some(mut subscription) = self.subscription().await {
            while let Ok(Some(_)) = subscription.next().await {
                self.tools_changed.notify_one();
            }
        }
        std::future::pending::<()>().await;
    }

    /// Lists the tools again when they have changed.
    async fn follow(&self, connections: &Arc<Connections>) {
        // The first list comes first.
        self.on_record.cancelled().await;
        loop {
            self.tools_changed.notified().await;
            match self.list_tools().await {
                Ok(tools) => connections.tools_changed(&self.spec, tools).await,
                Err(error) => {
                    tracing::warn!(server = self.spec.name, %error, "The tools of a server cannot be listed again.");
                }
            }
            tokio::time::sleep(BETWEEN_LISTS).await;
        }
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
