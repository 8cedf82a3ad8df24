//! Creates clients: opens the transport, initializes the protocol session, and lists the server's tools.

use std::sync::Arc;
use std::time::Duration;

use catalog::{McpServerSpec, Transport as Kind};
use fetch::WebAllowlist;
use rmcp::RoleClient;
use rmcp::model::ProtocolVersion;
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RunningService, serve_client_with_lifecycle,
};
use rmcp::transport::Transport;
use sandbox::Sandbox;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ClientError;
use super::elicitation_router::{ElicitationRouter, SessionHandler};
use super::failure::{connect_error, refusal_status};
use super::http::HttpEndpoint;
use super::http_sse::HttpSse;
use super::session::Session;
use super::stdio::StdioTransport;
use super::transport_guard::{GuardedTransport, TransportState};
use crate::ToolDefinition;
use crate::request_auth::RequestAuth;

/// The minimum interval between two starts of a server.
const MIN_START_INTERVAL: Duration = Duration::from_secs(1);
/// How many consecutive failures open the circuit breaker, and for how long it stays open.
const MAX_CONSECUTIVE_FAILURES: u32 = 3;
const CIRCUIT_OPEN_DURATION: Duration = Duration::from_secs(30);
/// If a server ignores the probe for the new protocol for this long, it is not probed again.
const SLOW_PROBE_THRESHOLD: Duration = Duration::from_secs(5);
/// How long a client must last for its end not to count as a failure.
const MIN_STABLE_DURATION: Duration = Duration::from_secs(10);

/// The generation of the protocol that a server speaks, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ProtocolEra {
    /// Unknown; the server is probed.
    #[default]
    Unknown,
    /// The server needs the handshake of the revisions before 2026-07-28, and does not tolerate the probe.
    Handshake,
}

/// A newly created client.
pub(super) struct NewSession {
    pub(super) session: Arc<Session>,
    pub(super) service: RunningService<RoleClient, SessionHandler>,
    pub(super) tools: Vec<ToolDefinition>,
}

/// The recent history of connecting to a server.
#[derive(Default)]
pub(super) struct Connector {
    era: ProtocolEra,
    failures: u32,
    last_start: Option<Instant>,
    last_failure: Option<(Instant, String)>,
}

impl Connector {
    /// Waits until the server may be started. Fails at once while the circuit breaker is open, unless `insists` is
    /// set.
    pub(super) async fn wait_to_start(&mut self, force: bool) -> Result<(), ClientError> {
        if let Some((when, reason)) = &self.last_failure
            && self.failures >= MAX_CONSECUTIVE_FAILURES
            && let Some(left) = CIRCUIT_OPEN_DURATION.checked_sub(when.elapsed())
            && !force
        {
            let seconds = left.as_secs() + 1;
            let failures = self.failures;
            return Err(ClientError::Failed(format!(
                "it failed {failures} times in a row; the next attempt is in {seconds} seconds. The last failure: {reason}"
            )));
        }
        if let Some(started) = self.last_start {
            tokio::time::sleep_until(started + MIN_START_INTERVAL).await;
        }
        self.last_start = Some(Instant::now());
        Ok(())
    }

    /// Records that the server could not be connected.
    pub(super) fn record_failure(&mut self, reason: String) {
        self.failures += 1;
        self.last_failure = Some((Instant::now(), reason));
        self.era = ProtocolEra::Unknown;
    }

    /// Records that a client has ended.
    pub(super) fn record_end(&mut self, session: &Session) {
        if session.connected_at.elapsed() < MIN_STABLE_DURATION {
            self.failures += 1;
            self.last_failure = Some((Instant::now(), session.transport_state.reason().to_owned()));
        } else {
            self.failures = 0;
        }
    }

    /// Creates a client and lists the server's tools.
    pub(super) async fn connect(
        &mut self,
        spec: &Arc<McpServerSpec>,
        access: &RequestAuth,
        (sandbox, web_allowlist): (Option<&Sandbox>, &WebAllowlist),
        owner: &CancellationToken,
        timeout: Duration,
    ) -> Result<NewSession, ClientError> {
        let connecting = async {
            let (session, service) = match &spec.transport {
                Kind::Stdio { .. } => self.connect_program(spec, access, sandbox, owner).await?,
                Kind::Http { .. } => connect_http(spec, access, web_allowlist, owner).await?,
            };
            let tools = session.list_tools().await?;
            Ok(NewSession { session, service, tools })
        };
        let timed_out =
            |_| ClientError::Failed(format!("it did not answer within {} seconds", timeout.as_secs()));
        tokio::time::timeout(timeout, connecting).await.map_err(timed_out)?
    }

    async fn connect_program(
        &mut self,
        spec: &Arc<McpServerSpec>,
        access: &RequestAuth,
        sandbox: Option<&Sandbox>,
        owner: &CancellationToken,
    ) -> Result<(Arc<Session>, RunningService<RoleClient, SessionHandler>), ClientError> {
        if self.era == ProtocolEra::Unknown {
            let transport_state = TransportState::new(owner);
            let transport = StdioTransport::start(sandbox, spec, access, &transport_state).await?;
            let began = Instant::now();
            match initialize_session(transport, &transport_state, spec, access, auto_lifecycle()).await {
                Ok(connected) => {
                    let info = connected.0.peer.peer_info();
                    let uses_handshake = info.is_some_and(|info| info.protocol_version.has_initialize());
                    if uses_handshake && began.elapsed() > SLOW_PROBE_THRESHOLD {
                        self.era = ProtocolEra::Handshake;
                    }
                    return Ok(connected);
                }
                // Old servers may exit at an unknown first message.
                Err(ClientInitializeError::ConnectionClosed(_)) => {}
                Err(error) => return Err(connect_error(error, &transport_state)),
            }
        }
        let transport_state = TransportState::new(owner);
        let transport = StdioTransport::start(sandbox, spec, access, &transport_state).await?;
        let connected =
            initialize_session(transport, &transport_state, spec, access, ClientLifecycleMode::Initialize)
                .await;
        let connected = connected.map_err(|error| connect_error(error, &transport_state))?;
        self.era = ProtocolEra::Handshake;
        Ok(connected)
    }
}

async fn connect_http(
    spec: &Arc<McpServerSpec>,
    access: &RequestAuth,
    web_allowlist: &WebAllowlist,
    owner: &CancellationToken,
) -> Result<(Arc<Session>, RunningService<RoleClient, SessionHandler>), ClientError> {
    let address = HttpEndpoint::new(spec, access, web_allowlist).await?;
    let transport_state = TransportState::new(owner);
    let error = match initialize_session(
        address.streamable_transport(Arc::clone(&transport_state)),
        &transport_state,
        spec,
        access,
        auto_lifecycle(),
    )
    .await
    {
        Ok(connected) => return Ok(connected),
        Err(error) => error,
    };
    // As the protocol specifies: if POST is refused, the server may use the transport of the oldest revision.
    if matches!(refusal_status(&error), Some(400 | 404 | 405))
        && let transport_state = TransportState::new(owner)
        && let Ok(transport) = HttpSse::open(&address, Arc::clone(&transport_state)).await
    {
        let connected =
            initialize_session(transport, &transport_state, spec, access, ClientLifecycleMode::Initialize)
                .await;
        return connected.map_err(|error| connect_error(error, &transport_state));
    }
    Err(connect_error(error, &transport_state))
}

/// Uses the newest revision if the server speaks it, else the handshake of the older ones.
fn auto_lifecycle() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::LATEST],
        legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
    }
}

/// Initializes the protocol session.
async fn initialize_session<T>(
    transport: T,
    transport_state: &Arc<TransportState>,
    spec: &Arc<McpServerSpec>,
    access: &RequestAuth,
    mode: ClientLifecycleMode,
) -> Result<(Arc<Session>, RunningService<RoleClient, SessionHandler>), ClientInitializeError>
where
    T: Transport<RoleClient> + 'static,
{
    let (router, tools_changed) = (Arc::<ElicitationRouter>::default(), Arc::new(Notify::new()));
    let handler = SessionHandler { router: Arc::clone(&router), tools_changed: Arc::clone(&tools_changed) };
    let guarded = GuardedTransport::new(transport, Arc::clone(transport_state));
    let service = serve_client_with_lifecycle(handler, guarded, mode).await?;
    let version = service.peer_info().map(|info| info.protocol_version.clone());
    if !version.as_ref().is_some_and(|version| ProtocolVersion::KNOWN_VERSIONS.contains(version)) {
        transport_state.end("it uses an unknown protocol revision");
        return Err(ClientInitializeError::NoCompatibleProtocolVersion {
            client_supported: ProtocolVersion::KNOWN_VERSIONS.to_vec(),
            server_supported: version.into_iter().collect(),
        });
    }
    let peer = service.peer().clone();
    let parts = (router, Arc::clone(transport_state), tools_changed);
    Ok((Session::new(Arc::clone(spec), access.clone(), peer, parts), service))
}
