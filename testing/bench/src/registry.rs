//! Fills a registry with very many rows, written directly into its file, because through the API each row would
//! cost a process.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use api::{EngineId, EngineKey, KeyHash};
use rusqlite::{Connection, params};

use crate::baselines::{ADMIT_USERS, admit_user};

/// How long to wait while an orchestrator holds the write lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);
/// The period over which the audit log's rows are spread.
const AUDIT_LOG_AGE_MS: i64 = 30 * 24 * 3_600 * 1_000;
/// The events of the audit log's rows, in rotation.
const AUDIT_EVENTS: [&str; 8] =
    ["provision", "sleep", "wake", "sleep", "wake", "crash", "restart", "destroy"];
/// The number of users that the audit log's rows are about.
const AUDIT_LOG_USERS: u32 = 1_000;

/// Returns the user of row `number`. In index order, these users are spread among those with running engines.
pub(crate) fn user_name(number: u32) -> String {
    let neighbour = admit_user(u16::try_from(number % u32::from(ADMIT_USERS)).unwrap_or_default());
    format!("{neighbour}-{number:06}")
}

/// Adds the engines with these numbers to the only product, as stopped: the orchestrator would check running ones.
pub(crate) fn add_engines(registry: &Path, numbers: Range<u32>) -> anyhow::Result<()> {
    let mut connection = open(registry)?;
    let product = product_id(&connection)?;
    let now = now_ms()?;
    let transaction = connection.transaction()?;
    {
        let mut insert = transaction.prepare(
            "INSERT INTO engines (engine_id, product_id, user_id, status, key_hash, sealed_key,
             sealed_secrets_key, engine_version, pinned, created_at, last_health_at, generation)
             VALUES (?1, ?2, ?3, 'stopped', ?4, ?5, ?5, 'svc-engine:0.1.0', 0, ?6, ?6, 1)",
        )?;
        for number in numbers {
            let key = EngineKey::generate()?;
            // As long as a sealed key.
            let sealed = format!("{0}{0}", key.expose());
            let created_at = now + i64::from(number);
            let hash = KeyHash::of(key.expose()).to_hex();
            insert.execute(params![
                EngineId::new().to_string(),
                product,
                user_name(number),
                hash,
                sealed,
                created_at
            ])?;
        }
    }
    Ok(transaction.commit()?)
}

/// Gives the only product an audit log of `rows` rows over the last thirty days, with the matching counters. No
/// orchestrator may be running. The hashes form no valid chain, which no measurement checks.
pub(crate) fn write_audit_log(registry: &Path, rows: u32) -> anyhow::Result<()> {
    let mut connection = open(registry)?;
    let product = product_id(&connection)?;
    let now = now_ms()?;
    let transaction = connection.transaction()?;
    let last: i64 = transaction.query_row("SELECT audit_seq FROM products", [], |row| row.get(0))?;
    let users: Vec<_> =
        (0..AUDIT_LOG_USERS).map(|number| (EngineId::new().to_string(), user_name(number))).collect();
    let mut counts = [0_i64; 2];
    {
        let mut insert = transaction.prepare(
            "INSERT INTO audit_log (product_id, id, at, engine_id, user_id, event, duration_ms, detail, hash)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?;
        for (number, event) in (1..=rows).zip(AUDIT_EVENTS.iter().cycle()) {
            let user = users.get(usize::try_from(number % AUDIT_LOG_USERS)?);
            let (engine_id, user_id) = user.context("there are users")?;
            let at = now - AUDIT_LOG_AGE_MS + AUDIT_LOG_AGE_MS * i64::from(number) / i64::from(rows);
            let boots = ["provision", "wake", "restart"].contains(event);
            let duration = boots.then_some(20 + i64::from(number % 30));
            let detail = r#"{"from":"running","reason":"idle","to":"sleeping"}"#;
            let hash = format!("{number:064x}");
            let id = last + i64::from(number);
            insert.execute(params![product, id, at, engine_id, user_id, event, duration, detail, hash])?;
            for (count, counted) in counts.iter_mut().zip(["provision", "destroy"]) {
                *count += i64::from(*event == counted);
            }
        }
    }
    let [provisions, destroys] = counts;
    transaction.execute(
        "UPDATE products SET audit_seq = audit_seq + ?1, audit_hash = ?2, provisions = provisions + ?3,
         destroys = destroys + ?4",
        params![rows, format!("{rows:064x}"), provisions, destroys],
    )?;
    Ok(transaction.commit()?)
}

/// Copies the registry for a baseline. No orchestrator may be running, so that all data is in the one file.
pub(crate) fn copy(registry: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::copy(registry, to).with_context(|| format!("{} cannot be copied", registry.display()))?;
    Ok(())
}

fn open(registry: &Path) -> anyhow::Result<Connection> {
    let connection = Connection::open(registry)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

fn product_id(connection: &Connection) -> anyhow::Result<String> {
    let product = connection.query_row("SELECT product_id FROM products", [], |row| row.get(0));
    product.context("the registry has no product")
}

fn now_ms() -> anyhow::Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The registry's schema, from the orchestrator's migrations.
    const SCHEMA: [&str; 16] = [
        include_str!("../../../crates/orchestrator/migrations/0001_registry.sql"),
        include_str!("../../../crates/orchestrator/migrations/0001_registry.sqlite.sql"),
        include_str!("../../../crates/orchestrator/migrations/0002_supervision.sql"),
        include_str!("../../../crates/orchestrator/migrations/0003_scheduled_wakes.sql"),
        include_str!("../../../crates/orchestrator/migrations/0004_browser_tokens.sql"),
        include_str!("../../../crates/orchestrator/migrations/0005_inbox.sql"),
        include_str!("../../../crates/orchestrator/migrations/0006_fleet.sql"),
        include_str!("../../../crates/orchestrator/migrations/0007_platform_keys.sql"),
        include_str!("../../../crates/orchestrator/migrations/0008_audit_webhooks.sql"),
        include_str!("../../../crates/orchestrator/migrations/0011_product_states.sql"),
        include_str!("../../../crates/orchestrator/migrations/0009_idempotency.sql"),
        include_str!("../../../crates/orchestrator/migrations/0013_rollouts.sql"),
        include_str!("../../../crates/orchestrator/migrations/0012_backup_erasures.sql"),
        include_str!("../../../crates/orchestrator/migrations/0014_warm_engines.sql"),
        include_str!("../../../crates/orchestrator/migrations/0015_usage.sql"),
        include_str!("../../../crates/orchestrator/migrations/0016_drift.sql"),
    ];

    /// Creates a registry with one product and nothing else.
    pub(crate) fn create_empty(path: &Path) {
        let connection = Connection::open(path).unwrap();
        for step in SCHEMA {
            connection.execute_batch(step).unwrap();
        }
        let product =
            "INSERT INTO products (product_id, slug, display_name, policy, api_key_hash, created_at,
                       audit_seq, audit_hash) VALUES ('prod_1', 'demo', 'Demo', '{}', 'x', 0, 1, '')";
        connection.execute(product, []).unwrap();
    }

    #[test]
    fn what_is_written_adds_up() {
        let folder = tempfile::tempdir().unwrap();
        let registry = folder.path().join("registry.sqlite");
        create_empty(&registry);
        add_engines(&registry, 0..10).unwrap();
        add_engines(&registry, 10..30).unwrap();
        write_audit_log(&registry, 80).unwrap();
        let connection = Connection::open(&registry).unwrap();
        let number = |query: &str| connection.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(number("SELECT COUNT(DISTINCT user_id) FROM engines WHERE status = 'stopped'"), 30);
        assert_eq!(number("SELECT MAX(id) FROM audit_log"), number("SELECT audit_seq FROM products"));
        for (event, counter) in [("provision", "provisions"), ("destroy", "destroys")] {
            let rows = number(&format!("SELECT COUNT(*) FROM audit_log WHERE event = '{event}'"));
            assert_eq!(rows, number(&format!("SELECT {counter} FROM products")));
            assert_eq!(rows, 10);
        }
    }
}
