//! How a client is made: a transport, the protocol's first words, and the tools that the server has.

use std::sync::Arc;
use std::time::Duration;

use leash::Leash;
use rmcp::RoleClient;
use rmcp::model::ProtocolVersion;
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RunningService, serve_client_with_lifecycle,
};
use rmcp::transport::Transport;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ClientError;
use super::desk::{Desk, Handler};
use super::failure::{not_connected, refused_by};
use super::http::Address;
use super::http_sse::HttpSse;
use super::line::{Guarded, Line};
use super::live::Live;
use super::stdio::Stdio;
use crate::assets::ToolDefinition;
use crate::assets::access::Access;
use crate::catalog::{ServerSpec, Transport as Kind};

/// How far apart a server is started at the least.
const BETWEEN_STARTS: Duration = Duration::from_secs(1);
/// How often in a row it may fail until it is left alone, and for how long that is.
const MAX_FAILURES: u32 = 3;
const LEFT_ALONE: Duration = Duration::from_secs(30);
/// How long a first word takes that a server does not know and passes over: it is not said to it again.
const PASSED_OVER: Duration = Duration::from_secs(5);
/// How long a client must last for its end to be no failure.
const LASTS: Duration = Duration::from_secs(10);

/// Which of the protocol's two lives a server leads, as far as that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Era {
    /// It is asked.
    #[default]
    Unknown,
    /// It wants the handshake of the revisions before 2026-07-28, and does not bear to be asked.
    Handshake,
}

/// A client that was made.
pub(super) struct Made {
    pub(super) live: Arc<Live>,
    pub(super) service: RunningService<RoleClient, Handler>,
    pub(super) tools: Vec<ToolDefinition>,
}

/// How a server has fared of late.
#[derive(Default)]
pub(super) struct Record {
    era: Era,
    failures: u32,
    started: Option<Instant>,
    last_failure: Option<(Instant, String)>,
}

impl Record {
    /// Waits until a server may be started; not at all where it only fails, unless somebody insists.
    pub(super) async fn may_start(&mut self, insists: bool) -> Result<(), ClientError> {
        if let Some((when, reason)) = &self.last_failure
            && self.failures >= MAX_FAILURES
            && let Some(left) = LEFT_ALONE.checked_sub(when.elapsed())
            && !insists
        {
            let seconds = left.as_secs() + 1;
            let failures = self.failures;
            return Err(ClientError::Failed(format!(
                "it failed {failures} times in a row and is left alone for {seconds} seconds; the last time: {reason}"
            )));
        }
        if let Some(started) = self.started {
            tokio::time::sleep_until(started + BETWEEN_STARTS).await;
        }
        self.started = Some(Instant::now());
        Ok(())
    }

    /// A server could not be connected.
    pub(super) fn failed(&mut self, reason: String) {
        self.failures += 1;
        self.last_failure = Some((Instant::now(), reason));
        self.era = Era::Unknown;
    }

    /// A client has ended.
    pub(super) fn ended(&mut self, live: &Live) {
        if live.since.elapsed() < LASTS {
            self.failures += 1;
            self.last_failure = Some((Instant::now(), live.line.reason().to_owned()));
        } else {
            self.failures = 0;
        }
    }

    /// Makes a client, and asks it for the server's tools.
    pub(super) async fn connect(
        &mut self,
        spec: &Arc<ServerSpec>,
        access: &Access,
        leash: Option<&Leash>,
        owner: &CancellationToken,
        patience: Duration,
    ) -> Result<Made, ClientError> {
        let connecting = async {
            let (live, service) = match &spec.transport {
                Kind::Stdio { .. } => self.program(spec, access, leash, owner).await?,
                Kind::Http { .. } => at_address(spec, access, owner).await?,
            };
            let tools = live.list_tools().await?;
            Ok(Made { live, service, tools })
        };
        let late =
            |_| ClientError::Failed(format!("it did not answer within {} seconds", patience.as_secs()));
        tokio::time::timeout(patience, connecting).await.map_err(late)?
    }

    async fn program(
        &mut self,
        spec: &Arc<ServerSpec>,
        access: &Access,
        leash: Option<&Leash>,
        owner: &CancellationToken,
    ) -> Result<(Arc<Live>, RunningService<RoleClient, Handler>), ClientError> {
        if self.era == Era::Unknown {
            let line = Line::new(owner);
            let transport = Stdio::start(leash, spec, access, &line).await?;
            let began = Instant::now();
            match greet(transport, &line, spec, access, automatic()).await {
                Ok(met) => {
                    let info = met.0.peer.peer_info();
                    let is_old = info.is_some_and(|info| info.protocol_version.has_initialize());
                    if is_old && began.elapsed() > PASSED_OVER {
                        self.era = Era::Handshake;
                    }
                    return Ok(met);
                }
                // Old servers may end at a first word that they do not know.
                Err(ClientInitializeError::ConnectionClosed(_)) => {}
                Err(error) => return Err(not_connected(error, &line)),
            }
        }
        let line = Line::new(owner);
        let transport = Stdio::start(leash, spec, access, &line).await?;
        let met = greet(transport, &line, spec, access, ClientLifecycleMode::Initialize).await;
        let met = met.map_err(|error| not_connected(error, &line))?;
        self.era = Era::Handshake;
        Ok(met)
    }
}

async fn at_address(
    spec: &Arc<ServerSpec>,
    access: &Access,
    owner: &CancellationToken,
) -> Result<(Arc<Live>, RunningService<RoleClient, Handler>), ClientError> {
    let address = Address::of(spec, access)?;
    let line = Line::new(owner);
    let error = match greet(address.streamable(Arc::clone(&line)), &line, spec, access, automatic()).await {
        Ok(met) => return Ok(met),
        Err(error) => error,
    };
    // As the protocol has it: where nothing may be posted, the server may be one of the oldest.
    if matches!(refused_by(&error), Some(400 | 404 | 405))
        && let line = Line::new(owner)
        && let Ok(transport) = HttpSse::open(&address, Arc::clone(&line)).await
    {
        let met = greet(transport, &line, spec, access, ClientLifecycleMode::Initialize).await;
        return met.map_err(|error| not_connected(error, &line));
    }
    Err(not_connected(error, &line))
}

/// The newest revision where the server speaks it, else the handshake of the older ones.
fn automatic() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::LATEST],
        legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
    }
}

/// Says the protocol's first words.
async fn greet<T>(
    transport: T,
    line: &Arc<Line>,
    spec: &Arc<ServerSpec>,
    access: &Access,
    mode: ClientLifecycleMode,
) -> Result<(Arc<Live>, RunningService<RoleClient, Handler>), ClientInitializeError>
where
    T: Transport<RoleClient> + 'static,
{
    let (desk, tools_changed) = (Arc::<Desk>::default(), Arc::new(Notify::new()));
    let handler = Handler { desk: Arc::clone(&desk), tools_changed: Arc::clone(&tools_changed) };
    let guarded = Guarded::new(transport, Arc::clone(line));
    let service = serve_client_with_lifecycle(handler, guarded, mode).await?;
    let version = service.peer_info().map(|info| info.protocol_version.clone());
    if !version.as_ref().is_some_and(|version| ProtocolVersion::KNOWN_VERSIONS.contains(version)) {
        line.end("it speaks an unknown revision of the protocol");
        return Err(ClientInitializeError::NoCompatibleProtocolVersion {
            client_supported: ProtocolVersion::KNOWN_VERSIONS.to_vec(),
            server_supported: version.into_iter().collect(),
        });
    }
    let peer = service.peer().clone();
    let parts = (desk, Arc::clone(line), tools_changed);
    Ok((Live::new(Arc::clone(spec), access.clone(), peer, parts), service))
}
