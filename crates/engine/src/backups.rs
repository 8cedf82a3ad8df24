//! The engine's side of backups: it sends its brain and its workspace to its orchestrator, and receives them.
//!
//! Both are asked for with a key that products do not have, at paths that are no part of the API. A running engine only
//! sends. To be restored, an engine is started for maintenance ([`serve_maintenance`]): it opens no brain and runs no
//! agent.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::backup::{BACKUP_KEY_HEADER, BACKUP_PATH, BackupKey, RESTORE_PATH, Restored};
use api::engine::{EngineHealth, HEALTHY, Subsystems};
use api::proof::{CHALLENGE_HEADER, Challenge, PROOF_HEADER};
use api::{ErrorCode, KeyHash};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{AppendHeaders, IntoResponse as _, Response};
use axum::routing::{get, post};
use backup::staging::{self, Layout, Staging};
use backup::stream::{Decoder, Frame, StreamError};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http_service::clock::{Clock as _, SystemClock};
use http_service::http::{ApiError, apply_layers};
use http_service::serve::serve;
use store::{BrainError, snapshot};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::http::download_body;
use crate::{HTTP_BOUNDS, StartError};

/// The number of chunks that may be queued between the files and the network.
const QUEUE_CAPACITY: usize = 4;
/// How long an orchestrator may take for the next chunk of what it sends.
const STALL_TIMEOUT: Duration = Duration::from_mins(1);
/// The largest body that is collected: there is none.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// What sends and receives backups.
pub(crate) struct Backups {
    brain: PathBuf,
    workspace: PathBuf,
    /// Without it, nobody may ask.
    key: Option<BackupKey>,
    /// One at a time: each makes a copy of the brain, or replaces it.
    permit: Arc<Semaphore>,
}

/// Why a restore failed; nothing has changed.
#[derive(Debug, thiserror::Error)]
enum RestoreError {
    #[error("the backup did not arrive: {0}")]
    Arrival(String),
    #[error("the backup is not valid: {0}")]
    Stream(#[from] StreamError),
    #[error("the backup cannot be stored")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Brain(#[from] BrainError),
}

impl From<RestoreError> for ApiError {
    fn from(error: RestoreError) -> Self {
        let described = match &error {
            RestoreError::Io(source) => format!("{error}: {source}"),
            RestoreError::Arrival(_) | RestoreError::Stream(_) | RestoreError::Brain(_) => error.to_string(),
        };
        tracing::warn!(error = described, "The engine was not restored.");
        Self::new(ErrorCode::InvalidRequest, described)
    }
}

impl Backups {
    pub(crate) fn new(brain: &Path, workspace: &Path, key: Option<BackupKey>) -> Arc<Self> {
        Arc::new(Self {
            brain: brain.to_owned(),
            workspace: workspace.to_owned(),
            key,
            permit: Arc::new(Semaphore::new(1)),
        })
    }

    fn authorize(&self, headers: &HeaderMap) -> Result<OwnedSemaphorePermit, ApiError> {
        let sent = headers.get(BACKUP_KEY_HEADER).and_then(|key| key.to_str().ok());
        let is_known = self.key.as_ref().zip(sent).is_some_and(|(key, sent)| key.matches(sent));
        if !is_known {
            return Err(ApiError::new(ErrorCode::NotFound, "there is no such path"));
        }
        Arc::clone(&self.permit).try_acquire_owned().map_err(|_| {
            ApiError::new(ErrorCode::Overloaded, "the engine is being backed up or restored already")
        })
    }

    async fn send(&self, headers: &HeaderMap) -> Result<Response, ApiError> {
        let permit = self.authorize(headers)?;
        let (brain, workspace) = (self.brain.clone(), self.workspace.clone());
        let copied = tokio::task::spawn_blocking(move || snapshot::snapshot(&brain)).await;
        let copy = copied.map_err(|_| ApiError::internal())?.map_err(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "The brain could not be copied for a backup."
            );
            ApiError::new(ErrorCode::InternalError, error.to_string())
        })?;
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        std::thread::Builder::new()
            .name("backup".to_owned())
            .spawn(move || write_stream(copy, &workspace, &sender))
            .map_err(|_| ApiError::internal())?;
        let chunks = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|chunk| (chunk, receiver))
        });
        let body = download_body(chunks, permit);
        Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
    }

    async fn receive(&self, headers: &HeaderMap, body: Body) -> Result<Restored, ApiError> {
        let permit = self.authorize(headers)?;
        let layout = Layout::new(&self.brain, &self.workspace);
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let (done, result) = tokio::sync::oneshot::channel();
        let restoring = move || {
            // Nobody waits for the result if the orchestrator is gone; the restore is then not complete either.
            let _ = done.send(restore(&layout, receiver));
            drop(permit);
        };
        let spawned = std::thread::Builder::new().name("restore".to_owned()).spawn(restoring);
        spawned.map_err(|_| ApiError::internal())?;
        forward(body.into_data_stream(), sender).await;
        let restored = result.await.map_err(|_| ApiError::internal())?;
        Ok(restored?)
    }
}

/// A chunk on its way to the thread that stores it, or why the rest will not come. The end is a chunk of its own: a
/// sender that is dropped has been cut off.
enum Arriving {
    Chunk(Bytes),
    Failed(String),
    End,
}

/// Forwards a body to the thread that stores it, until that thread ends or the body does.
async fn forward<E: std::fmt::Display>(
    body: impl Stream<Item = Result<Bytes, E>>,
    sender: mpsc::Sender<Arriving>,
) {
    let mut body = std::pin::pin!(body);
    loop {
        let (next, is_last) = match tokio::time::timeout(STALL_TIMEOUT, body.next()).await {
            Ok(Some(Ok(chunk))) => (Arriving::Chunk(chunk), false),
            Ok(Some(Err(error))) => (Arriving::Failed(error.to_string()), true),
            Ok(None) => (Arriving::End, true),
            Err(_) => (Arriving::Failed("the orchestrator sent nothing for a minute".to_owned()), true),
        };
        if sender.send(next).await.is_err() || is_last {
            return;
        }
    }
}

/// Stores what arrives beside the brain, and puts it in the brain's place when all of it is there. Blocks.
fn restore(layout: &Layout, mut chunks: mpsc::Receiver<Arriving>) -> Result<Restored, RestoreError> {
    let (mut decoder, mut staging) = (Decoder::default(), Staging::begin(layout)?);
    loop {
        match chunks.blocking_recv() {
            Some(Arriving::Chunk(chunk)) => {
                decoder.push(&chunk);
                while let Some((frame, _)) = decoder.next_frame()? {
                    staging.accept(&frame)?;
                    if matches!(frame, Frame::Start(_)) {
                        tracing::info!("The engine is being restored from a backup.");
                    }
                }
            }
            Some(Arriving::Failed(reason)) => return Err(RestoreError::Arrival(reason)),
            None => return Err(RestoreError::Arrival("it was cut off".to_owned())),
            Some(Arriving::End) => break,
        }
    }
    let summary = decoder.finish()?;
    match staging.brain() {
        Some(brain) => snapshot::check(&brain)?,
        None => return Err(StreamError::Invalid("there is no brain in it").into()),
    }
    staging.complete()?;
    staging::finish(layout)?;
    tracing::info!(
        entries = summary.entries,
        bytes = summary.bytes,
        "The engine was restored from a backup."
    );
    Ok(Restored { entries: summary.entries, bytes: summary.bytes })
}

fn write_stream(mut brain: File, workspace: &Path, sender: &mpsc::Sender<io::Result<Bytes>>) {
    let mut send =
        |bytes| sender.blocking_send(Ok(bytes)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe));
    match backup::source::write(env!("CARGO_PKG_VERSION"), &mut brain, workspace, &mut send) {
        Ok(summary) => {
            tracing::info!(
                entries = summary.entries,
                bytes = summary.bytes,
                skipped = summary.skipped,
                "The engine has sent a backup."
            );
        }
        // The orchestrator is gone; it asks again.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => {
            tracing::warn!(%error, "A backup could not be read to its end.");
            let _ = sender.blocking_send(Err(error));
        }
    }
}

/// The route at which a running engine sends its backup.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(backups: Arc<Backups>) -> Router<S> {
    let send = move |headers: HeaderMap| {
        let backups = Arc::clone(&backups);
        async move { backups.send(&headers).await }
    };
    Router::new().route(BACKUP_PATH, get(send))
}

/// Runs an engine for maintenance until `shutdown`: it answers health checks, sends its backup, and can be restored.
pub async fn serve_maintenance(config: Config, shutdown: CancellationToken) -> Result<(), StartError> {
    let address = config.listen;
    if let Some(folder) = config.brain_path.parent() {
        std::fs::create_dir_all(folder)
            .map_err(|source| BrainError::Folder { folder: folder.to_owned(), source })?;
    }
    let lock = snapshot::lock(&config.brain_path)?;
    finish_restore(&config)?;
    let listener =
        TcpListener::bind(address).await.map_err(|source| StartError::Listen { address, source })?;
    let key = config.token_secret.as_ref().map(BackupKey::derive);
    let backups = Backups::new(&config.brain_path, &config.workspace, key);
    let (clock, key_hash) = (Arc::new(SystemClock::new()), config.key_hash);
    let started_at = clock.monotonic();
    let health = move |headers: HeaderMap| {
        let uptime = clock.monotonic().saturating_sub(started_at);
        async move { maintenance_health(&headers, key_hash, uptime) }
    };
    let receiving = Arc::clone(&backups);
    let receive = move |headers: HeaderMap, body: Body| {
        let backups = Arc::clone(&receiving);
        async move { backups.receive(&headers, body).await.map(axum::Json) }
    };
    let router = routes::<()>(backups).route("/health", get(health)).route(RESTORE_PATH, post(receive));
    tracing::info!("The engine is started for maintenance.");
    serve(listener, apply_layers(router, MAX_BODY_BYTES), HTTP_BOUNDS, shutdown).await;
    drop(lock);
    Ok(())
}

/// Completes a restore that was interrupted. Called before the brain is opened.
pub(crate) fn finish_restore(config: &Config) -> Result<(), BrainError> {
    let layout = Layout::new(&config.brain_path, &config.workspace);
    let finished = staging::finish(&layout).map_err(|source| BrainError::Folder {
        folder: config.brain_path.parent().unwrap_or(Path::new(".")).to_owned(),
        source,
    })?;
    if finished {
        tracing::warn!("A restore that was interrupted has been completed.");
    }
    Ok(())
}

fn maintenance_health(
    headers: &HeaderMap,
    key_hash: KeyHash,
    uptime: Duration,
) -> (AppendHeaders<Option<(HeaderName, String)>>, axum::Json<EngineHealth>) {
    let healthy = HEALTHY.to_owned();
    let subsystems = Subsystems {
        database: healthy.clone(),
        llm_provider: healthy.clone(),
        asset_directory: healthy.clone(),
    };
    let health = EngineHealth { status: healthy, uptime_seconds: uptime.as_secs_f64(), subsystems };
    let challenge = headers.get(CHALLENGE_HEADER).and_then(|text| Challenge::parse(text.to_str().ok()?));
    let proof = challenge.map(|challenge| (HeaderName::from_static(PROOF_HEADER), challenge.proof(key_hash)));
    (AppendHeaders(proof), axum::Json(health))
}
