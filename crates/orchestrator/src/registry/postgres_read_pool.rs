//! The hot read on PostgreSQL: dedicated connections, each with its statements prepared.
//!
//! A generic pool tests each returned connection, which costs as much as the read. Here a connection that has
//! answered is considered good, and one that has not is dropped.

use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{ConnectOptions as _, PgConnection};
use tokio::sync::Semaphore;

use super::RegistryError;
use super::access::is_unreachable;
use crate::domain::EngineOwner;

/// More connections would only queue inside the server.
const MAX_CONNECTIONS: usize = 8;

/// How long a read may wait for a connection: the server may be reachable, but busy.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the read itself may take, whatever the server's state.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The pool of connections for the hot read.
pub(super) struct PostgresReadPool {
    options: PgConnectOptions,
    idle: Mutex<Vec<PgConnection>>,
    permits: Semaphore,
}

impl PostgresReadPool {
    pub(super) fn new(options: PgConnectOptions) -> Self {
        let settings = [("statement_timeout", "5s"), ("default_transaction_read_only", "on")];
        let options = options.options(settings).disable_statement_logging();
        Self { options, idle: Mutex::default(), permits: Semaphore::new(MAX_CONNECTIONS) }
    }

    /// Applies `read` to the row that `query` finds for `owner`.
    pub(super) async fn read<T>(
        &self,
        query: &'static str,
        owner: &EngineOwner,
        read: impl FnOnce(&PgRow) -> Result<T, RegistryError>,
    ) -> Result<Option<T>, RegistryError> {
        let timed_out = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
        let permit = tokio::time::timeout(QUEUE_TIMEOUT, self.permits.acquire()).await.map_err(timed_out)?;
        let _permit = permit.map_err(|_| RegistryError::Closed)?;
        let found = tokio::time::timeout(READ_TIMEOUT, self.fetch_row(query, owner)).await;
        found.map_err(timed_out)??.as_ref().map(read).transpose()
    }

    async fn fetch_row(
        &self,
        query: &'static str,
        owner: &EngineOwner,
    ) -> Result<Option<PgRow>, RegistryError> {
        loop {
            let reused = self.idle.lock().pop();
            let was_reused = reused.is_some();
            let mut connection = match reused {
                Some(connection) => connection,
                None => self.options.connect().await?,
            };
            let query = sqlx::query(query).bind(owner.product_id.to_string()).bind(owner.user_id.as_str());
            match query.fetch_optional(&mut connection).await {
                Ok(row) => {
                    self.idle.lock().push(connection);
                    return Ok(row);
                }
                // The server closed it while it was unused. A new connection shows the server's state.
                Err(error) if was_reused && is_unreachable(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Refuses further reads.
    pub(super) fn close(&self) {
        self.permits.close();
        self.idle.lock().clear();
    }

    /// Whether no read is running.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.permits.available_permits() == MAX_CONNECTIONS
    }
}
