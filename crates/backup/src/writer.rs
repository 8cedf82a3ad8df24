//! Writes a backup: stores the pieces of a stream that the latest backup does not have, and at the end the manifest.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::chunker::Chunker;
use crate::keys::{Owner, PieceId};
use crate::manifest::{Manifest, PieceRef};
use crate::store::CONCURRENT_REQUESTS;
use crate::stream::{Decoder, Frame};
use crate::{BackupError, BackupId, Store, StoreKey};

/// A backup that is being written. Dropping it gives it up.
pub struct BackupWriter {
    store: Arc<Store>,
    key: Arc<StoreKey>,
    decoder: Decoder,
    chunker: Chunker,
    program: String,
    pieces: Vec<PieceRef>,
    /// The pieces that need not be stored: those of the latest backup, which no collection removes, and of this one.
    stored: HashSet<PieceId>,
    uploads: JoinSet<Result<u64, BackupError>>,
    written: Written,
}

/// What a backup has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The bytes of the content.
    pub bytes: u64,
    /// Files, folders and links.
    pub entries: u64,
    /// Files that could not be read.
    pub skipped: u64,
    /// The pieces of the backup.
    pub pieces: u64,
    /// The pieces that were not there yet.
    pub new_pieces: u64,
    /// What was added to the store, in bytes.
    pub stored_bytes: u64,
}

impl BackupWriter {
    /// Begins a backup. `full`: all pieces are stored again, also those that the latest backup has.
    pub async fn begin(store: Arc<Store>, owner: Owner, full: bool) -> Result<Self, BackupError> {
        let key = store.key_or_create(owner).await?;
        let latest = if full { None } else { store.ids(owner).await?.pop() };
        let stored = match latest {
            Some(latest) => match store.manifest(&key, latest).await {
                Ok(manifest) => manifest.pieces.into_iter().map(|piece| piece.id).collect(),
                // A backup that cannot be read is no basis for another one.
                Err(error) if error.is_permanent() => HashSet::new(),
                Err(error) => return Err(error),
            },
            None => HashSet::new(),
        };
        Ok(Self {
            store,
            key: Arc::new(key),
            decoder: Decoder::default(),
            chunker: Chunker::default(),
            program: String::new(),
            pieces: Vec::new(),
            stored,
            uploads: JoinSet::new(),
            written: Written::default(),
        })
    }

    /// Adds bytes of the stream.
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.decoder.push(bytes);
        while let Some((frame, bytes)) = self.decoder.next_frame()? {
            if let Frame::Start(start) = &frame {
                self.program.clone_from(&start.program);
            }
            let mut complete = Vec::new();
            self.chunker.push(&self.key.key, &frame, &bytes, &mut |piece| complete.push(piece));
            for piece in complete {
                self.add_piece(piece).await?;
            }
        }
        Ok(())
    }

    /// How many bytes have been read and stored so far.
    pub fn progress(&self) -> Written {
        self.written
    }

    /// Completes the backup after the end of the stream, under `id`. `may_commit` is asked last: whether this process still owns
    /// what it has backed up.
    pub async fn finish<E: From<BackupError>>(
        mut self,
        id: BackupId,
        may_commit: impl Future<Output = Result<(), E>>,
    ) -> Result<Written, E> {
        let summary = std::mem::take(&mut self.decoder).finish().map_err(BackupError::from)?;
        while !self.uploads.is_empty() {
            self.await_upload().await?;
        }
        may_commit.await?;
        let manifest = Manifest::new(self.key.owner, id, self.program, summary, self.pieces);
        self.written.stored_bytes += self.store.put_manifest(&self.key, id, &manifest).await?;
        self.written.bytes = summary.bytes;
        self.written.entries = summary.entries;
        self.written.skipped = summary.skipped;
        Ok(self.written)
    }

    async fn add_piece(&mut self, content: Bytes) -> Result<(), BackupError> {
        let id = self.key.key.piece_id(&content);
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        self.pieces.push(PieceRef { id, length });
        self.written.pieces += 1;
        self.written.bytes += u64::from(length);
        if !self.stored.insert(id) {
            return Ok(());
        }
        self.written.new_pieces += 1;
        // So many pieces are in memory at most.
        while self.uploads.len() >= CONCURRENT_REQUESTS {
            self.await_upload().await?;
        }
        let (store, key) = (Arc::clone(&self.store), Arc::clone(&self.key));
        self.uploads.spawn(async move { store.put_piece(&key, id, content).await });
        Ok(())
    }

    async fn await_upload(&mut self) -> Result<(), BackupError> {
        if let Some(uploaded) = self.uploads.join_next().await {
            self.written.stored_bytes += uploaded.map_err(|_| BackupError::NoRandomness)??;
        }
        Ok(())
    }
}
