//! Reads the last lines of a Pod's log through the API server, which asks the Pod's node.

use std::time::Duration;

use futures::AsyncBufReadExt as _;
use kube::api::LogParams;

use super::Inner;
use super::cluster::REQUEST_TIMEOUT;
use super::error::ClusterError;
use super::label::Role;
use super::pod_state::PodView;
use super::saved_logs::MAX_SAVED_LINES;
use crate::log_tail::{LogTail, Output};

/// How long the last lines of a Pod may take to arrive after its end.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(1);

impl Inner {
    /// Returns the last lines of the Pod's log, at most `lines`; empty if there is none (yet).
    pub(super) async fn pod_log(&self, pod: &PodView, lines: usize) -> Result<Vec<String>, ClusterError> {
        let read = self.read_log(&pod.name, lines, false);
        match tokio::time::timeout(REQUEST_TIMEOUT, read).await {
            // It is gone, or its container was not started yet.
            Ok(Err(error)) if matches!(error.status(), Some(400 | 404)) => Ok(Vec::new()),
            Ok(read) => read,
            Err(_) => Err(ClusterError::Timeout(REQUEST_TIMEOUT)),
        }
    }

    /// Does `work`, which ends the Pod, and saves the last lines that the Pod wrote before its end: best effort,
    /// because afterwards there is no log any more.
    pub(super) async fn while_saving_log<T>(&self, pod: &PodView, work: impl Future<Output = T>) -> T {
        let mut read = std::pin::pin!(self.read_log(&pod.name, MAX_SAVED_LINES, true));
        let mut work = std::pin::pin!(work);
        let (result, log) = tokio::select! {
            biased;
            log = &mut read => (work.await, Some(log)),
            result = &mut work => (result, tokio::time::timeout(LAST_LINES_TIMEOUT, read).await.ok()),
        };
        match log {
            Some(Ok(lines)) if pod.role == Role::Engine => self.logs.save(pod.engine_id, lines),
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::info!(engine_id = %pod.engine_id, error, "The log of a Pod was not saved.");
            }
            None => tracing::info!(engine_id = %pod.engine_id, "The log of a Pod was not saved in time."),
        }
        result
    }

    /// Reads the last lines of a Pod's log. `follow`: also all that it still writes, until it ends.
    async fn read_log(&self, name: &str, lines: usize, follow: bool) -> Result<Vec<String>, ClusterError> {
        let tail_lines = i64::try_from(lines).ok();
        let params = LogParams { tail_lines, follow, ..LogParams::default() };
        let mut log = std::pin::pin!(self.cluster.log(name, &params).await?);
        let mut tail = LogTail::new(lines);
        loop {
            let chunk =
                log.fill_buf().await.map_err(|error| ClusterError::from(kube::Error::ReadEvents(error)))?;
            if chunk.is_empty() {
                return Ok(tail.finish());
            }
            // The node has merged the two output streams, line by line.
            tail.add(Output::Stdout, chunk);
            let length = chunk.len();
            log.consume_unpin(length);
        }
    }
}
