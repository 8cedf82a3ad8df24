//! The leader lock: one orchestrator per PostgreSQL database. It is an advisory lock, bound to a connection, with
//! a fencing epoch.
//!
//! A new leader raises the epoch, and every writing transaction checks that its own epoch is still in force. So an
//! orchestrator that lost the lock without noticing, because it was frozen or cut off, cannot change anything once
//! another one has taken over. An orchestrator that has lost the lock acquires it again if no other one has.

use std::time::Duration;

use http_service::lock::LockHolder;
use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, ConnectOptions as _, Connection as _, Row as _};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::access::with_deadline;
use super::open_error::OpenRegistryError;

/// The class of this program's advisory locks (`pg_advisory_lock(class, id)`).
pub(super) const LOCK_CLASS: i32 = 0x526F_756E;
/// The id of the leader lock within the class.
const LEADER_LOCK_ID: i32 = 1;

/// How often the lock's connection is checked.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long the connection may take to answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts to acquire a lost lock again.
const REACQUIRE_INTERVAL: Duration = Duration::from_millis(250);
/// How long to wait for a lock that is held: a server notices the end of a client with a short delay.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(1);
/// The time between two attempts within [`ACQUIRE_TIMEOUT`].
const ACQUIRE_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The held lock. It is released when dropped or on [`LeaderLock::release`], and may be lost to another
/// orchestrator.
pub(super) struct LeaderLock {
    epoch: String,
    lost_leadership: CancellationToken,
    task_tracker: TaskTracker,
    shutdown: CancellationToken,
    _shutdown_on_drop: DropGuard,
}

/// The lock, just acquired, with its connection.
pub(super) struct AcquiredLock {
    pub(super) connection: AnyConnection,
    options: AnyConnectOptions,
    session_name: String,
}

impl AcquiredLock {
    /// Acquires the lock. If another process holds it, the error names that process.
    pub(super) async fn acquire(options: AnyConnectOptions) -> Result<Self, OpenRegistryError> {
        let name = session_name();
        let mut connection = connect(&options, &name).await?;
        let started = tokio::time::Instant::now();
        while !try_lock(&mut connection).await? {
            if started.elapsed() >= ACQUIRE_TIMEOUT {
                let holder = lock_holder(&mut connection).await?;
                let description = holder.map_or_else(|| "another process".to_owned(), |(_, holder)| holder);
                return Err(OpenRegistryError::Held(LockHolder::new(description)));
            }
            tokio::time::sleep(ACQUIRE_RETRY_INTERVAL).await;
        }
        Ok(Self { connection, options, session_name: name })
    }

    /// Raises the epoch, so that nobody else writes from now on. The `meta` table must exist. This waits for the
    /// transactions of the previous epoch; the server ends idle ones.
    pub(super) async fn raise_epoch(&mut self) -> Result<String, OpenRegistryError> {
        let raise = "INSERT INTO meta (name, value) VALUES ('epoch', '1') ON CONFLICT (name) \
                     DO UPDATE SET value = CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT) RETURNING value";
        Ok(sqlx::query(raise).fetch_one(&mut self.connection).await?.try_get(0)?)
    }

    /// Starts the task that keeps the lock, under `epoch`.
    pub(super) fn maintain(self, epoch: String) -> LeaderLock {
        let Self { connection, options, session_name: name } = self;
        let (lost_leadership, shutdown) = (CancellationToken::new(), CancellationToken::new());
        let task = LeaderLockTask {
            options,
            session_name: name,
            epoch: epoch.clone(),
            lost_leadership: lost_leadership.clone(),
            shutdown: shutdown.clone(),
        };
        let task_tracker = TaskTracker::new();
        task_tracker.spawn(task.run(connection));
        task_tracker.close();
        let shutdown_on_drop = shutdown.clone().drop_guard();
        LeaderLock { epoch, lost_leadership, task_tracker, shutdown, _shutdown_on_drop: shutdown_on_drop }
    }
}

impl LeaderLock {
    /// The epoch that must be in force for this orchestrator to write.
    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// The token that is cancelled when another orchestrator has taken over.
    pub(super) const fn lost_leadership(&self) -> &CancellationToken {
        &self.lost_leadership
    }

    /// Releases the lock and waits for its task to end.
    pub(super) async fn release(&self) {
        self.shutdown.cancel();
        self.task_tracker.wait().await;
    }
}

/// The result of an attempt to acquire a lost lock again.
enum Reacquired {
    Lock(AnyConnection),
    LostLeadership,
    /// Another session holds the lock, and has not raised the epoch.
    NotYet,
}

struct LeaderLockTask {
    options: AnyConnectOptions,
    /// The session's name in `pg_stat_activity`.
    session_name: String,
    epoch: String,
    lost_leadership: CancellationToken,
    shutdown: CancellationToken,
}

impl LeaderLockTask {
    /// Keeps the lock until shutdown, or until another orchestrator has taken over.
    async fn run(self, connection: AnyConnection) {
        let shutdown = self.shutdown.clone();
        let mut current = Some(connection);
        loop {
            if shutdown.run_until_cancelled(self.watch_connection(&mut current)).await.is_none() {
                break;
            }
            current = None;
            tracing::warn!(
                "The connection that holds the leader lock was lost; trying to acquire the lock again."
            );
            match shutdown.run_until_cancelled(self.reacquire()).await {
                Some(Some(connection)) => current = Some(connection),
                Some(None) => {
                    tracing::error!("Another orchestrator has taken over the registry.");
                    self.lost_leadership.cancel();
                    return;
                }
                None => break,
            }
            tracing::info!("The leader lock is held again.");
        }
        if let Some(connection) = current {
            // The server frees the lock with the connection.
            let _ = tokio::time::timeout(RESPONSE_TIMEOUT, connection.close()).await;
        }
    }

    /// Returns when the connection no longer answers.
    async fn watch_connection(&self, current: &mut Option<AnyConnection>) {
        let Some(connection) = current else { return };
        loop {
            tokio::time::sleep(PING_INTERVAL).await;
            let answer = tokio::time::timeout(RESPONSE_TIMEOUT, connection.ping()).await;
            if !matches!(answer, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Acquires the lock again; returns `None` if another orchestrator has taken over.
    async fn reacquire(&self) -> Option<AnyConnection> {
        loop {
            match self.try_reacquire().await {
                Ok(Reacquired::Lock(connection)) => return Some(connection),
                Ok(Reacquired::LostLeadership) => return None,
                Ok(Reacquired::NotYet) => {}
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::debug!(error, "The leader lock could not be acquired again yet.");
                }
            }
            tokio::time::sleep(REACQUIRE_INTERVAL).await;
        }
    }

    async fn try_reacquire(&self) -> Result<Reacquired, sqlx::Error> {
        let mut connection = connect(&self.options, &self.session_name).await?;
        let locked = try_lock(&mut connection).await?;
        let epoch = sqlx::query("SELECT value FROM meta WHERE name = 'epoch'");
        let epoch: Option<String> =
            with_deadline(epoch.fetch_optional(&mut connection)).await?.map(|row| row.get(0));
        if epoch.as_ref() != Some(&self.epoch) {
            return Ok(Reacquired::LostLeadership);
        }
        if locked {
            return Ok(Reacquired::Lock(connection));
        }
        // Under our epoch, the holder is either a dead session of our own that the server still considers alive,
        // or a new leader that is about to raise the epoch.
        if let Some((pid, holder)) = lock_holder(&mut connection).await?
            && holder.starts_with(&self.session_name)
        {
            let end = sqlx::query("SELECT pg_terminate_backend($1)").bind(pid);
            with_deadline(end.fetch_one(&mut connection)).await?;
        }
        Ok(Reacquired::NotYet)
    }
}

/// Opens a connection for the lock. Keepalives let the server notice when this machine is gone, so that the lock
/// does not outlive it for long.
async fn connect(options: &AnyConnectOptions, name: &str) -> Result<AnyConnection, sqlx::Error> {
    let connected = tokio::time::timeout(RESPONSE_TIMEOUT, options.connect()).await;
    let mut connection =
        connected.unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))?;
    let settings = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 3; \
                    SET tcp_keepalives_count = 3; SET tcp_user_timeout = 15000; SET lock_timeout = '30s'";
    with_deadline(sqlx::raw_sql(settings).execute(&mut connection)).await?;
    let named = sqlx::query("SELECT set_config('application_name', $1, false)").bind(name.to_owned());
    with_deadline(named.fetch_one(&mut connection)).await?;
    Ok(connection)
}

async fn try_lock(connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
    let lock = sqlx::query("SELECT pg_try_advisory_lock($1, $2)").bind(LOCK_CLASS).bind(LEADER_LOCK_ID);
    with_deadline(lock.fetch_one(connection)).await?.try_get(0)
}

/// Returns the session that holds the lock, and a description of it for people.
async fn lock_holder(connection: &mut AnyConnection) -> Result<Option<(i32, String)>, sqlx::Error> {
    let query = sqlx::query(
        "SELECT activity.pid, COALESCE(NULLIF(application_name, ''), 'another process'), \
         COALESCE(' from ' || host(client_addr), ''), \
         COALESCE(', since ' || to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), '') \
         FROM pg_locks lock JOIN pg_stat_activity activity ON activity.pid = lock.pid \
         WHERE locktype = 'advisory' AND granted AND objsubid = 2 \
         AND CAST(classid AS BIGINT) = $1 AND CAST(objid AS BIGINT) = $2 \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    );
    let query = query.bind(i64::from(LOCK_CLASS)).bind(i64::from(LEADER_LOCK_ID));
    let Some(row) = with_deadline(query.fetch_optional(connection)).await? else { return Ok(None) };
    let pid: i32 = row.try_get(0)?;
    let text = |at: usize| row.try_get::<String, _>(at);
    Ok(Some((pid, format!("{} (session {pid}{}{})", text(1)?, text(2)?, text(3)?))))
}

/// Returns a name for the server's list of sessions: this process, and a mark that is unique to this lock.
fn session_name() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    // The server keeps 63 bytes, and replaces characters that are not ASCII.
    let host: String = host.chars().filter(char::is_ascii_graphic).take(20).collect();
    let mark = uuid::Uuid::now_v7().simple().to_string();
    // Its last digits are random.
    let mark: String = mark.chars().skip(24).collect();
    format!("roundhouse process {} on {host} [{mark}]", std::process::id())
}
