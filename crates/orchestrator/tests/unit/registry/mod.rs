//! Tests of the registry by itself: the audit log's chain, compare-and-swap, quota and ports under concurrency.

mod dumping;
mod idempotency;
mod metrics;
mod plans;
mod postgres;
mod usage;
mod verifying;
mod warm;

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use api::orchestrator::{EngineStatus, Policy};
use api::product_state::ProductState;
use api::{DisplayName, EngineId, EngineKey, PlatformKey, ProductId, Slug, Timestamp, UserId};
use backend::{Instance, Placement};
use futures::future::join_all;
use serde_json::json;
use sqlx::{AnyPool, Row as _};

use super::*;
use crate::config::{DatabaseUrl, PortRange};
use crate::domain::EngineOwner;
use crate::domain::lifecycle::Change;
use crate::testing::{TestDatabase, on_postgres, skip_unless_sqlite};

const NOW: Timestamp = Timestamp::from_unix_ms(1_795_174_231_042);

struct Fixture {
    registry: Registry,
    product_id: ProductId,
    placements: Placements,
    folder: tempfile::TempDir,
    database: TestDatabase,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = TestDatabase::new(folder.path()).await;
        Self::at(folder, database).await
    }

    /// Creates a fixture on the PostgreSQL server; prints the reason and returns `None` if there is no server.
    async fn on_server() -> Option<Self> {
        let database = TestDatabase::create_on_test_server().await?;
        Some(Self::at(tempfile::tempdir().unwrap(), database).await)
    }

    async fn at(folder: tempfile::TempDir, database: TestDatabase) -> Self {
        let registry = Registry::open(database.url(), NOW).await.unwrap();
        let product = Product { policy: Policy::default(), ..product("demo") };
        let entry = AuditEntry { engine: None, ..entry(EngineId::new(), Event::Register) };
        assert!(registry.register(&product, &entry).await.unwrap());
        let ports = PortAllocator::new(PortRange::new(9_001, 9_020).unwrap(), |_| true);
        let placements = Placements::HostPorts(ports);
        Self { registry, product_id: product.product_id, placements, folder, database }
    }

    fn new_engine(&self, user: &str) -> NewEngine {
        NewEngine {
            engine_id: EngineId::new(),
            owner: EngineOwner { product_id: self.product_id, user_id: UserId::new(user).unwrap() },
            key_hash: EngineKey::generate().unwrap().hash(),
            sealed_key: "sealed".into(),
            sealed_secrets_key: "sealed too".into(),
            engine_version: "svc-engine:0.1.0".parse().unwrap(),
            pinned: false,
            created_at: NOW,
            warm: None,
        }
    }

    async fn claim_new_engine(&self, user: &str) -> Result<EngineRow, ClaimRefused> {
        let engine = self.new_engine(user);
        let claimed =
            self.registry.claim_new_engine(&engine, &claim(Change::Provision), &self.placements).await;
        claimed.unwrap().map(|engine| engine.row)
    }

    /// Replaces the product's policy.
    async fn limit(&self, policy: Policy) {
        let entry = AuditEntry { engine: None, ..entry(EngineId::new(), Event::PolicyUpdate) };
        self.registry.replace_policy(self.product_id, &policy, NOW, |_, _| Ok(entry)).await.unwrap().unwrap();
    }

    /// Creates an engine that is settled in `status`.
    async fn settled(&self, user: &str, status: EngineStatus) -> EngineRow {
        let row = self.claim_new_engine(user).await.unwrap();
        let next =
            if status == EngineStatus::Running { running(&row) } else { NextState::NotRunning(status) };
        let entry = entry(row.engine_id, Event::Provision);
        self.registry.settle(&row, next, Some(&entry)).await.unwrap().unwrap()
    }

    async fn pool(&self) -> AnyPool {
        self.database.pool().await
    }
}

fn product(slug: &str) -> Product {
    Product {
        product_id: ProductId::new(),
        slug: Slug::new(slug).unwrap(),
        display_name: DisplayName::new("A product").unwrap(),
        policy: Policy { max_engines: Some(3), ..Policy::default() },
        key_hash: PlatformKey::generate().unwrap().hash(),
        created_at: NOW,
        updated_at: None,
        audit_seq: 1,
        state: ProductState::Active,
        state_since: None,
        engines_to_delete: None,
    }
}

fn claim(change: Change) -> Claim {
    let default_image = "svc-engine:0.1.0".parse().unwrap();
    let owner = "this process".into();
    let for_maintenance = false;
    Claim {
        change,
        pending: None,
        image: None,
        default_image,
        for_maintenance,
        owner,
        deadline: NOW,
        call: None,
    }
}

fn entry(engine_id: EngineId, event: Event) -> AuditEntry {
    let engine = Some((engine_id, UserId::new("ann").unwrap()));
    let detail = json!({"reason": "test"});
    AuditEntry { at: NOW, event, engine, duration_ms: Some(7), detail, call: None }
}

fn running(row: &EngineRow) -> NextState {
    NextState::Running {
        instance: Instance::new("1"),
        image: row.engine_version.clone(),
        health_at: NOW,
        on_demand: true,
    }
}

#[tokio::test]
async fn a_products_rows_are_numbered_and_chained() {
    let fixture = Fixture::new().await;
    for user in ["ann", "bob"] {
        fixture.settled(user, EngineStatus::Running).await;
    }
    let rows = sqlx::query(
        "SELECT id, event, engine_id, user_id, duration_ms, detail, hash FROM audit_log ORDER BY id",
    )
    .fetch_all(&fixture.pool().await)
    .await
    .unwrap();
    let mut before = String::new();
    for (id, row) in (1_i64..).zip(&rows) {
        let engine_id: Option<String> = row.get(2);
        let event = if engine_id.is_some() { Event::Provision } else { Event::Register };
        let written = AuditEntry {
            at: NOW,
            event,
            engine: engine_id.map(|id| (id.parse().unwrap(), UserId::new(row.get::<String, _>(3)).unwrap())),
            duration_ms: row.get(4),
            detail: serde_json::from_str(&row.get::<String, _>(5)).unwrap(),
            call: None,
        };
        assert_eq!(row.get::<i64, _>(0), id);
        let hash: String = row.get(6);
        assert_eq!(written.hash(fixture.product_id, id, &before), hash);
        // Any other content has another hash.
        let other = AuditEntry { duration_ms: None, ..written.clone() };
        assert_ne!(other.hash(fixture.product_id, id, &before), hash);
        assert_ne!(written.hash(fixture.product_id, id + 1, &before), hash);
        assert_ne!(written.hash(ProductId::new(), id, &before), hash);
        before = hash;
    }
    assert_eq!(rows.len(), 3);
    let end = sqlx::query("SELECT audit_seq, audit_hash FROM products")
        .fetch_one(&fixture.pool().await)
        .await
        .unwrap();
    assert_eq!((end.get::<i64, _>(0), end.get::<String, _>(1)), (3, before));
}

#[tokio::test]
async fn the_place_of_a_time_in_a_log_is_found_also_among_rows_that_were_committed_late() {
    let fixture = Fixture::new().await;
    // The registration is the first row. Each fourth one was committed three seconds late.
    let mut times = vec![NOW.unix_ms()];
    for second in 1_i64..50 {
        let late = if second % 4 == 0 { 3 } else { 0 };
        let at = Timestamp::from_unix_ms(NOW.unix_ms() + (second - late) * 1_000);
        let entry = AuditEntry { at, engine: None, ..entry(EngineId::new(), Event::PolicyUpdate) };
        let policy = Policy::default();
        fixture
            .registry
            .replace_policy(fixture.product_id, &policy, at, |_, _| Ok(entry))
            .await
            .unwrap()
            .unwrap();
        times.push(at.unix_ms());
    }
    for at in (-2..54).map(|second| NOW.unix_ms() + second * 1_000) {
        let time = Timestamp::from_unix_ms(at);
        let id = fixture.registry.audit_row_before(fixture.product_id, time).await.unwrap();
        let index = usize::try_from(id).unwrap();
        assert!(index == 0 || times[index - 1] <= at, "row {id} came after {at}");
        assert!(times.get(index).is_none_or(|next| *next > at), "the row after {id} came before {at}");
    }
    assert_eq!(fixture.registry.audit_row_before(ProductId::new(), NOW).await.unwrap(), 0);
}

#[tokio::test]
async fn the_ledger_takes_no_update_no_delete_and_no_replacement() {
    let fixture = Fixture::new().await;
    let pool = fixture.pool().await;
    let other = if on_postgres() {
        "TRUNCATE audit_log"
    } else {
        "INSERT OR REPLACE INTO audit_log SELECT * FROM audit_log"
    };
    for statement in ["UPDATE audit_log SET event = 'nothing'", "DELETE FROM audit_log", other] {
        let refused = sqlx::query(statement).execute(&pool).await.unwrap_err().to_string();
        assert!(refused.contains("append-only"), "{statement}: {refused}");
    }
}

#[tokio::test]
async fn a_change_made_on_an_old_view_fails_whole() {
    let fixture = Fixture::new().await;
    let seen = fixture.settled("ann", EngineStatus::Running).await;
    let stop = claim(Change::Stop);
    let row = fixture.registry.claim(&seen, &stop).await.unwrap().unwrap();
    assert_eq!(fixture.registry.claim(&seen, &stop).await.unwrap().unwrap_err(), ClaimRefused::Stale);
    // Only a delete can claim a claimed engine.
    assert_eq!(fixture.registry.claim(&row, &stop).await.unwrap().unwrap_err(), ClaimRefused::Stale);
    let destroying = fixture.registry.claim(&row, &claim(Change::Destroy)).await.unwrap().unwrap();
    assert_eq!(
        (destroying.status, destroying.prior_status),
        (EngineStatus::Destroying, Some(EngineStatus::Running))
    );
    // The superseded operation settles nothing, and writes no audit row.
    let entry = entry(row.engine_id, Event::Stop);
    let next = NextState::NotRunning(EngineStatus::Stopped);
    let error = fixture.registry.settle(&row, next, Some(&entry)).await.unwrap_err();
    assert!(matches!(error, RegistryError::ClaimLost { .. }));
    let count = sqlx::query("SELECT COUNT(*) FROM audit_log").fetch_one(&fixture.pool().await).await.unwrap();
    assert_eq!(count.get::<i64, _>(0), 2);
    let read = fixture.registry.engine(&seen.owner).await.unwrap().unwrap();
    assert_eq!((read.generation, read.claim), (destroying.generation, Some(Change::Destroy)));
    assert!(fixture.registry.settle(&destroying, NextState::Removed, None).await.unwrap().is_none());
    assert!(fixture.registry.engine(&seen.owner).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn regression_o11_two_hundred_claims_at_once_never_exceed_a_quota_of_ten() {
    let fixture = Arc::new(Fixture::new().await);
    fixture.limit(Policy { max_engines: Some(10), ..Policy::default() }).await;
    let claims = (0..200).map(|user| {
        let fixture = Arc::clone(&fixture);
        tokio::spawn(async move { fixture.claim_new_engine(&format!("u{user}")).await })
    });
    let mut ports = HashSet::new();
    let mut refused = 0;
    for claimed in join_all(claims).await {
        match claimed.unwrap() {
            Ok(row) => assert!(ports.insert(row.port.unwrap()), "a port was leased twice"),
            Err(refusal) => {
                assert_eq!(refusal, ClaimRefused::Quota { max_engines: 10 });
                refused += 1;
            }
        }
    }
    assert_eq!((ports.len(), refused), (10, 190));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_claims_of_one_seat_one_wins() {
    let fixture = Arc::new(Fixture::new().await);
    let claims = (0..30).map(|_| {
        let fixture = Arc::clone(&fixture);
        tokio::spawn(async move { fixture.claim_new_engine("ann").await })
    });
    let claims = join_all(claims).await;
    assert_eq!(claims.iter().filter(|claimed| claimed.as_ref().unwrap().is_ok()).count(), 1);
}

#[tokio::test]
async fn ports_come_in_turn_and_last_ones_first() {
    let fixture = Fixture::new().await;
    let ann = fixture.settled("ann", EngineStatus::Stopped).await;
    let bob = fixture.settled("bob", EngineStatus::Running).await;
    assert_eq!((ann.port, bob.port), (Some(9_001), Some(9_002)));
    fixture.registry.settle(&bob, NextState::Removed, None).await.unwrap();
    // The port that was just freed does not go to another user at once.
    assert_eq!(fixture.claim_new_engine("eve").await.unwrap().port, Some(9_003));
    let again =
        fixture.registry.claim_and_place(&ann, &claim(Change::Start), &fixture.placements).await.unwrap();
    assert_eq!(again.unwrap().placement(), Placement::HostPort(9_001));
}

#[tokio::test]
async fn a_full_range_takes_from_those_at_rest_and_never_from_those_that_run() {
    let fixture = Fixture::new().await;
    for user in 0..18 {
        fixture.settled(&format!("u{user}"), EngineStatus::Running).await;
    }
    let sleeping = fixture.settled("sleeping", EngineStatus::Sleeping).await;
    let failed = fixture.settled("failed", EngineStatus::Failed).await;
    // A stopped engine that is being started keeps its port.
    let starting =
        fixture.registry.claim_and_place(&failed, &claim(Change::Start), &fixture.placements).await.unwrap();
    assert_eq!(starting.unwrap().placement().host_port(), failed.port);
    assert_eq!(fixture.claim_new_engine("taker").await.unwrap().port, sleeping.port);
    assert_eq!(fixture.registry.engine(&sleeping.owner).await.unwrap().unwrap().port, None);
    assert_eq!(fixture.claim_new_engine("late").await.unwrap_err(), ClaimRefused::NoPort);
    let refused =
        fixture.registry.claim_and_place(&sleeping, &claim(Change::Wake), &fixture.placements).await.unwrap();
    assert_eq!(refused.unwrap_err(), ClaimRefused::NoPort);
    assert_eq!(fixture.registry.engine(&sleeping.owner).await.unwrap().unwrap().claim, None);
}

#[tokio::test]
async fn ports_that_something_else_holds_are_skipped() {
    let fixture = Fixture::new().await;
    let ports = PortAllocator::new(PortRange::new(9_001, 9_005).unwrap(), |port| port == 9_004);
    let placements = Placements::HostPorts(ports);
    let lease = async |user| {
        let engine = fixture.new_engine(user);
        fixture.registry.claim_new_engine(&engine, &claim(Change::Provision), &placements).await.unwrap()
    };
    assert_eq!(lease("ann").await.unwrap().placement(), Placement::HostPort(9_004));
    assert_eq!(lease("bob").await.unwrap_err(), ClaimRefused::NoPort);
}

#[tokio::test]
async fn many_engines_move_in_few_transactions_and_changed_ones_are_left_out() {
    let fixture = Fixture::new().await;
    let mut moves = Vec::new();
    for user in ["ann", "bob", "eve"] {
        let row = fixture.settled(user, EngineStatus::Running).await;
        let entry = entry(row.engine_id, Event::Crash);
        moves.push(EngineMove { row, next: NextState::Failed { restart_at: Some(NOW), restarts: 0 }, entry });
    }
    fixture.registry.claim(&moves[1].row, &claim(Change::Stop)).await.unwrap().unwrap();
    let settled = fixture.registry.settle_all(fixture.product_id, &moves).await.unwrap();
    assert_eq!(settled.iter().map(|row| row.restart_at).collect::<Vec<_>>(), [Some(NOW); 2]);
    let mut states = HashMap::new();
    for EngineMove { row, .. } in &moves {
        let read = fixture.registry.engine(&row.owner).await.unwrap().unwrap();
        states.insert(read.owner.user_id.as_str().to_owned(), read.status.as_str());
    }
    assert_eq!(
        states,
        HashMap::from([("ann".into(), "failed"), ("bob".into(), "running"), ("eve".into(), "failed")])
    );
}

#[tokio::test]
async fn regression_o12_the_hot_reads_use_an_index() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let fixture = Fixture::new().await;
    let pool = fixture.pool().await;
    for (query, index) in [
        ("SELECT * FROM engines WHERE product_id = 'p' AND user_id = 'u'", "product_id=? AND user_id=?"),
        ("SELECT * FROM engines WHERE engine_id = 'e'", "engine_id=?"),
        (
            "SELECT * FROM engines WHERE product_id = 'p' ORDER BY created_at, engine_id LIMIT 1",
            "engines_listed",
        ),
        (
            "SELECT * FROM engines WHERE product_id = 'p' AND status = 's' \
             ORDER BY created_at, engine_id LIMIT 1",
            "engines_listed_by_status",
        ),
        ("SELECT * FROM products WHERE api_key_hash = 'h'", "api_key_hash=?"),
    ] {
        let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {query}"));
        let plan = sqlx::query(explain).fetch_all(&pool).await.unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get(3)).collect();
        assert!(plan.len() == 1 && plan[0].starts_with("SEARCH") && plan[0].contains(index), "{plan:?}");
    }
}

#[tokio::test]
async fn facts_are_kept_from_the_first_time_on() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.registry.get_or_insert_meta("colour", "red").await.unwrap(), "red");
    assert_eq!(fixture.registry.get_or_insert_meta("colour", "blue").await.unwrap(), "red");
}

async fn refusal(database: &DatabaseUrl) -> OpenRegistryError {
    match Registry::open(database, NOW).await {
        Ok(_) => panic!("{database} was opened"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_registry_is_opened_by_one_process_at_a_time() {
    let fixture = Fixture::new().await;
    let database = fixture.database.url();
    assert!(matches!(refusal(database).await, OpenRegistryError::Held(_)));
    fixture.registry.close().await;
    drop(fixture.registry);
    let reopened = Registry::open(database, NOW).await.unwrap();
    assert!(reopened.product_by_slug(&Slug::new("demo").unwrap()).await.unwrap().is_some());
}

#[tokio::test]
async fn what_is_no_registry_of_ours_is_refused() {
    let fixture = Fixture::new().await;
    sqlx::query("UPDATE meta SET value = '999' WHERE name = 'schema_version'")
        .execute(&fixture.pool().await)
        .await
        .unwrap();
    fixture.registry.close().await;
    drop(fixture.registry);
    let newer = refusal(fixture.database.url()).await;
    assert!(matches!(newer, OpenRegistryError::SchemaTooNew { found: 999, known: 2 }));
    let text = fixture.folder.path().join("notes.txt");
    std::fs::write(&text, "these are just some notes, and long enough to be read as a header".repeat(20))
        .unwrap();
    let corrupt = refusal(&DatabaseUrl::Sqlite(text)).await;
    assert!(matches!(corrupt, OpenRegistryError::Corrupt(_)), "{corrupt:?}");
    let folder = fixture.folder.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    assert!(matches!(refusal(&DatabaseUrl::Sqlite(folder)).await, OpenRegistryError::Database(_)));
}

#[tokio::test]
async fn any_path_will_do_and_the_file_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("new folder/50% of? ünïcödé #1.db");
    let registry = Registry::open(&DatabaseUrl::Sqlite(database.clone()), NOW).await.unwrap();
    registry.get_or_insert_meta("colour", "red").await.unwrap();
    for suffix in ["", "-wal", ".lock"] {
        let path = format!("{}{suffix}", database.display());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{path}");
    }
}

#[tokio::test]
async fn a_file_with_other_tables_is_refused_and_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE notes (text TEXT)").unwrap();
    let before = std::fs::read(&path).unwrap();
    let refused = refusal(&DatabaseUrl::Sqlite(path.clone())).await;
    assert!(
        matches!(&refused, OpenRegistryError::ForeignTables { table } if table == "notes"),
        "{refused:?}"
    );
    assert!(std::fs::read(&path).unwrap() == before);
}

#[tokio::test]
async fn regression_o18_what_is_written_after_the_disk_was_full_is_committed() {
    if skip_unless_sqlite("disk") {
        return;
    }
    let fixture = Fixture::new().await;
    let uncapped = Policy { max_engines: Some(1_000), ..Policy::default() };
    fixture.limit(uncapped).await;
    fixture.registry.fill_disk(true).await;
    let mut users = 0;
    // At first there is room on pages that are not full yet. SQLite ends the transaction that finds none.
    let refused = loop {
        users += 1;
        let product = Product { audit_seq: 0, ..product(&format!("p{users}")) };
        let entry = AuditEntry { engine: None, ..entry(EngineId::new(), Event::Register) };
        if let Err(error) = fixture.registry.register(&product, &entry).await {
            break error;
        }
        assert!(users < 1_000, "the disk was never full");
    };
    assert!(format!("{refused:?}").contains("full"), "{refused:?}");
    fixture.registry.fill_disk(false).await;
    // A caller that disappears leaves a transaction to be rolled back.
    drop(fixture.registry.begin().await.unwrap());
    let engine = fixture.claim_new_engine("late").await.unwrap();
    let seen_by_others = sqlx::query("SELECT engine_id FROM engines WHERE engine_id = $1")
        .bind(engine.engine_id.to_string())
        .fetch_optional(&fixture.pool().await)
        .await
        .unwrap();
    assert!(seen_by_others.is_some(), "an acknowledged change was never committed");
}
