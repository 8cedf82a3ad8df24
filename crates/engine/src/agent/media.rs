//! The files that are attached to the messages of a task, as users fetch them.

use std::collections::HashMap;

use api::TaskId;
use api::files::AttachedFile;
use bytes::Bytes;
use futures::Stream;
use llm::Content;
use store::steps::Step;
use store::{Brain, TaskRow};

use super::messages::MessageList;
use super::thread_loader::LoadError;
use super::turn_registry::BusyGuard;
use super::{Agent, AgentError};

/// The size of a chunk in bytes. The database finds the place of each chunk by following the pages before it.
const CHUNK_BYTES: usize = 1024 * 1024;

impl Agent {
    /// Begins a transfer of a file, which lasts until the returned guard is dropped: the engine is not put to sleep
    /// meanwhile.
    pub(crate) fn begin_transfer(&self) -> Result<BusyGuard, AgentError> {
        if self.stopping.is_cancelled() {
            return Err(AgentError::Stopping);
        }
        self.registry.lock().begin_transfer(self.services.clock.monotonic())
    }

    /// The files attached to the listed messages of a task, in their order.
    pub async fn media(&self, task_id: &TaskId) -> Result<Vec<AttachedFile>, AgentError> {
        let task = self.brain.task(task_id)?.ok_or(AgentError::UnknownTask)?.row;
        let listed = self.brain.run_blocking(move |brain| list(brain, task)).await;
        Ok(listed.ok_or(AgentError::Stopping)??)
    }

    /// Reads `length` bytes of an attached file from `begin` on. The stream fails if the file is deleted
    /// meanwhile.
    pub fn read_media(
        &self,
        hash: String,
        begin: usize,
        length: usize,
    ) -> impl Stream<Item = Result<Bytes, AgentError>> + Send + 'static {
        let (brain, end) = (self.brain.clone(), begin.saturating_add(length));
        futures::stream::try_unfold(begin, move |at| {
            let (brain, hash) = (brain.clone(), hash.clone());
            async move {
                let length = end.saturating_sub(at).min(CHUNK_BYTES);
                if length == 0 {
                    return Ok(None);
                }
                let part = brain.run_blocking(move |brain| brain.media_part(&hash, at, length)).await;
                let part = part.ok_or(AgentError::Stopping)??;
                // The task was deleted.
                let part = part.ok_or(AgentError::UnknownTask)?;
                Ok(Some((Bytes::from(part), at.saturating_add(length))))
            }
        })
    }
}

/// Blocks.
fn list(brain: &Brain, task: TaskRow) -> Result<Vec<AttachedFile>, LoadError> {
    let mut attached = Vec::new();
    brain.for_each_step(task, 0, |_, _, stored| {
        if let Step::Opened(opened) = stored.step
            && !opened.base.is_retry()
        {
            let media = opened.media.into_iter().filter_map(|content| match content {
                Content::Media(media) => Some(media),
                Content::Text { .. } | Content::Note { .. } => None,
            });
            attached.extend(media.map(|media| (opened.message_id, media)));
        }
        true
    })?;
    if attached.is_empty() {
        return Ok(Vec::new());
    }
    let messages = MessageList::load(brain, task)?;
    attached.retain(|(message_id, _)| messages.contains(*message_id));
    let hashes = attached.iter().map(|(_, media)| media.hash.clone()).collect();
    let sizes: HashMap<_, _> = brain.media_sizes(hashes)?.into_iter().collect();
    let files = attached.into_iter().filter_map(|(message_id, media)| {
        // A file that is gone from the store cannot be fetched.
        let size = u64::try_from(*sizes.get(&media.hash)?).ok()?;
        Some(AttachedFile {
            message_id,
            hash: media.hash,
            kind: media.kind,
            media_type: media.media_type,
            name: media.name,
            size,
        })
    });
    Ok(files.collect())
}
