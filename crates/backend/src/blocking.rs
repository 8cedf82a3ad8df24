//! Runs blocking work on threads of its own and launches in tasks of their own, and translates errors of the operating
//! system into [`BackendError`]s.

use rustix::io::Errno;

use super::BackendError;

/// Runs blocking work on a thread where it may block.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, BackendError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| io_backend_error(&error)),
        Err(error) => Err(failed_with("a blocking task was aborted", &error)),
    }
}

/// Does `work` on an engine in a task of its own, and then gives back its `lock`: if the caller gives up, nothing is left
/// half-done, and the next call for this engine waits until the work has ended.
pub(super) async fn run_to_end<T: Send + 'static>(
    lock: impl Send + 'static,
    work: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> Result<T, BackendError> {
    let task = tokio::spawn(async move {
        let result = work.await;
        drop(lock);
        result
    });
    task.await.unwrap_or_else(|error| Err(failed_with("the launch was aborted", &error)))
}

/// Translates an error of the operating system: exhausted resources become [`BackendError::NoCapacity`].
fn io_backend_error(error: &std::io::Error) -> BackendError {
    let exhausted = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::DQUOT];
    match error.raw_os_error() {
        Some(code) if exhausted.iter().any(|errno| errno.raw_os_error() == code) => {
            BackendError::NoCapacity(error.to_string())
        }
        Some(_) | None => BackendError::Failed(error.to_string()),
    }
}

pub(super) fn failed_with(message: &str, error: &dyn std::error::Error) -> BackendError {
    BackendError::Failed(format!("{message}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_o13_a_host_without_room_is_told_from_a_backend_that_fails() {
        for code in [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::DQUOT] {
            let error = io_backend_error(&std::io::Error::from_raw_os_error(code.raw_os_error()));
            assert!(matches!(error, BackendError::NoCapacity(_)), "{error}");
        }
        let error = io_backend_error(&std::io::Error::from_raw_os_error(Errno::NOENT.raw_os_error()));
        assert!(matches!(error, BackendError::Failed(_)), "{error}");
    }
}
