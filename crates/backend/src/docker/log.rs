//! Reads the last lines of a container's log.

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::query_parameters::LogsOptionsBuilder;
use futures::TryStreamExt as _;

use super::daemon::{Daemon, REQUEST_TIMEOUT};
use crate::log_tail::{LogTail, Output};

/// Returns the last lines of the log of the container `id`, at most `lines`; empty if there is no such container.
pub(super) async fn tail(daemon: &Daemon, id: &str, lines: usize) -> Result<Vec<String>, Error> {
    let options = LogsOptionsBuilder::new().stdout(true).stderr(true).tail(&lines.to_string()).build();
    let read = daemon.request(REQUEST_TIMEOUT, |docker| async move {
        let mut tail = LogTail::new(lines);
        let mut log = Box::pin(docker.logs(id, Some(options)));
        while let Some(chunk) = log.try_next().await? {
            let (output, bytes) = match &chunk {
                LogOutput::StdErr { message } => (Output::Stderr, message),
                LogOutput::StdOut { message }
                | LogOutput::StdIn { message }
                | LogOutput::Console { message } => (Output::Stdout, message),
            };
            tail.add(output, bytes);
        }
        Ok(tail.finish())
    });
    match read.await {
        Err(error) if super::error::is_status(&error, 404) => Ok(Vec::new()),
        read => read,
    }
}
