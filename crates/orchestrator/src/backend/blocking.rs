//! Work that blocks, and what an error of the operating system means.

use rustix::io::Errno;

use super::BackendError;

/// Runs what blocks on its own thread.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, BackendError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| io_backend_error(&error)),
        Err(error) => Err(failed_with("a task broke off", &error)),
    }
}

/// What an error of the operating system means.
fn io_backend_error(error: &std::io::Error) -> BackendError {
    let full = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::DQUOT];
    match error.raw_os_error() {
        Some(code) if full.iter().any(|errno| errno.raw_os_error() == code) => {
            BackendError::NoCapacity(error.to_string())
        }
        Some(_) | None => BackendError::Failed(error.to_string()),
    }
}

pub(super) fn failed_with(what: &str, error: &dyn std::error::Error) -> BackendError {
    BackendError::Failed(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lesson_o13_a_host_without_room_is_told_from_a_backend_that_fails() {
        for code in [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::DQUOT] {
            let error = io_backend_error(&std::io::Error::from_raw_os_error(code.raw_os_error()));
            assert!(matches!(error, BackendError::NoCapacity(_)), "{error}");
        }
        let error = io_backend_error(&std::io::Error::from_raw_os_error(Errno::NOENT.raw_os_error()));
        assert!(matches!(error, BackendError::Failed(_)), "{error}");
    }
}
