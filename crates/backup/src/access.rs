//! Requests to the store: each has a deadline, and nothing that the store says about lengths is believed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload};

use crate::BackupError;

/// How long one request to the store may take, with its repetitions.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// The largest object that is read, in bytes: a manifest, or a piece with what sealing adds.
const MAX_OBJECT_BYTES: u64 = 64 * 1024 * 1024;

/// Requests to the store, each with a deadline.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    objects: &'a Arc<dyn ObjectStore>,
}

impl<'a> Access<'a> {
    pub(crate) const fn new(objects: &'a Arc<dyn ObjectStore>) -> Self {
        Self { objects }
    }

    /// Reads an object.
    pub(crate) async fn get(self, name: &str) -> Result<Bytes, BackupError> {
        let path = Path::from(name);
        let read = async {
            let object = self.objects.get_opts(&path, GetOptions::default()).await?;
            let size = object.meta.size;
            if size > MAX_OBJECT_BYTES {
                return Ok(Err(BackupError::damaged(name, "is larger than anything that is stored")));
            }
            // Whatever the store says about its length, no more is read.
            let (mut chunks, mut bytes) = (object.into_stream(), Vec::new());
            while let Some(chunk) = chunks.try_next().await? {
                bytes.extend_from_slice(&chunk);
                if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > size {
                    return Ok(Err(BackupError::damaged(name, "is longer than the store says")));
                }
            }
            Ok(Ok(Bytes::from(bytes)))
        };
        match self.in_time(read).await {
            Err(BackupError::Store(error)) if matches!(*error, object_store::Error::NotFound { .. }) => {
                Err(BackupError::Missing { object: name.to_owned() })
            }
            read => read?,
        }
    }

    /// Stores an object, in the place of one with this name.
    pub(crate) async fn put(self, name: &str, object: Vec<u8>) -> Result<(), BackupError> {
        let path = Path::from(name);
        self.in_time(self.objects.put(&path, PutPayload::from(object))).await.map(drop)
    }

    /// Stores an object unless there is one with this name.
    pub(crate) async fn create(self, name: &str, object: Vec<u8>) -> Result<(), BackupError> {
        let path = Path::from(name);
        let created = self.objects.put_opts(&path, PutPayload::from(object.clone()), PutMode::Create.into());
        match self.in_time(created).await {
            Err(BackupError::Store(error)) => match *error {
                object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => {
                    Ok(())
                }
                // One deployment uses the store, so nobody else creates it at this moment.
                object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. } => {
                    self.put(name, object).await
                }
                error => Err(BackupError::Store(Box::new(error))),
            },
            created => created.map(drop),
        }
    }

    /// Deletes an object, if it is there.
    pub(crate) async fn delete(self, name: &str) -> Result<(), BackupError> {
        let path = Path::from(name);
        match self.in_time(self.objects.delete(&path)).await {
            Err(BackupError::Store(error)) if matches!(*error, object_store::Error::NotFound { .. }) => {
                Ok(())
            }
            deleted => deleted,
        }
    }

    /// Lists names, sizes, and times in Unix milliseconds.
    pub(crate) fn list(self, prefix: &str) -> BoxStream<'a, Result<(String, u64, i64), BackupError>> {
        let objects = self.objects.list(Some(&Path::from(prefix)));
        stream::unfold(Some(objects), move |objects| async move {
            let mut objects = objects?;
            let next = async { objects.next().await.transpose() };
            match self.in_time(next).await {
                Ok(Some(meta)) => {
                    let object =
                        (meta.location.to_string(), meta.size, meta.last_modified.timestamp_millis());
                    Some((Ok(object), Some(objects)))
                }
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }

    /// Whether there is any object whose name begins so.
    pub(crate) async fn any(self, prefix: &str) -> Result<bool, BackupError> {
        Ok(self.list(prefix).try_next().await?.is_some())
    }

    async fn in_time<T>(
        self,
        request: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, BackupError> {
        match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
            Ok(answer) => answer.map_err(|error| BackupError::Store(Box::new(error))),
            Err(_) => Err(BackupError::TimedOut { seconds: REQUEST_TIMEOUT.as_secs() }),
        }
    }
}
