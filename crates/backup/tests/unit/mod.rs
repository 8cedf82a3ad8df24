//! Tests of the format and of the store, on stores in memory.

mod format;
mod restoring;
mod retention;
mod storing;

use std::sync::Arc;

use api::{EngineId, Timestamp};
use bytes::Bytes;
use http_service::vault::MasterKey;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};

use crate::stream::{Encoder, Entry, EntryKind, EntryPath};
use crate::{BackupError, BackupId, BackupWriter, Owner, Store, Written};

/// A store in memory, with its objects at hand.
struct Fixture {
    objects: Arc<dyn ObjectStore>,
    master: MasterKey,
    store: Arc<Store>,
}

impl Fixture {
    async fn new() -> Self {
        let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let master = MasterKey::generate().unwrap();
        let store = Store::open_objects(Arc::clone(&objects), &master, true).await.unwrap();
        Self { objects, master, store: Arc::new(store) }
    }

    async fn back_up(&self, owner: Owner, at_ms: i64, stream: &[u8]) -> Written {
        self.try_back_up(owner, at_ms, stream).await.unwrap()
    }

    async fn latest(&self, owner: Owner) -> BackupId {
        *self.store.ids(owner).await.unwrap().last().unwrap()
    }

    async fn try_back_up(&self, owner: Owner, at_ms: i64, stream: &[u8]) -> Result<Written, BackupError> {
        let id = BackupId::new(Timestamp::from_unix_ms(at_ms), true)?;
        let mut writer = BackupWriter::begin(Arc::clone(&self.store), owner, false).await?;
        for chunk in stream.chunks(10_000) {
            writer.push(chunk).await?;
        }
        writer.finish(id, std::future::ready(Ok(()))).await
    }

    async fn read(&self, owner: Owner, id: Option<BackupId>) -> Result<Vec<u8>, BackupError> {
        let (_, mut content) = self.store.content(owner, id).await?;
        let mut read = Vec::new();
        while let Some(bytes) = content.next().await? {
            read.extend_from_slice(&bytes);
        }
        Ok(read)
    }

    async fn names(&self) -> Vec<String> {
        use futures::TryStreamExt as _;
        let objects: Vec<_> = self.objects.list(None).try_collect().await.unwrap();
        let mut names: Vec<_> = objects.into_iter().map(|object| object.location.to_string()).collect();
        names.sort();
        names
    }

    async fn object(&self, name: &str) -> Bytes {
        self.objects.get(&Path::from(name)).await.unwrap().bytes().await.unwrap()
    }

    async fn replace(&self, name: &str, object: impl Into<Bytes>) {
        self.objects.put(&Path::from(name), object.into().into()).await.unwrap();
    }
}

fn engine() -> Owner {
    Owner::Engine(EngineId::new())
}

/// A stream with a brain of these bytes, and files of these names and contents.
fn stream(brain: &[u8], files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let (mut encoder, start) = Encoder::start("1.2.3");
    let mut bytes = start.to_vec();
    let entry =
        |kind, content: &[u8]| Entry { kind, size: content.len() as u64, mode: 0o644, modified_ns: 7 };
    let mut all = vec![(EntryKind::Brain, brain.to_vec())];
    all.push((EntryKind::Folder { path: EntryPath::new(Vec::new()) }, Vec::new()));
    for (name, content) in files {
        all.push((EntryKind::File { path: EntryPath::new(name.as_bytes().to_vec()) }, content.clone()));
    }
    for (kind, content) in all {
        bytes.extend_from_slice(&encoder.entry(&entry(kind, &content)));
        for block in content.chunks(crate::stream::BLOCK_BYTES) {
            bytes.extend_from_slice(&encoder.data(block));
        }
    }
    bytes.extend_from_slice(&encoder.end().1);
    bytes
}

/// Bytes that do not compress, the same for each seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}
