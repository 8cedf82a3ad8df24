//! The rules: who gets an engine, which moves are legal, what waits for what.
//!
//! A change of an engine is claim → act → settle: its row is claimed by compare-and-swap, the backend acts,
//! and the next state is committed with its audit row. The table in [`lifecycle`] says which change is legal.
//! Each change flies as a task of its own ([`flight`]), so that callers share it and none of them cancels it by
//! hanging up.

mod boot;
mod boot_gate;
mod calls;
mod destroying;
mod duties;
mod error;
mod events;
mod exits;
mod explain;
mod flight;
mod launching;
pub(crate) mod lifecycle;
mod long_answers;
mod moving;
mod persisting;
mod policies;
mod products;
mod provisioning;
mod pursuit;
mod rate;
mod reads;
mod recognising;
mod reconcile;
mod record;
mod refused_keys;
mod repair;
mod restarting;
mod resting;
mod rotating;
mod supervision;
mod telemetry;
mod versions;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use contract::{EngineImage, Timestamp};
use secrecy::SecretString;
use service::clock::Clock;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use calls::Reach;
pub use error::FleetError;
pub(crate) use events::{Follower, Told};
pub(crate) use long_answers::{LongAnswer, LongAnswers};
pub(crate) use policies::may_act;

use self::boot_gate::BootGate;
use self::flight::Flights;
use self::policies::Policies;
use self::products::ProductCache;
use self::rate::RateLimiter;
use self::reads::log_readers;
use self::refused_keys::RefusedKeys;
pub use self::supervision::Rules;
use self::supervision::Supervision;
pub(crate) use self::telemetry::Telemetry;
use crate::backend::{Bounded, DataRoot, EngineBackend, Exit, Probe};
use crate::config::PortRange;
use crate::keys::Vault;
use crate::registry::{EngineRow, Entry, Next, PortRule, Registry, RegistryError};
use crate::sabotage::{self, Saboteur};

/// What a change may take beyond a boot: at least what the backend's calls around it may take together.
const BEYOND_BOOT: Duration = Duration::from_secs(40);

/// Exits that a booting engine may fall behind before it misses its own: it looks up once per poll.
const EXIT_BACKLOG: usize = 4_096;

/// All engines of one deployment.
pub struct Fleet {
    settings: Settings,
    registry: Registry,
    vault: Vault,
    backend: Bounded,
    probe: Arc<dyn Probe>,
    ports: PortRule,
    clock: Arc<dyn Clock>,
    products: ProductCache,
    /// Held by whoever replaces a policy: one after the other.
    policy_turns: Arc<tokio::sync::Mutex<()>>,
    rates: RateLimiter,
    flights: Arc<Flights>,
    supervision: Supervision,
    boot_gate: BootGate,
    policies: Policies,
    telemetry: Telemetry,
    log_readers: Arc<Semaphore>,
    long_answers: LongAnswers,
    refused_keys: RefusedKeys,
    exits: broadcast::Sender<Exit>,
    ready: watch::Sender<bool>,
    /// Streams that would never end by themselves end with this.
    closing: CancellationToken,
}

/// What the rules are told by the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// This process, as claims name it.
    pub(crate) owner: String,
    /// The image of engines that do not ask for one.
    pub(crate) engine_image: EngineImage,
    /// Variables passed through to every engine.
    pub(crate) engine_env: Vec<(String, SecretString)>,
    pub(crate) boot_timeout: Duration,
    pub(crate) ports: PortRange,
    /// The host in engines' addresses, as their callers reach them.
    pub(crate) url_host: String,
    pub(crate) rules: Rules,
}

/// What the fleet stands on.
pub(crate) struct Parts {
    pub(crate) registry: Registry,
    pub(crate) vault: Vault,
    pub(crate) backend: Arc<dyn EngineBackend>,
    pub(crate) data: DataRoot,
    pub(crate) probe: Arc<dyn Probe>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Fleet {
    pub(crate) fn new(settings: Settings, parts: Parts) -> Arc<Self> {
        let Parts { registry, vault, backend, data, probe, clock } = parts;
        let probing = Arc::clone(&backend);
        let leases = PortRule::new(settings.ports, move |port| probing.port_is_free(port));
        let (exits, _) = broadcast::channel(EXIT_BACKLOG);
        Arc::new(Self {
            supervision: Supervision::new(settings.rules),
            boot_gate: if sabotage::by(Saboteur::NoGate) { BootGate::wide_open() } else { BootGate::new() },
            policies: Policies::default(),
            telemetry: Telemetry::new(),
            log_readers: Arc::new(Semaphore::new(log_readers())),
            long_answers: LongAnswers::new(),
            refused_keys: RefusedKeys::default(),
            settings,
            registry,
            vault,
            backend: Bounded::new(backend, Arc::clone(&clock), data),
            probe,
            ports: leases,
            clock,
            products: ProductCache::default(),
            policy_turns: Arc::default(),
            rates: RateLimiter::default(),
            flights: Arc::default(),
            exits,
            ready: watch::Sender::new(false),
            closing: CancellationToken::new(),
        })
    }

    /// Whether the registry has been compared with what runs: until then nothing is served.
    pub(crate) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Waits until it has been compared.
    pub async fn ready(&self) {
        // The sender lives as long as the fleet.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Notes that the key in `header` of the request at hand was refused.
    pub(crate) fn key_was_refused(&self, header: &'static str, client: Option<IpAddr>) {
        self.refused_keys.log(header, client, self.clock.monotonic());
    }

    /// How long a caller waits at most, whatever happens.
    fn patience(&self) -> Duration {
        self.settings.boot_timeout + BEYOND_BOOT
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Settles a change in the registry, and tells the supervisor.
    async fn settle(
        &self,
        row: &EngineRow,
        next: Next,
        entry: Option<&Entry>,
    ) -> Result<Option<EngineRow>, RegistryError> {
        // Before the commit: what is due some time from now is due then, whatever becomes of the wall clock.
        let (now, wall) = (self.moment(), self.now());
        let wanted = matches!(next, Next::Running { wanted: true, .. });
        let moves = !matches!(next, Next::Unchanged | Next::Rotated(_));
        let rotates = matches!(next, Next::Rotated(_));
        let settled = match self.persist(row, next, entry).await {
            Err(RegistryError::Database(_)) if sabotage::by(Saboteur::AckUnwritten) => Some(row.clone()),
            settled => settled?,
        };
        if let (Some(settled), true) = (&settled, rotates) {
            self.supervision.set_key_hash(settled.engine_id, settled.key_hash);
        }
        match &settled {
            None => self.supervision.forget(row.engine_id),
            Some(settled) if moves => self.supervision.follow(settled, wanted, now, wall),
            Some(_) => {}
        }
        Ok(settled)
    }

    /// The answers that last.
    pub(crate) const fn long_answers(&self) -> &LongAnswers {
        &self.long_answers
    }

    /// The figures for the operator's monitoring.
    pub(crate) const fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// These figures, in the `OpenMetrics` text format.
    pub(crate) fn open_metrics(&self) -> String {
        self.telemetry.encode(self.supervision.len(), self.flights.len())
    }

    /// Ends the streams that would never end by themselves.
    pub(crate) fn end_streams(&self) {
        self.closing.cancel();
    }

    /// Waits for the changes under way, at most for `limit`.
    pub(crate) async fn landed(&self, limit: Duration) {
        self.flights.landed(limit).await;
    }

    /// Returns when another orchestrator has taken the registry over.
    pub(crate) async fn deposed(&self) {
        self.registry.deposed().await;
    }

    /// Closes the registry.
    pub(crate) async fn close(&self) {
        self.registry.close().await;
    }

    /// Whether neither the registry nor a disk has anything to do.
    #[cfg(test)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.registry.is_quiet() && self.backend.is_quiet()
    }

    #[cfg(test)]
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Drops every change where it stands, as a kill does.
    pub(crate) fn abandon(&self) {
        self.flights.abandon();
    }
}
