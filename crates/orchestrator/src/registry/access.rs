//! Asking the database: nothing is asked without a deadline, and a server out of reach is told from a failure.

use std::io;
use std::time::Duration;

use sqlx::Error;

/// How long one statement may take, whatever has become of the server: longer than the longest wait of SQLite
/// for its own lock, and than PostgreSQL is told to work on one.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// What is asked, or that no answer came in time.
pub(super) async fn with_deadline<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let answer = tokio::time::timeout(STATEMENT_TIMEOUT, asked).await;
    answer.unwrap_or_else(|_| Err(Error::Io(io::ErrorKind::TimedOut.into())))
}

/// Whether `error` says that the server cannot be reached, or has given up on us: nothing is known then of what
/// was asked.
pub(super) fn is_unreachable(error: &Error) -> bool {
    match error {
        // A connection that is closed in the midst of its greeting is read as a fault in the protocol.
        Error::Io(_) | Error::Tls(_) | Error::Protocol(_) | Error::PoolTimedOut => true,
        Error::Database(error) => error.code().is_some_and(|code| {
            // SQLite's codes are shorter. Connection failures; no resources; shut down, starting or cancelled;
            // a server that became a copy of another; a conversation that it broke off; and a lock
            // that was not to be had in time.
            code.len() == 5
                && (["08", "53", "57"].iter().any(|class| code.starts_with(class))
                    || ["25006", "25P03", "55P03"].contains(&&*code))
        }),
        _ => false,
    }
}
