//! Access to the database: every statement has a deadline, and an unreachable server is distinguished from a
//! failed statement.

use std::io;
use std::time::Duration;

use sqlx::Error;

/// How long one statement may take, whatever the server's state: longer than SQLite waits for its own lock, and
/// longer than PostgreSQL's `statement_timeout`.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs `statement`; fails with a timeout if it takes longer than [`STATEMENT_TIMEOUT`].
pub(super) async fn with_deadline<T>(statement: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let result = tokio::time::timeout(STATEMENT_TIMEOUT, statement).await;
    result.unwrap_or_else(|_| Err(Error::Io(io::ErrorKind::TimedOut.into())))
}

/// Whether `error` means that the server cannot be reached or has dropped the connection: then it is unknown
/// whether the statement was executed.
pub(super) fn is_unreachable(error: &Error) -> bool {
    match error {
        // A connection that is closed during the handshake is reported as a protocol error.
        Error::Io(_) | Error::Tls(_) | Error::Protocol(_) | Error::PoolTimedOut => true,
        Error::Database(error) => error.code().is_some_and(|code| {
            // SQLite's codes are shorter. Classes: 08 connection failures, 53 insufficient resources, 57 shut
            // down, starting or cancelled. Codes: 25006 the server has become a read-only replica, 25P03 it ended
            // an idle transaction, 55P03 a lock was not available in time.
            code.len() == 5
                && (["08", "53", "57"].iter().any(|class| code.starts_with(class))
                    || ["25006", "25P03", "55P03"].contains(&&*code))
        }),
        _ => false,
    }
}
