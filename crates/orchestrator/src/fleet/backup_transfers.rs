//! Moves the content of backups between engines and the store: one engine at a time, whatever asks for it.

use std::fmt;
use std::io::{self, Seek as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::backup::{BACKUP_KEY_HEADER, BACKUP_PATH, BackupAction, BackupKey, RESTORE_PATH, Restored};
use api::{EngineId, ErrorBody};
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, StatusCode, header};
use backend::Placement;
use backup::{BackupError, BackupId, BackupWriter, Owner, Retention, Store, Target, Written};
use futures::StreamExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use resources::keyed_locks::KeyedLocks;
use tokio::sync::{OnceCell, watch};

use super::FleetError;
use super::browser::token_secret;
use super::shared::Shared;
use crate::config::DatabaseUrl;
use crate::keys::MasterKey;
use crate::metrics::labels::BackupOutcome;
use crate::registry::{self, DumpError, EngineRow, RunningEngine};

/// The name of the fact, in the registry, where backups have been made.
const STORE: &str = "backup_store";
/// How long an engine may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an engine may take to begin its answer: it copies its brain first.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(10);
/// How long an engine may take for the next part of its content.
const STALL_TIMEOUT: Duration = Duration::from_mins(1);
/// How long the backup of one engine, or its restore, may take.
const TRANSFER_TIMEOUT: Duration = Duration::from_hours(4);
/// How long a backup may hold up a sleep: an engine that has been asked to be quiet is so for a minute.
const SLEEP_BACKUP_TIMEOUT: Duration = Duration::from_secs(40);
/// The largest error of an engine that is read, in bytes.
const MAX_ERROR_BYTES: usize = 16 * 1024;

/// What the operator has set about backups.
#[derive(Clone, Debug)]
pub struct BackupSettings {
    /// Where backups are kept.
    pub target: Target,
    /// The time between two backups of each engine by the schedule; `None` for no schedule.
    pub interval: Option<Duration>,
    /// Whether engines are backed up when they go to sleep.
    pub at_sleep: bool,
    /// Which backups are kept.
    pub retention: Retention,
}

/// What backups need.
#[derive(Clone, Debug)]
pub(crate) struct BackupSetup {
    pub(crate) settings: BackupSettings,
    /// The key under which the store's root key is sealed.
    pub(crate) master_key: MasterKey,
    /// The registry, which is backed up, too.
    pub(crate) database: DatabaseUrl,
}

/// What an engine is launched for in maintenance.
pub(super) enum MaintenanceOrder {
    BackUp {
        full: bool,
        result: watch::Sender<Option<Result<Transferred, FleetError>>>,
    },
    /// `None`: to the latest backup.
    Restore {
        backup_id: Option<BackupId>,
        result: watch::Sender<Option<Result<Transferred, FleetError>>>,
    },
}

/// What was moved.
#[derive(Clone, Copy, Debug)]
pub(super) enum Transferred {
    Saved(Written),
    Restored { backup_id: BackupId, entries: u64, bytes: u64 },
}

impl MaintenanceOrder {
    pub(super) fn back_up(full: bool) -> Arc<Self> {
        Arc::new(Self::BackUp { full, result: watch::Sender::new(None) })
    }

    pub(super) fn restore(backup_id: Option<BackupId>) -> Arc<Self> {
        Arc::new(Self::Restore { backup_id, result: watch::Sender::new(None) })
    }

    pub(super) const fn restores(&self) -> bool {
        matches!(self, Self::Restore { .. })
    }

    pub(super) const fn is_full(&self) -> bool {
        matches!(self, Self::BackUp { full: true, .. })
    }

    const fn result(&self) -> &watch::Sender<Option<Result<Transferred, FleetError>>> {
        match self {
            Self::BackUp { result, .. } | Self::Restore { result, .. } => result,
        }
    }

    /// Says how it ended, for whoever has given up waiting for the operation.
    pub(super) fn report(&self, transferred: Result<Transferred, FleetError>) {
        self.result().send_replace(Some(transferred));
    }

    /// Waits for its end, for as long as a transfer may take.
    pub(super) async fn ended(&self) -> Result<Transferred, FleetError> {
        let mut result = self.result().subscribe();
        let ended = tokio::time::timeout(TRANSFER_TIMEOUT, result.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(result)) => result.clone().unwrap_or(Err(FleetError::OperationTimeout)),
            Ok(Err(_)) | Err(_) => Err(FleetError::OperationTimeout),
        }
    }
}

impl fmt::Debug for MaintenanceOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.restores() { "restore" } else { "backup" })
    }
}

/// Moves content between engines and the store.
pub(crate) struct BackupTransfers {
    shared: Arc<Shared>,
    setup: Option<BackupSetup>,
    store: OnceCell<Arc<Store>>,
    http: Client<HttpConnector, Body>,
    /// Serializes the operations on one owner's backups.
    locks: KeyedLocks<Owner>,
    /// What was learned about the engines' latest backups, so that the store need not be asked.
    latest: Mutex<std::collections::HashMap<EngineId, BackupId>>,
}

impl BackupTransfers {
    pub(super) fn new(shared: Arc<Shared>, setup: Option<BackupSetup>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Self {
            shared,
            setup,
            store: OnceCell::new(),
            http: Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector),
            locks: KeyedLocks::default(),
            latest: Mutex::default(),
        }
    }

    pub(super) fn settings(&self) -> Option<&BackupSettings> {
        self.setup.as_ref().map(|setup| &setup.settings)
    }

    fn required_setup(&self) -> Result<&BackupSetup, FleetError> {
        self.setup.as_ref().ok_or_else(|| {
            FleetError::InvalidBackupJob(
                "backups are not configured: set ORCH_BACKUP_URL and start the orchestrator again".to_owned(),
            )
        })
    }

    /// The store, which is opened when it is first needed.
    pub(super) async fn store(&self) -> Result<&Arc<Store>, FleetError> {
        self.store.get_or_try_init(|| self.open_store()).await
    }

    async fn open_store(&self) -> Result<Arc<Store>, FleetError> {
        let BackupSetup { settings: BackupSettings { target, .. }, master_key, .. } =
            self.required_setup()?;
        let open = async |create| match Store::open(target, master_key, create).await {
            Ok(opened) => Ok(opened),
            Err(invalid) => Err(FleetError::Backup(invalid.to_string())),
        };
        let (registry, name) = (&self.shared.registry, target.to_string());
        let opened = match open(false).await? {
            // A folder whose disk is not mounted must not become a second store.
            Err(BackupError::NotFound) if registry.meta(STORE).await?.as_ref() == Some(&name) => {
                return Err(FleetError::Backup(format!(
                    "{name} had this deployment's backups and is empty: is its disk mounted? For a new store, change \
                     ORCH_BACKUP_URL"
                )));
            }
            Err(BackupError::NotFound) => open(true).await?,
            opened => opened,
        };
        let store = opened?;
        if registry.meta(STORE).await?.as_ref() != Some(&name) {
            registry.replace_meta(STORE, Some(&name), None).await?;
        }
        Ok(Arc::new(store))
    }

    /// Serializes an operation on an owner's backups.
    pub(super) async fn lock(&self, owner: Owner) -> tokio::sync::OwnedMutexGuard<()> {
        self.locks.lock(owner).await
    }

    /// The latest backup of an engine.
    pub(super) async fn latest(&self, engine_id: EngineId) -> Result<Option<BackupId>, FleetError> {
        if let Some(latest) = self.latest.lock().get(&engine_id) {
            return Ok(Some(*latest));
        }
        let latest = self.store().await?.ids(Owner::Engine(engine_id)).await?.pop();
        if let Some(latest) = latest {
            self.latest.lock().insert(engine_id, latest);
        }
        Ok(latest)
    }

    /// Forgets an engine, which is gone.
    pub(super) fn forget(&self, engine_id: EngineId) {
        self.latest.lock().remove(&engine_id);
    }

    /// Whether a backup has everything of an engine that does not run: it was made while the engine was at rest, and the
    /// engine was not healthy since.
    pub(super) async fn is_saved(&self, row: &EngineRow) -> Result<bool, FleetError> {
        let latest = self.latest(row.engine_id).await?;
        Ok(latest.is_some_and(|latest| {
            latest.at_rest() && row.last_health_at.is_none_or(|health| health.unix_ms() <= latest.at_ms())
        }))
    }

    /// Reads the backup to restore an engine to, this one or the latest, and checks all of it.
    pub(super) async fn check(
        &self,
        engine_id: EngineId,
        backup_id: Option<BackupId>,
    ) -> Result<BackupId, FleetError> {
        let (store, owner) = (self.store().await?, Owner::Engine(engine_id));
        let _serialized = self.lock(owner).await;
        Ok(store.verify(owner, backup_id).await?.0)
    }

    /// Backs up an engine that is about to sleep, if that is wished. A failure is logged: the schedule makes up for it.
    pub(super) async fn save_before_sleep(&self, engine: RunningEngine<'_>, at_rest: bool) {
        if !self.settings().is_some_and(|settings| settings.at_sleep) {
            return;
        }
        let saving = self.save(engine.row, engine.placement, at_rest, false);
        let saved = tokio::time::timeout(SLEEP_BACKUP_TIMEOUT, saving).await;
        let metrics = &self.shared.metrics;
        let outcome = if matches!(saved, Ok(Ok(_))) { BackupOutcome::Done } else { BackupOutcome::Failed };
        metrics.backup_engine(BackupAction::BackUp, outcome);
        match saved {
            Ok(Ok(written)) => metrics.backup_stored(written.stored_bytes),
            Ok(Err(error)) => {
                tracing::warn!(engine_id = %engine.row.engine_id, %error, "An engine could not be backed up before it sleeps.");
            }
            Err(_) => {
                tracing::warn!(engine_id = %engine.row.engine_id, "An engine was not backed up in time before it sleeps.");
            }
        }
    }

    /// Backs up an engine, which runs or was launched for maintenance. `at_rest`: it does nothing meanwhile, and is
    /// stopped afterwards.
    pub(super) async fn save(
        &self,
        row: &EngineRow,
        placement: Placement,
        at_rest: bool,
        full: bool,
    ) -> Result<Written, FleetError> {
        let saving = self.save_untimed(row, placement, at_rest, full);
        tokio::time::timeout(TRANSFER_TIMEOUT, saving).await.map_err(|_| FleetError::OperationTimeout)?
    }

    async fn save_untimed(
        &self,
        row: &EngineRow,
        placement: Placement,
        at_rest: bool,
        full: bool,
    ) -> Result<Written, FleetError> {
        let (store, owner) = (self.store().await?, Owner::Engine(row.engine_id));
        let _serialized = self.lock(owner).await;
        let request = self.request(row, placement, Method::GET, BACKUP_PATH, Body::empty())?;
        let response = self.send(request).await?;
        // Only for an engine that is there: this makes a key for those that have none yet.
        let mut writer = BackupWriter::begin(Arc::clone(store), owner, full).await?;
        let mut content = Body::new(response.into_body()).into_data_stream();
        loop {
            match tokio::time::timeout(STALL_TIMEOUT, content.next()).await {
                Ok(Some(Ok(chunk))) => writer.push(&chunk).await?,
                Ok(Some(Err(_))) => {
                    return Err(FleetError::Backup("the engine's backup was cut off".to_owned()));
                }
                Ok(None) => break,
                Err(_) => return Err(FleetError::Backup("the engine stopped sending its backup".to_owned())),
            }
        }
        // At its end: what was healthy before is in it.
        let id = BackupId::new(self.shared.clock.now(), at_rest)?;
        let written = writer.finish(id, self.check_leadership()).await?;
        self.latest.lock().insert(row.engine_id, id);
        tracing::info!(
            engine_id = %row.engine_id,
            backup_id = %id,
            bytes = written.bytes,
            stored_bytes = written.stored_bytes,
            pieces = written.pieces,
            new_pieces = written.new_pieces,
            skipped = written.skipped,
            "An engine was backed up."
        );
        Ok(written)
    }

    /// Backs up the registry.
    pub(super) async fn save_registry(&self) -> Result<Written, FleetError> {
        let saving = self.save_registry_untimed();
        tokio::time::timeout(TRANSFER_TIMEOUT, saving).await.map_err(|_| FleetError::OperationTimeout)?
    }

    async fn save_registry_untimed(&self) -> Result<Written, FleetError> {
        let (store, database) = (self.store().await?, &self.required_setup()?.database);
        let _serialized = self.lock(Owner::Registry).await;
        let mut writer = BackupWriter::begin(Arc::clone(store), Owner::Registry, false).await?;
        let failed = |error: DumpError| FleetError::Backup(error.to_string());
        // Its rows are sealed or hashed where they are secret; the file has no name, and is gone when it is closed.
        let mut rows = io::BufWriter::new(tempfile::tempfile().map_err(FleetError::internal)?);
        registry::dump(database, &mut rows).await.map_err(failed)?;
        let mut rows = rows.into_inner().map_err(|error| FleetError::internal(error.into_error()))?;
        rows.seek(io::SeekFrom::Start(0)).map_err(FleetError::internal)?;
        let (sender, mut receiver) = tokio::sync::mpsc::channel(2);
        let reading = tokio::task::spawn_blocking(move || {
            let mut send =
                |bytes| sender.blocking_send(bytes).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe));
            backup::source::write_registry(env!("CARGO_PKG_VERSION"), &mut rows, &mut send)
        });
        while let Some(bytes) = receiver.recv().await {
            writer.push(&bytes).await?;
        }
        reading.await.map_err(FleetError::internal)?.map_err(FleetError::internal)?;
        let id = BackupId::new(self.shared.clock.now(), false)?;
        let written = writer.finish(id, self.check_leadership()).await?;
        tracing::info!(
            backup_id = %id,
            bytes = written.bytes,
            stored_bytes = written.stored_bytes,
            "The registry was backed up."
        );
        Ok(written)
    }

    /// Fails if another orchestrator has taken over: the backup is then its own business.
    async fn check_leadership(&self) -> Result<(), FleetError> {
        Ok(self.shared.registry.check_leadership().await?)
    }

    /// Restores an engine that was launched for maintenance.
    pub(super) async fn load(
        &self,
        row: &EngineRow,
        placement: Placement,
        backup_id: BackupId,
    ) -> Result<Restored, FleetError> {
        let loading = self.load_untimed(row, placement, backup_id);
        tokio::time::timeout(TRANSFER_TIMEOUT, loading).await.map_err(|_| FleetError::OperationTimeout)?
    }

    async fn load_untimed(
        &self,
        row: &EngineRow,
        placement: Placement,
        backup_id: BackupId,
    ) -> Result<Restored, FleetError> {
        let (store, owner) = (Arc::clone(self.store().await?), Owner::Engine(row.engine_id));
        let _serialized = self.lock(owner).await;
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(2);
        let reading = async {
            let (_, mut content) = store.content(owner, Some(backup_id)).await?;
            loop {
                match content.next().await {
                    Ok(Some(bytes)) => {
                        // The engine has refused it; its answer says why.
                        if sender.send(Ok(bytes)).await.is_err() {
                            return Ok(());
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // The engine must see that this is not the end.
                        let _ = sender.send(Err(std::io::Error::other("cut off"))).await;
                        return Err(FleetError::from(error));
                    }
                }
            }
            drop(sender);
            Ok(())
        };
        let chunks = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|chunk| (chunk, receiver))
        });
        let request = self.request(row, placement, Method::POST, RESTORE_PATH, Body::from_stream(chunks))?;
        let (read, sent) = tokio::join!(reading, self.send(request));
        // A damaged backup is the cause of whatever the engine says about it.
        read?;
        let body = axum::body::to_bytes(Body::new(sent?.into_body()), MAX_ERROR_BYTES).await;
        let restored = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
        restored
            .ok_or_else(|| FleetError::Backup("the engine's answer to its restore cannot be read".to_owned()))
    }

    fn request(
        &self,
        row: &EngineRow,
        placement: Placement,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Request<Body>, FleetError> {
        let address: Option<SocketAddr> = self.shared.backend.address(row.engine_id, placement);
        let address =
            address.ok_or_else(|| FleetError::Backup("the engine has no address yet".to_owned()))?;
        let key = BackupKey::derive(&token_secret(&self.shared, row.engine_id, &row.sealed_secrets_key)?);
        let mut value = axum::http::HeaderValue::from_str(key.expose()).map_err(FleetError::internal)?;
        value.set_sensitive(true);
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{address}{path}"))
            .header(header::HOST, address.to_string())
            .header(BACKUP_KEY_HEADER, value);
        request.body(body).map_err(FleetError::internal)
    }

    async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<axum::http::Response<hyper::body::Incoming>, FleetError> {
        let uploads = request.method() == Method::POST;
        let limit = if uploads { TRANSFER_TIMEOUT } else { ANSWER_TIMEOUT };
        let response = match tokio::time::timeout(limit, self.http.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::info!(error, "An engine did not answer a request about its backup.");
                return Err(FleetError::Backup("the engine did not answer".to_owned()));
            }
            Err(_) => return Err(FleetError::Backup("the engine did not answer in time".to_owned())),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = axum::body::to_bytes(Body::new(response.into_body()), MAX_ERROR_BYTES).await;
        let message = body.ok().and_then(|body| serde_json::from_slice::<ErrorBody>(&body).ok());
        let message = message.map(|body| body.error.message);
        Err(FleetError::Backup(match (status, message) {
            (StatusCode::NOT_FOUND, _) => {
                "the engine's version cannot be backed up or restored: move it to this orchestrator's version"
                    .to_owned()
            }
            (_, Some(message)) => message,
            (status, None) => format!("the engine answered {status}"),
        }))
    }
}
