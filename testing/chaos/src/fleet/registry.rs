//! Reads the registry, beside the orchestrator or without one. It is opened for each read: a lasting connection
//! would keep SQLite from recovering after a kill as it would on its own, and would not survive a restart of
//! PostgreSQL.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::any::{AnyRow, install_default_drivers};
use sqlx::{AnyConnection, Connection as _, Row as _};

/// A row of the engines.
#[derive(Clone, Debug)]
pub(crate) struct EngineRow {
    pub(crate) engine_id: String,
    pub(crate) product_id: String,
    pub(crate) user_id: String,
    pub(crate) status: String,
    pub(crate) prior_status: Option<String>,
    pub(crate) port: Option<u16>,
    /// The claim of the operation in progress.
    pub(crate) claim: Option<String>,
    /// The hash of the engine's key; during a rotation, of the old one.
    pub(crate) key_hash: String,
    /// When it is to be restarted.
    pub(crate) restart_at: Option<i64>,
    /// When it is to be woken, if it sleeps.
    pub(crate) wake_at: Option<i64>,
}

impl EngineRow {
    /// The status as in the audit log: `None` while it is being provisioned.
    pub(crate) fn settled_status(&self) -> Option<&str> {
        match self.status.as_str() {
            "provisioning" => None,
            "destroying" => self.prior_status.as_deref(),
            status => Some(status),
        }
    }
}

/// A product: the end of its audit log and its counters.
#[derive(Clone, Debug)]
pub(crate) struct ProductRow {
    pub(crate) product_id: String,
    pub(crate) audit_seq: i64,
    pub(crate) audit_hash: String,
    pub(crate) provisions: i64,
    pub(crate) destroys: i64,
}

/// A row of the audit log.
#[derive(Clone, Debug)]
pub(crate) struct AuditRow {
    pub(crate) product_id: String,
    pub(crate) id: i64,
    pub(crate) at: i64,
    pub(crate) engine_id: Option<String>,
    pub(crate) user_id: Option<String>,
    pub(crate) event: String,
    pub(crate) duration_ms: Option<i64>,
    pub(crate) detail: String,
    pub(crate) hash: String,
}

impl AuditRow {
    /// Whether this is a wake that the orchestrator began by itself.
    pub(crate) fn is_scheduled_wake(&self) -> bool {
        let detail = serde_json::from_str::<Value>(&self.detail);
        self.event == "wake" && detail.is_ok_and(|detail| detail.get("reason") == Some(&"schedule".into()))
    }
}

/// The registry at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) engines: Vec<EngineRow>,
    pub(crate) products: Vec<ProductRow>,
    /// The rows that were not read before, in their order.
    pub(crate) audit: Vec<AuditRow>,
}

/// How far each product's audit log has been read.
pub(crate) type AuditCursor = BTreeMap<String, i64>;

/// Where the registry is.
#[derive(Clone)]
pub(crate) struct Registry {
    url: String,
    /// The statement that begins a snapshot over several queries.
    begin_snapshot: &'static str,
    /// Finds a connection of the orchestrator; `None` if the database has no connections.
    connection_query: Option<&'static str>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL has a password.
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

/// How long a killed orchestrator may still be connected.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// The interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

impl Registry {
    /// In a file of SQLite.
    pub(crate) fn sqlite(path: &Path) -> Self {
        install_default_drivers();
        Self {
            url: format!("sqlite:{}?mode=ro", path.display()),
            begin_snapshot: "BEGIN",
            connection_query: None,
        }
    }

    /// In the database of PostgreSQL to which `url` leads.
    pub(crate) fn postgres(url: &str) -> Self {
        install_default_drivers();
        Self {
            url: format!("{url}&application_name=chaos"),
            begin_snapshot: "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY",
            connection_query: Some(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() \
                 AND backend_type = 'client backend' AND application_name <> 'chaos' LIMIT 1",
            ),
        }
    }

    async fn open(&self) -> sqlx::Result<AnyConnection> {
        AnyConnection::connect(&self.url).await
    }

    /// The deployment's id.
    pub(crate) async fn deployment_id(&self) -> sqlx::Result<String> {
        let mut registry = self.open().await?;
        let query = "SELECT value FROM meta WHERE name = 'deployment_id'";
        let id = sqlx::query(query).fetch_one(&mut registry).await?.try_get(0)?;
        registry.close().await?;
        Ok(id)
    }

    /// Waits until the database has finished all statements of a killed orchestrator: until then its contents may
    /// change.
    pub(crate) async fn wait_disconnected(&self) -> anyhow::Result<()> {
        let Some(connected) = self.connection_query else { return Ok(()) };
        let begin = Instant::now();
        let mut registry = self.open().await?;
        while sqlx::query(connected).fetch_optional(&mut registry).await?.is_some() {
            anyhow::ensure!(begin.elapsed() < DISCONNECT_TIMEOUT, "a killed orchestrator is still connected");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(registry.close().await?)
    }

    /// Reads all rows in one snapshot, but only the rows of the audit log after `cursor`.
    pub(crate) async fn snapshot(&self, cursor: &AuditCursor) -> sqlx::Result<Snapshot> {
        let mut registry = self.open().await?;
        let mut view = registry.begin_with(self.begin_snapshot).await?;
        let products = "SELECT product_id, audit_seq, audit_hash, provisions, destroys FROM products";
        let products = sqlx::query(products).fetch_all(&mut *view).await?;
        let products: Vec<ProductRow> = products.iter().map(read_product).collect::<sqlx::Result<_>>()?;
        let engines = "SELECT engine_id, product_id, user_id, status, prior_status, port, claim_kind, \
                       key_hash, restart_at, wake_at FROM engines";
        let engines = sqlx::query(engines).fetch_all(&mut *view).await?;
        let engines = engines.iter().map(read_engine).collect::<sqlx::Result<_>>()?;
        let mut audit = Vec::new();
        for product in &products {
            let rows = "SELECT product_id, id, at, engine_id, user_id, event, duration_ms, detail, hash \
                        FROM audit_log WHERE product_id = $1 AND id > $2 ORDER BY id";
            let after = cursor.get(&product.product_id).copied().unwrap_or_default();
            let rows = sqlx::query(rows).bind(&product.product_id).bind(after).fetch_all(&mut *view).await?;
            for row in &rows {
                audit.push(read_audit(row)?);
            }
        }
        view.rollback().await?;
        registry.close().await?;
        Ok(Snapshot { engines, products, audit })
    }

    /// Polls the registry until `condition` holds, at most for `limit`. Returns whether it did.
    pub(crate) async fn wait_for(&self, condition: RegistryCondition, limit: Duration) -> sqlx::Result<bool> {
        let watching = async {
            let mut registry = self.open().await?;
            let (query, value) = match condition {
                RegistryCondition::ClaimVisible(kind) => {
                    ("SELECT 1 FROM engines WHERE claim_kind = $1 LIMIT 1", kind)
                }
                RegistryCondition::StatusReached(status) => {
                    ("SELECT 1 FROM engines WHERE status = $1 AND claim_kind IS NULL LIMIT 1", status)
                }
            };
            while sqlx::query(query).bind(value).fetch_optional(&mut registry).await?.is_none() {
                // The runtime's timer is too coarse, and a watcher has a thread of its own.
                std::thread::park_timeout(POLL_INTERVAL);
            }
            registry.close().await
        };
        match tokio::time::timeout(limit, watching).await {
            Ok(result) => result.map(|()| true),
            Err(_) => Ok(false),
        }
    }
}

fn read_product(row: &AnyRow) -> sqlx::Result<ProductRow> {
    Ok(ProductRow {
        product_id: row.try_get(0)?,
        audit_seq: row.try_get(1)?,
        audit_hash: row.try_get(2)?,
        provisions: row.try_get(3)?,
        destroys: row.try_get(4)?,
    })
}

fn read_engine(row: &AnyRow) -> sqlx::Result<EngineRow> {
    Ok(EngineRow {
        engine_id: row.try_get(0)?,
        product_id: row.try_get(1)?,
        user_id: row.try_get(2)?,
        status: row.try_get(3)?,
        prior_status: row.try_get(4)?,
        port: row.try_get::<Option<i64>, _>(5)?.and_then(|port| u16::try_from(port).ok()),
        claim: row.try_get(6)?,
        key_hash: row.try_get(7)?,
        restart_at: row.try_get(8)?,
        wake_at: row.try_get(9)?,
    })
}

fn read_audit(row: &AnyRow) -> sqlx::Result<AuditRow> {
    Ok(AuditRow {
        product_id: row.try_get(0)?,
        id: row.try_get(1)?,
        at: row.try_get(2)?,
        engine_id: row.try_get(3)?,
        user_id: row.try_get(4)?,
        event: row.try_get(5)?,
        duration_ms: row.try_get(6)?,
        detail: row.try_get(7)?,
        hash: row.try_get(8)?,
    })
}

/// A condition to wait for in the registry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RegistryCondition {
    /// An operation of this kind is in progress.
    ClaimVisible(&'static str),
    /// An engine is settled in this status.
    StatusReached(&'static str),
}
