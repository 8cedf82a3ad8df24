//! The operations on a store of backups.
//!
//! | object | what |
//! |---|---|
//! | `root` | the root key, sealed under a key that derives from the master key |
//! | `k/{owner}` | the owner's data key |
//! | `m/{owner}/{backup}` | a backup's manifest, written last: a backup is there when its manifest is |
//! | `p/{owner}/{xx}/{piece}` | a piece |
//!
//! One deployment uses a store, and callers let no two operations on one owner overlap. What a killed operation leaves
//! is harmless: pieces without a manifest are collected later.

use std::collections::HashSet;
use std::sync::Arc;

use api::Timestamp;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use http_service::vault::MasterKey;
use object_store::ObjectStore;
use zeroize::Zeroizing;

use crate::access::Access;
use crate::chunker::MAX_PIECE_BYTES;
use crate::keys::{self, DataKey, KEY_BYTES, Owner, PieceId, RootKey, RootSeal, Tag};
use crate::manifest::{Manifest, PieceRef};
use crate::seal::{self, Kind};
use crate::stream::{Decoder, Summary};
use crate::{BackupError, BackupId, InvalidTarget, Retention, Target};

/// How many requests for one operation are under way at once.
pub(crate) const CONCURRENT_REQUESTS: usize = 4;
/// The age below which a piece without a manifest is kept: it may belong to a backup that is being made.
const MIN_COLLECTED_AGE_MS: i64 = 24 * 3_600_000;

const ROOT: &str = "root";

/// A store of backups.
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    root: RootKey,
}

/// The key of an owner's backups.
pub struct StoreKey {
    pub(crate) owner: Owner,
    pub(crate) tag: Tag,
    pub(crate) key: DataKey,
}

/// What is known about a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    /// Its id.
    pub id: BackupId,
    /// The version of the program that sent the content.
    pub program: String,
    /// Entries, and the bytes of their content.
    pub entries: u64,
    /// The bytes of the entries' content.
    pub bytes: u64,
    /// Files that could not be read.
    pub skipped: u64,
}

/// What a collection has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Backups that had expired.
    pub backups: u64,
    /// Pieces that no backup needs.
    pub pieces: u64,
    /// The size of these pieces in the store.
    pub bytes: u64,
}

impl Store {
    /// Opens the store at `target`, and creates its root key if the store is empty and `create` is set.
    pub async fn open(
        target: &Target,
        master: &MasterKey,
        create: bool,
    ) -> Result<Result<Self, BackupError>, InvalidTarget> {
        let objects = target.open()?;
        Ok(Self::open_objects(objects, master, create).await)
    }

    pub(crate) async fn open_objects(
        objects: Arc<dyn ObjectStore>,
        master: &MasterKey,
        create: bool,
    ) -> Result<Self, BackupError> {
        let seal = RootSeal::new(master)?;
        let access = Access::new(&objects);
        let sealed = match access.get(ROOT).await {
            Err(BackupError::Missing { .. }) if create => {
                // A store that lost its root key must not look like a new one.
                if access.any("k").await? || access.any("m").await? {
                    return Err(BackupError::Missing { object: ROOT.to_owned() });
                }
                let key = keys::generate()?;
                let object = seal.cipher.seal(Kind::Root, ROOT, &seal.id, key.as_slice())?;
                access.create(ROOT, object).await?;
                access.get(ROOT).await?
            }
            Err(BackupError::Missing { .. }) => return Err(BackupError::NotFound),
            got => got?,
        };
        let root = RootKey::new(open_root(&seal, &sealed)?);
        Ok(Self { objects, root })
    }

    /// Seals the root key under another master key. Returns whether it was not already.
    pub async fn reseal(
        target: &Target,
        old: &MasterKey,
        new: &MasterKey,
    ) -> Result<Result<bool, BackupError>, InvalidTarget> {
        let objects = target.open()?;
        Ok(reseal_objects(&objects, old, new).await)
    }

    /// Returns the key of the owner's backups; `None` if there is none: nothing of this owner can be read.
    pub async fn key(&self, owner: Owner) -> Result<Option<StoreKey>, BackupError> {
        let tag = self.root.tag(owner);
        let name = key_name(&tag);
        match self.access().get(&name).await {
            Ok(object) => {
                let key = self.root.cipher()?.open(Kind::DataKey, &name, 0, &object)?;
                Ok(Some(StoreKey { owner, tag, key: DataKey::new(&key_bytes(&name, &key)?)? }))
            }
            Err(BackupError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the key of the owner's backups, which is created if it is missing.
    pub async fn key_or_create(&self, owner: Owner) -> Result<StoreKey, BackupError> {
        if let Some(key) = self.key(owner).await? {
            return Ok(key);
        }
        let tag = self.root.tag(owner);
        let name = key_name(&tag);
        let object = self.root.cipher()?.seal(Kind::DataKey, &name, &[], keys::generate()?.as_slice())?;
        self.access().create(&name, object).await?;
        // Read again: another may have created it first.
        self.key(owner).await?.ok_or(BackupError::Missing { object: name })
    }

    /// Returns the ids of the owner's backups, oldest first, without reading them.
    pub async fn ids(&self, owner: Owner) -> Result<Vec<BackupId>, BackupError> {
        let prefix = format!("m/{}", self.root.tag(owner).as_str());
        let mut ids: Vec<BackupId> = self
            .access()
            .list(&prefix)
            .try_filter_map(|(name, ..)| async move {
                Ok(name.rsplit('/').next().and_then(|id| id.parse::<BackupId>().ok()))
            })
            .try_collect()
            .await?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// Returns the owner's backups, oldest first.
    pub async fn list(&self, owner: Owner) -> Result<Vec<BackupSummary>, BackupError> {
        let Some(key) = self.key(owner).await? else { return Ok(Vec::new()) };
        let ids = self.ids(owner).await?;
        let key = &key;
        stream::iter(ids)
            .map(|id| async move {
                let Manifest { program, entries, bytes, skipped, .. } = self.manifest(key, id).await?;
                Ok(BackupSummary { id, program, entries, bytes, skipped })
            })
            .buffered(CONCURRENT_REQUESTS)
            .try_collect()
            .await
    }

    /// Opens the content of a backup. `None`: of the latest one.
    pub async fn content(
        &self,
        owner: Owner,
        id: Option<BackupId>,
    ) -> Result<(BackupId, Content<'_>), BackupError> {
        let key = self.key(owner).await?.ok_or(BackupError::NotFound)?;
        let id = match id {
            Some(id) => id,
            None => self.ids(owner).await?.pop().ok_or(BackupError::NotFound)?,
        };
        let manifest = match self.manifest(&key, id).await {
            Err(BackupError::Missing { .. }) => return Err(BackupError::NotFound),
            manifest => manifest?,
        };
        let key = Arc::new(key);
        let pieces = stream::iter(manifest.pieces)
            .map(move |piece| {
                let key = Arc::clone(&key);
                async move { self.piece(&key, piece).await }
            })
            .buffered(CONCURRENT_REQUESTS)
            .boxed();
        let expected =
            Summary { entries: manifest.entries, bytes: manifest.bytes, skipped: manifest.skipped };
        Ok((id, Content { pieces, decoder: Some(Decoder::default()), expected }))
    }

    /// Reads all of a backup, and checks that it can be restored.
    pub async fn verify(
        &self,
        owner: Owner,
        id: Option<BackupId>,
    ) -> Result<(BackupId, Summary), BackupError> {
        let (id, mut content) = self.content(owner, id).await?;
        while content.next().await?.is_some() {}
        Ok((id, content.expected))
    }

    /// Erases everything of an owner: first the key without which nothing of it can be read, then the rest.
    pub async fn erase(&self, owner: Owner) -> Result<(), BackupError> {
        let (access, tag) = (self.access(), self.root.tag(owner));
        access.delete(&key_name(&tag)).await?;
        for prefix in [format!("m/{}", tag.as_str()), format!("p/{}", tag.as_str())] {
            let deleted = access.list(&prefix).map(|object| async move { access.delete(&object?.0).await });
            deleted.buffer_unordered(CONCURRENT_REQUESTS).try_collect::<Vec<()>>().await?;
        }
        Ok(())
    }

    /// Removes the owner's backups that `retention` does not keep, and the pieces that no backup needs any more. If a
    /// backup that is kept cannot be read, no piece is removed. `thorough`: pieces are looked for even if no backup has
    /// expired, as a backup that was interrupted leaves them.
    pub async fn collect(
        &self,
        owner: Owner,
        retention: Retention,
        now: Timestamp,
        thorough: bool,
    ) -> Result<Collected, BackupError> {
        let Some(key) = self.key(owner).await? else { return Ok(Collected::default()) };
        let (access, ids) = (self.access(), self.ids(owner).await?);
        let expired: HashSet<BackupId> = retention.expired(now.unix_ms(), ids.clone()).into_iter().collect();
        if expired.is_empty() && !thorough {
            return Ok(Collected::default());
        }
        for id in &expired {
            access.delete(&manifest_name(&key.tag, *id)).await?;
        }
        let mut needed = HashSet::new();
        for id in ids.into_iter().filter(|id| !expired.contains(id)) {
            needed.extend(self.manifest(&key, id).await?.pieces.into_iter().map(|piece| piece.id));
        }
        let youngest_ms = now.unix_ms().saturating_sub(MIN_COLLECTED_AGE_MS);
        let needed = &needed;
        let garbage = access.list(&format!("p/{}", key.tag.as_str())).try_filter(|(name, _, modified_ms)| {
            let piece = name.rsplit('/').next().and_then(PieceId::from_hex);
            let is_garbage =
                *modified_ms < youngest_ms && piece.is_some_and(|piece| !needed.contains(&piece));
            std::future::ready(is_garbage)
        });
        let removed = garbage.map(|object| async move {
            let (name, size, _) = object?;
            access.delete(&name).await.map(|()| size)
        });
        let removed = removed.buffer_unordered(CONCURRENT_REQUESTS);
        let collected =
            Collected { backups: u64::try_from(expired.len()).unwrap_or(u64::MAX), pieces: 0, bytes: 0 };
        removed
            .try_fold(collected, |collected, size| async move {
                Ok(Collected {
                    pieces: collected.pieces + 1,
                    bytes: collected.bytes.saturating_add(size),
                    ..collected
                })
            })
            .await
    }

    pub(crate) async fn manifest(&self, key: &StoreKey, id: BackupId) -> Result<Manifest, BackupError> {
        let name = manifest_name(&key.tag, id);
        let object = self.access().get(&name).await?;
        Manifest::open(&key.key, &name, &object, key.owner, id)
    }

    pub(crate) async fn put_manifest(
        &self,
        key: &StoreKey,
        id: BackupId,
        manifest: &Manifest,
    ) -> Result<u64, BackupError> {
        let name = manifest_name(&key.tag, id);
        let object = manifest.seal(&key.key, &name)?;
        let size = u64::try_from(object.len()).unwrap_or(u64::MAX);
        self.access().put(&name, object).await?;
        Ok(size)
    }

    /// Stores a piece. Returns its size in the store.
    pub(crate) async fn put_piece(
        &self,
        key: &Arc<StoreKey>,
        id: PieceId,
        content: Bytes,
    ) -> Result<u64, BackupError> {
        let name = piece_name(&key.tag, id);
        let (sealing_key, sealed_name) = (Arc::clone(key), name.clone());
        let sealed = tokio::task::spawn_blocking(move || {
            sealing_key.key.cipher.seal(Kind::Piece, &sealed_name, &[], &seal::compress(&content))
        });
        let object = sealed.await.map_err(|_| BackupError::NoRandomness)??;
        let size = u64::try_from(object.len()).unwrap_or(u64::MAX);
        self.access().put(&name, object).await?;
        Ok(size)
    }

    async fn piece(&self, key: &Arc<StoreKey>, piece: PieceRef) -> Result<Bytes, BackupError> {
        let name = piece_name(&key.tag, piece.id);
        let object = self.access().get(&name).await?;
        let opening_key = Arc::clone(key);
        let opened = tokio::task::spawn_blocking(move || open_piece(&opening_key.key, &name, piece, &object));
        opened.await.map_err(|_| BackupError::NoRandomness)?
    }

    fn access(&self) -> Access<'_> {
        Access::new(&self.objects)
    }
}

/// The content of a backup, which is checked while it is read.
pub struct Content<'a> {
    pieces: BoxStream<'a, Result<Bytes, BackupError>>,
    /// `None` after the end.
    decoder: Option<Decoder>,
    expected: Summary,
}

impl Content<'_> {
    /// What the content is.
    pub const fn summary(&self) -> Summary {
        self.expected
    }

    /// Returns the next bytes of the stream; `None` after all of it, which is complete and unchanged then. What is not
    /// valid is never returned.
    pub async fn next(&mut self) -> Result<Option<Bytes>, BackupError> {
        let Some(decoder) = &mut self.decoder else { return Ok(None) };
        if let Some(piece) = self.pieces.next().await.transpose()? {
            decoder.push(&piece);
            while decoder.next_frame()?.is_some() {}
            return Ok(Some(piece));
        }
        let found = self.decoder.take().map(Decoder::finish).transpose()?;
        if found != Some(self.expected) {
            return Err(crate::stream::StreamError::Changed.into());
        }
        Ok(None)
    }
}

fn open_piece(key: &DataKey, name: &str, piece: PieceRef, object: &[u8]) -> Result<Bytes, BackupError> {
    let stored = key.cipher.open(Kind::Piece, name, 0, object)?;
    let content = seal::decompress(name, &stored, MAX_PIECE_BYTES)?;
    let has_length = usize::try_from(piece.length).is_ok_and(|length| length == content.len());
    if !has_length || key.piece_id(&content) != piece.id {
        return Err(BackupError::damaged(name, "is another piece"));
    }
    Ok(content.into())
}

fn open_root(seal: &RootSeal, object: &[u8]) -> Result<Zeroizing<[u8; KEY_BYTES]>, BackupError> {
    let id = seal::prefix(Kind::Root, ROOT, object, seal.id.len())?;
    if id != seal.id {
        return Err(BackupError::WrongMasterKey);
    }
    key_bytes(ROOT, &seal.cipher.open(Kind::Root, ROOT, seal.id.len(), object)?)
}

pub(crate) async fn reseal_objects(
    objects: &Arc<dyn ObjectStore>,
    old: &MasterKey,
    new: &MasterKey,
) -> Result<bool, BackupError> {
    let access = Access::new(objects);
    let (old, new) = (RootSeal::new(old)?, RootSeal::new(new)?);
    let object = match access.get(ROOT).await {
        Err(BackupError::Missing { .. }) => return Err(BackupError::NotFound),
        object => object?,
    };
    if open_root(&new, &object).is_ok() {
        return Ok(false);
    }
    let key = open_root(&old, &object)?;
    let object = new.cipher.seal(Kind::Root, ROOT, &new.id, key.as_slice())?;
    access.put(ROOT, object).await.map(|()| true)
}

fn key_bytes(name: &str, bytes: &[u8]) -> Result<Zeroizing<[u8; KEY_BYTES]>, BackupError> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    if bytes.len() != KEY_BYTES {
        return Err(BackupError::damaged(name, "is no key"));
    }
    key.copy_from_slice(bytes);
    Ok(key)
}

fn key_name(tag: &Tag) -> String {
    format!("k/{}", tag.as_str())
}

fn manifest_name(tag: &Tag, id: BackupId) -> String {
    format!("m/{}/{id}", tag.as_str())
}

fn piece_name(tag: &Tag, id: PieceId) -> String {
    let name = id.to_hex();
    // So that no folder of a file system has too many entries.
    let shard = name.get(..2).unwrap_or_default();
    format!("p/{}/{shard}/{name}", tag.as_str())
}
