//! The registry's file, read beside the orchestrator or without one. Opened for each look: a connection that
//! stays would keep SQLite from recovering after a kill as it would on its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Row};

/// A row of the engines.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) engine_id: String,
    pub(crate) product_id: String,
    pub(crate) user_id: String,
    pub(crate) status: String,
    pub(crate) prior_status: Option<String>,
    pub(crate) port: Option<u16>,
    /// The change under way.
    pub(crate) claim: Option<String>,
    /// Of its key, while a rotation is under way the old one.
    pub(crate) key_hash: String,
    /// When it is to be restarted.
    pub(crate) restart_at: Option<i64>,
}

impl Engine {
    /// The state that the ledger knows: none while it is provisioned.
    pub(crate) fn settled(&self) -> Option<&str> {
        match self.status.as_str() {
            "provisioning" => None,
            "destroying" => self.prior_status.as_deref(),
            status => Some(status),
        }
    }
}

/// A product: the end of its ledger and its counters.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) product_id: String,
    pub(crate) audit_seq: i64,
    pub(crate) audit_hash: String,
    pub(crate) provisions: i64,
    pub(crate) destroys: i64,
}

/// A row of the ledger.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
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

/// The registry at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) engines: Vec<Engine>,
    pub(crate) products: Vec<Product>,
    /// The rows that were not seen before, in their order.
    pub(crate) audit: Vec<Audit>,
}

/// How far each product's ledger has been read.
pub(crate) type Seen = BTreeMap<String, i64>;

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let registry = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    registry.busy_timeout(Duration::from_secs(5))?;
    Ok(registry)
}

/// The deployment's id.
pub(crate) fn deployment_id(path: &Path) -> rusqlite::Result<String> {
    open(path)?.query_one("SELECT value FROM meta WHERE name = 'deployment_id'", [], |row| row.get(0))
}

/// All rows, but of the ledger only those behind what was `seen`, in one transaction.
pub(crate) fn snapshot(path: &Path, seen: &Seen) -> rusqlite::Result<Snapshot> {
    let mut registry = open(path)?;
    let registry = registry.transaction()?;
    let products = all(
        &registry,
        "SELECT product_id, audit_seq, audit_hash, provisions, destroys FROM products",
        |row| {
            Ok(Product {
                product_id: row.get(0)?,
                audit_seq: row.get(1)?,
                audit_hash: row.get(2)?,
                provisions: row.get(3)?,
                destroys: row.get(4)?,
            })
        },
    )?;
    let engines = all(
        &registry,
        "SELECT engine_id, product_id, user_id, status, prior_status, port, claim_kind, key_hash, \
         restart_at FROM engines",
        |row| {
            Ok(Engine {
                engine_id: row.get(0)?,
                product_id: row.get(1)?,
                user_id: row.get(2)?,
                status: row.get(3)?,
                prior_status: row.get(4)?,
                port: row.get(5)?,
                claim: row.get(6)?,
                key_hash: row.get(7)?,
                restart_at: row.get(8)?,
            })
        },
    )?;
    let mut audit = Vec::new();
    for product in &products {
        let mut rows = registry.prepare(
            "SELECT product_id, id, at, engine_id, user_id, event, duration_ms, detail, hash FROM audit_log \
             WHERE product_id = ?1 AND id > ?2 ORDER BY id",
        )?;
        let after = seen.get(&product.product_id).copied().unwrap_or_default();
        for row in rows.query_map((&product.product_id, after), read_audit)? {
            audit.push(row?);
        }
    }
    Ok(Snapshot { engines, products, audit })
}

fn read_audit(row: &Row<'_>) -> rusqlite::Result<Audit> {
    Ok(Audit {
        product_id: row.get(0)?,
        id: row.get(1)?,
        at: row.get(2)?,
        engine_id: row.get(3)?,
        user_id: row.get(4)?,
        event: row.get(5)?,
        duration_ms: row.get(6)?,
        detail: row.get(7)?,
        hash: row.get(8)?,
    })
}

fn all<T>(
    registry: &Connection,
    query: &str,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    registry.prepare(query)?.query_map([], read)?.collect()
}

/// What is waited for in the registry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sight {
    /// A change of this kind is under way.
    Claim(&'static str),
    /// An engine rests in this state.
    Rest(&'static str),
}

/// Watches the registry until it shows `sight`, at most for `limit`. Returns whether it did.
pub(crate) fn watch(path: &Path, sight: Sight, limit: Duration) -> rusqlite::Result<bool> {
    let registry = open(path)?;
    let (query, value) = match sight {
        Sight::Claim(kind) => ("SELECT EXISTS (SELECT 1 FROM engines WHERE claim_kind = ?1)", kind),
        Sight::Rest(status) => {
            ("SELECT EXISTS (SELECT 1 FROM engines WHERE status = ?1 AND claim_kind IS NULL)", status)
        }
    };
    let mut query = registry.prepare(query)?;
    let begin = std::time::Instant::now();
    while begin.elapsed() < limit {
        if query.query_one([value], |row| row.get(0))? {
            return Ok(true);
        }
        std::thread::park_timeout(Duration::from_micros(200));
    }
    Ok(false)
}
