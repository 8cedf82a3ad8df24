//! One orchestrator per PostgreSQL database: a lock that lives as long as a connection, and an epoch that makes
//! the lock bite.
//!
//! Who takes the lock raises the epoch, and every transaction that writes looks whether its own epoch is still in
//! force. So an orchestrator whose lock was lost without its knowing, because it was frozen or cut off, can change
//! nothing any more once another one has taken over. One that has lost the lock takes it again if nobody else has.

use std::time::Duration;

use http_service::lock::LockHolder;
use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, ConnectOptions as _, Connection as _, Row as _};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::access::with_deadline;
use super::open::OpenRegistryError;

/// The advisory locks of this program are those of this class.
pub(super) const LOCK_CLASS: i32 = 0x526F_756E;
/// Among them, the lock of the one orchestrator.
const LEADER_LOCK_ID: i32 = 1;

/// How often the lock's connection is looked after.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// How long it may take to answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two tries to have it again.
const REACQUIRE_INTERVAL: Duration = Duration::from_millis(250);
/// How long a lock that is taken is waited for: a server notices the end of a client a moment later.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two tries in that time.
const ACQUIRE_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The lock, held until it is dropped, closed, or taken over.
pub(super) struct LeaderLock {
    epoch: String,
    lost_leadership: CancellationToken,
    task_tracker: TaskTracker,
    shutdown: CancellationToken,
    _shutdown_on_drop: DropGuard,
}

/// The lock, just taken, on its connection.
pub(super) struct AcquiredLock {
    pub(super) connection: AnyConnection,
    options: AnyConnectOptions,
    session_name: String,
}

impl AcquiredLock {
    /// Takes the lock, or says who has it.
    pub(super) async fn acquire(options: AnyConnectOptions) -> Result<Self, OpenRegistryError> {
        let name = session_name();
        let mut connection = connect(&options, &name).await?;
        let begun = tokio::time::Instant::now();
        while !try_lock(&mut connection).await? {
            if begun.elapsed() >= ACQUIRE_TIMEOUT {
                let holder = lock_holder(&mut connection).await?;
                let description = holder.map_or_else(|| "another process".to_owned(), |(_, holder)| holder);
                return Err(OpenRegistryError::Held(LockHolder::new(description)));
            }
            tokio::time::sleep(ACQUIRE_RETRY_INTERVAL).await;
        }
        Ok(Self { connection, options, session_name: name })
    }

    /// Raises the epoch: nobody else writes from now on. The table of facts is there. It waits for those who write
    /// under the epoch before; the server ends those that do nothing.
    pub(super) async fn raise_epoch(&mut self) -> Result<String, OpenRegistryError> {
        let raise = "INSERT INTO meta (name, value) VALUES ('epoch', '1') ON CONFLICT (name) \
                     DO UPDATE SET value = CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT) RETURNING value";
        Ok(sqlx::query(raise).fetch_one(&mut self.connection).await?.try_get(0)?)
    }

    /// Keeps the lock from now on, in `epoch`.
    pub(super) fn maintain(self, epoch: String) -> LeaderLock {
        let Self { connection, options, session_name: name } = self;
        let (deposed, ending) = (CancellationToken::new(), CancellationToken::new());
        let task_tracker = LeaderLockTask {
            options,
            session_name: name,
            epoch: epoch.clone(),
            lost_leadership: deposed.clone(),
            shutdown: ending.clone(),
        };
        let tracker = TaskTracker::new();
        tracker.spawn(task_tracker.run(connection));
        tracker.close();
        let at_the_end = ending.clone().drop_guard();
        LeaderLock {
            epoch,
            lost_leadership: deposed,
            task_tracker: tracker,
            shutdown: ending,
            _shutdown_on_drop: at_the_end,
        }
    }
}

impl LeaderLock {
    /// The epoch that must be in force for this orchestrator to write.
    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Ends with the hold: another orchestrator has the registry.
    pub(super) const fn lost_leadership(&self) -> &CancellationToken {
        &self.lost_leadership
    }

    /// Gives the lock back.
    pub(super) async fn release(&self) {
        self.shutdown.cancel();
        self.task_tracker.wait().await;
    }
}

/// Whoever has taken the lock back, or cannot.
enum Reacquired {
    Lock(AnyConnection),
    LostLeadership,
    /// Somebody has the lock, and has not written under an epoch of their own.
    NotYet,
}

struct LeaderLockTask {
    options: AnyConnectOptions,
    /// As the server's list of sessions shows it.
    session_name: String,
    epoch: String,
    lost_leadership: CancellationToken,
    shutdown: CancellationToken,
}

impl LeaderLockTask {
    /// Looks after the lock's connection until the end.
    async fn run(self, connection: AnyConnection) {
        let ending = self.shutdown.clone();
        let mut kept = Some(connection);
        loop {
            if ending.run_until_cancelled(self.watch_connection(&mut kept)).await.is_none() {
                break;
            }
            kept = None;
            tracing::warn!("The connection that holds the registry's lock is lost; the lock is taken again.");
            match ending.run_until_cancelled(self.reacquire()).await {
                Some(Some(connection)) => kept = Some(connection),
                Some(None) => {
                    tracing::error!("Another orchestrator has taken over the registry.");
                    self.lost_leadership.cancel();
                    return;
                }
                None => break,
            }
            tracing::info!("The registry's lock is held again.");
        }
        if let Some(connection) = kept {
            // The server frees the lock with the connection.
            let _ = tokio::time::timeout(RESPONSE_TIMEOUT, connection.close()).await;
        }
    }

    /// Returns when the connection does not answer any more.
    async fn watch_connection(&self, kept: &mut Option<AnyConnection>) {
        let Some(connection) = kept else { return };
        loop {
            tokio::time::sleep(PING_INTERVAL).await;
            let answer = tokio::time::timeout(RESPONSE_TIMEOUT, connection.ping()).await;
            if !matches!(answer, Ok(Ok(()))) {
                return;
            }
        }
    }

    /// Takes the lock again; none if somebody else has taken over.
    async fn reacquire(&self) -> Option<AnyConnection> {
        loop {
            match self.try_reacquire().await {
                Ok(Reacquired::Lock(connection)) => return Some(connection),
                Ok(Reacquired::LostLeadership) => return None,
                Ok(Reacquired::NotYet) => {}
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::debug!(error, "The registry's lock could not be taken again yet.");
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
        // Under our epoch only a session of our own can have it, which the server still takes for alive, or one
        // that is just about to raise the epoch.
        if let Some((pid, holder)) = lock_holder(&mut connection).await?
            && holder.starts_with(&self.session_name)
        {
            let end = sqlx::query("SELECT pg_terminate_backend($1)").bind(pid);
            with_deadline(end.fetch_one(&mut connection)).await?;
        }
        Ok(Reacquired::NotYet)
    }
}

/// A connection for the lock. The server is told to look whether this machine is still there, so that a lock does
/// not outlive it for long.
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

/// The session that has the lock, and in words whose it is.
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

/// A name for the server's list of sessions: this process, and a mark that no other hold has.
fn session_name() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    // The server takes 63 bytes, and shows what is not ASCII otherwise.
    let host: String = host.chars().filter(char::is_ascii_graphic).take(20).collect();
    let mark = uuid::Uuid::now_v7().simple().to_string();
    // Its last digits are random.
    let mark: String = mark.chars().skip(24).collect();
    format!("roundhouse process {} on {host} [{mark}]", std::process::id())
}
