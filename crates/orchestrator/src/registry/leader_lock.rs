//! The leader lock: one orchestrator per PostgreSQL database. It is an advisory lock, bound to a connection, with
//! a lease and a fencing epoch.
//!
//! The leader sends something over that connection every [`PING_INTERVAL`], and the server records when it last did
//! (`state_change` in `pg_stat_activity`). A leader that is killed frees the lock with its connection. One that is
//! frozen, cut off, or whose machine is gone keeps its connection for the server, but falls silent: after [`LEASE`]
//! a standby ends its sessions and takes over. Only the server's clock counts.
//!
//! A new leader raises the epoch, and every writing transaction checks that its own epoch is still in force. So an
//! orchestrator that lost the lock without noticing cannot change anything once another one has taken over. An
//! orchestrator that has lost the lock acquires it again if no other one has.

use std::sync::Arc;
use std::time::Duration;

use http_service::lock::LockHolder;
use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, ConnectOptions as _, Connection as _, Row as _};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::access::with_deadline;
use super::open_error::OpenRegistryError;

/// The class of this program's advisory locks (`pg_advisory_lock(class, id)`).
pub(super) const LOCK_CLASS: i32 = 0x526F_756E;
/// The id of the leader lock within the class.
const LEADER_LOCK_ID: i32 = 1;

/// How often the leader renews its lease, and finds out that its connection is gone. Earlier versions did so every
/// second.
const PING_INTERVAL: Duration = Duration::from_millis(200);
/// How long a leader may be silent before it is replaced. It serves nothing either when it could not renew its lease
/// for as long.
const LEASE: Duration = Duration::from_secs(3);
/// How long calls wait for a connection that is made anew.
const RECONNECT_TIME: Duration = Duration::from_secs(1);
/// How long the connection may take to answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two attempts to acquire a lost lock again.
const REACQUIRE_INTERVAL: Duration = Duration::from_millis(250);
/// How long to wait for a lock that is held: a server notices the end of a client with a short delay.
const ACQUIRE_TIMEOUT: Duration = Duration::from_millis(500);
/// The time between two attempts within [`ACQUIRE_TIMEOUT`].
const ACQUIRE_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// How the sessions of an orchestrator are named at the server, to which a mark is added that is its own.
const SESSION_NAME_PREFIX: &str = "roundhouse process";

/// The name that all sessions of one orchestrator have at the server (`application_name`).
#[derive(Clone, Debug)]
pub(super) struct SessionName(Arc<str>);

impl SessionName {
    /// Creates a name for the server's list of sessions: this process, and a mark that is unique to this lock.
    pub(super) fn generate() -> Self {
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        // The server keeps 63 bytes, and replaces characters that are not ASCII.
        let host: String = host.chars().filter(char::is_ascii_graphic).take(20).collect();
        let mark = uuid::Uuid::now_v7().simple().to_string();
        // Its last digits are random.
        let mark: String = mark.chars().skip(24).collect();
        Self(format!("{SESSION_NAME_PREFIX} {} on {host} [{mark}]", std::process::id()).into())
    }

    /// The name as the server shows it.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Gives a connection this name.
    pub(super) async fn set_on(&self, connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
        let named = sqlx::query("SELECT set_config('application_name', $1, false)").bind(self.0.to_string());
        with_deadline(named.fetch_one(connection)).await?;
        Ok(())
    }
}

/// The held lock. It is released when dropped or on [`LeaderLock::release`], and may be lost to another
/// orchestrator.
pub(super) struct LeaderLock {
    epoch: String,
    renewed: watch::Receiver<Option<Instant>>,
    lost_leadership: CancellationToken,
    task_tracker: TaskTracker,
    shutdown: CancellationToken,
    _shutdown_on_drop: DropGuard,
}

/// The lock, just acquired, with its connection.
pub(super) struct AcquiredLock {
    pub(super) connection: AnyConnection,
    options: AnyConnectOptions,
    session_name: SessionName,
    acquired_at: Instant,
}

impl AcquiredLock {
    /// Acquires the lock, also from a leader that has been silent for longer than its lease. If another process
    /// holds it, the error names that process.
    pub(super) async fn acquire(
        options: AnyConnectOptions,
        session_name: SessionName,
    ) -> Result<Self, OpenRegistryError> {
        let mut connection = connect(&options, &session_name).await?;
        let mut started = Instant::now();
        loop {
            let acquired_at = Instant::now();
            if try_lock(&mut connection).await? {
                return Ok(Self { connection, options, session_name, acquired_at });
            }
            if started.elapsed() >= ACQUIRE_TIMEOUT {
                match lock_holder(&mut connection).await? {
                    Some(silent) if silent.is_silent() && end_sessions(&mut connection, &silent).await => {
                        started = Instant::now();
                    }
                    holder => {
                        let description = holder.map(|holder| holder.description);
                        let description = description.unwrap_or_else(|| "another process".to_owned());
                        return Err(OpenRegistryError::Held(LockHolder::new(description)));
                    }
                }
            }
            tokio::time::sleep(ACQUIRE_RETRY_INTERVAL).await;
        }
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
        let Self { connection, options, session_name, acquired_at } = self;
        let (lost_leadership, shutdown) = (CancellationToken::new(), CancellationToken::new());
        let (renew, renewed) = watch::channel(Some(acquired_at));
        let task = LeaderLockTask {
            options,
            session_name,
            epoch: epoch.clone(),
            renewed: renew,
            lost_leadership: lost_leadership.clone(),
            shutdown: shutdown.clone(),
        };
        let task_tracker = TaskTracker::new();
        task_tracker.spawn(task.run(connection));
        task_tracker.close();
        let shutdown_on_drop = shutdown.clone().drop_guard();
        LeaderLock {
            epoch,
            renewed,
            lost_leadership,
            task_tracker,
            shutdown,
            _shutdown_on_drop: shutdown_on_drop,
        }
    }
}

impl LeaderLock {
    /// The epoch that must be in force for this orchestrator to write.
    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Whether the lease has not run out: no standby has replaced this orchestrator.
    pub(super) fn is_leased(&self) -> bool {
        self.lease_end().is_some()
    }

    /// Like [`LeaderLock::is_leased`], but waits for a moment while the connection is made anew: where the server only
    /// restarted, nobody is refused for that.
    pub(super) async fn is_leased_again(&self) -> bool {
        if self.is_leased() {
            return true;
        }
        let mut renewed = self.renewed.clone();
        // Where the lease has run out, there is nothing to wait for.
        let _ = tokio::time::timeout(RECONNECT_TIME, renewed.wait_for(Option::is_some)).await;
        self.is_leased()
    }

    /// Returns when the lease has run out, or when the connection was not made anew in time.
    pub(super) async fn lease_expired(&self) {
        let mut renewed = self.renewed.clone();
        while self.is_leased_again().await {
            let Some(end) = self.lease_end() else { continue };
            // Either way, the lease may have been renewed by now.
            let _ = tokio::time::timeout_at(end, renewed.wait_for(Option::is_none)).await;
        }
    }

    /// When the lease runs out, unless it is renewed; `None` if it has.
    fn lease_end(&self) -> Option<Instant> {
        let end = (*self.renewed.borrow())? + LEASE;
        (Instant::now() < end).then_some(end)
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
    /// The lock, and when it was requested.
    Lock(AnyConnection, Instant),
    LostLeadership,
    /// Another session holds the lock, and has not raised the epoch.
    NotYet,
}

struct LeaderLockTask {
    options: AnyConnectOptions,
    /// The session's name in `pg_stat_activity`.
    session_name: SessionName,
    epoch: String,
    /// When the last message to the server was sent that it has answered; `None` while there is no connection, without
    /// which the server has freed the lock.
    renewed: watch::Sender<Option<Instant>>,
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
            self.renewed.send_replace(None);
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
        self.renewed.send_replace(None);
        if let Some(connection) = current {
            // The server frees the lock with the connection.
            let _ = tokio::time::timeout(RESPONSE_TIMEOUT, connection.close()).await;
        }
    }

    /// Returns when the connection no longer answers.
    async fn watch_connection(&self, current: &mut Option<AnyConnection>) {
        let Some(connection) = current else { return };
        let mut sent = Instant::now();
        loop {
            // After an answer that came late at once: the lease counts from the message, not from its answer.
            tokio::time::sleep_until(sent + PING_INTERVAL).await;
            sent = Instant::now();
            let answer = tokio::time::timeout(RESPONSE_TIMEOUT, connection.ping()).await;
            if !matches!(answer, Ok(Ok(()))) {
                return;
            }
            self.renewed.send_replace(Some(sent));
        }
    }

    /// Acquires the lock again; returns `None` if another orchestrator has taken over.
    async fn reacquire(&self) -> Option<AnyConnection> {
        loop {
            match self.try_reacquire().await {
                Ok(Reacquired::Lock(connection, sent)) => {
                    self.renewed.send_replace(Some(sent));
                    return Some(connection);
                }
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
        let sent = Instant::now();
        let locked = try_lock(&mut connection).await?;
        let epoch = sqlx::query("SELECT value FROM meta WHERE name = 'epoch'");
        let epoch: Option<String> =
            with_deadline(epoch.fetch_optional(&mut connection)).await?.map(|row| row.get(0));
        if epoch.as_ref() != Some(&self.epoch) {
            return Ok(Reacquired::LostLeadership);
        }
        if locked {
            return Ok(Reacquired::Lock(connection, sent));
        }
        // Under our epoch, the holder is either a dead session of our own that the server still considers alive,
        // or a new leader that is about to raise the epoch.
        if let Some(holder) = lock_holder(&mut connection).await?
            && holder.session_name == self.session_name.as_str()
        {
            let end = sqlx::query("SELECT pg_terminate_backend($1)").bind(holder.pid);
            with_deadline(end.fetch_one(&mut connection)).await?;
        }
        Ok(Reacquired::NotYet)
    }
}

/// Opens a connection for the lock. Keepalives let the server notice when this machine is gone, so that the lock
/// does not outlive it for long.
async fn connect(options: &AnyConnectOptions, name: &SessionName) -> Result<AnyConnection, sqlx::Error> {
    let connected = tokio::time::timeout(RESPONSE_TIMEOUT, options.connect()).await;
    let mut connection =
        connected.unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))?;
    let settings = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 3; \
                    SET tcp_keepalives_count = 3; SET tcp_user_timeout = 15000; SET lock_timeout = '30s'";
    with_deadline(sqlx::raw_sql(settings).execute(&mut connection)).await?;
    name.set_on(&mut connection).await?;
    Ok(connection)
}

async fn try_lock(connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
    let lock = sqlx::query("SELECT pg_try_advisory_lock($1, $2)").bind(LOCK_CLASS).bind(LEADER_LOCK_ID);
    with_deadline(lock.fetch_one(connection)).await?.try_get(0)
}

/// The session that holds the lock.
struct Holder {
    pid: i32,
    session_name: String,
    /// For people.
    description: String,
    /// For how long it has sent nothing; `None` if the server does not say.
    silent_for: Option<Duration>,
}

impl Holder {
    /// Whether it is an orchestrator whose lease has run out.
    fn is_silent(&self) -> bool {
        self.session_name.starts_with(SESSION_NAME_PREFIX)
            && self.silent_for.is_some_and(|silent_for| silent_for > LEASE)
    }
}

/// Returns the orchestrator that holds the lock, for people.
pub(super) async fn current_holder(
    connection: &mut AnyConnection,
) -> Result<Option<LockHolder>, sqlx::Error> {
    Ok(lock_holder(connection).await?.map(|holder| LockHolder::new(holder.description)))
}

/// Returns the session that holds the lock.
async fn lock_holder(connection: &mut AnyConnection) -> Result<Option<Holder>, sqlx::Error> {
    let query = sqlx::query(
        "SELECT activity.pid, application_name, \
         COALESCE(' from ' || host(client_addr), ''), \
         COALESCE(', since ' || to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), ''), \
         CAST(EXTRACT(EPOCH FROM clock_timestamp() - state_change) * 1000 AS BIGINT) \
         FROM pg_locks lock JOIN pg_stat_activity activity ON activity.pid = lock.pid \
         WHERE locktype = 'advisory' AND granted AND objsubid = 2 \
         AND CAST(classid AS BIGINT) = $1 AND CAST(objid AS BIGINT) = $2 \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    );
    let query = query.bind(i64::from(LOCK_CLASS)).bind(i64::from(LEADER_LOCK_ID));
    let Some(row) = with_deadline(query.fetch_optional(connection)).await? else { return Ok(None) };
    let pid: i32 = row.try_get(0)?;
    let text = |at: usize| row.try_get::<String, _>(at);
    let session_name: String = row.try_get::<Option<_>, _>(1)?.unwrap_or_default();
    let name = if session_name.is_empty() { "another process" } else { &session_name };
    let description = format!("{name} (session {pid}{}{})", text(2)?, text(3)?);
    let silent_ms: Option<i64> = row.try_get(4)?;
    let silent_for = silent_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
    Ok(Some(Holder { pid, session_name, description, silent_for }))
}

/// Ends all sessions of a leader that is silent: one that was frozen amid a transaction would keep its successor from
/// raising the epoch. Returns whether the server did so; it refuses if the session is another role's.
async fn end_sessions(connection: &mut AnyConnection, holder: &Holder) -> bool {
    let end = sqlx::query(
        "SELECT COUNT(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE datname = current_database() AND application_name = $1",
    );
    let ended = with_deadline(end.bind(holder.session_name.clone()).fetch_one(connection)).await;
    let silent_for = holder.silent_for.map(|silent_for| silent_for.as_secs_f64());
    let holder = &holder.description;
    match ended {
        Ok(_) => tracing::warn!(holder, silent_for, "The leader is silent; this orchestrator replaces it."),
        Err(error) => {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(error, holder, "The leader is silent, but its sessions could not be ended.");
            return false;
        }
    }
    true
}
