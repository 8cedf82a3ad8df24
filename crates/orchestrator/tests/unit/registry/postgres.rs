//! Tests of what only PostgreSQL has: a lock that can be lost, an epoch, and products that are changed
//! concurrently.

mod plans;

use std::collections::HashSet;
use std::time::Duration;

use pretty_assertions::assert_eq;

use super::*;
use crate::testing::proxy::FaultProxy;

const TEST_TIMEOUT: Duration = Duration::from_mins(1);

const SELECT_HOLDER: &str = "SELECT CAST(pid AS TEXT) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND granted \
                      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

impl Fixture {
    /// Returns the session that holds the leader lock, if any.
    async fn holder(&self) -> Option<String> {
        let row = sqlx::query(SELECT_HOLDER).fetch_optional(&self.pool().await).await.unwrap();
        row.map(|row| row.get(0))
    }

    async fn run(&self, statement: &'static str) {
        sqlx::query(statement).execute(&self.pool().await).await.unwrap();
    }

    async fn count_audit_rows(&self) -> i64 {
        let count = sqlx::query("SELECT COUNT(*) FROM audit_log");
        count.fetch_one(&self.pool().await).await.unwrap().get(0)
    }
}

async fn poll_until<T>(mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = probe().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, found).await.expect("timed out")
}

/// Returns the id of the server process behind a connection.
async fn backend_pid(connection: &mut sqlx::AnyConnection) -> String {
    let pid = sqlx::query("SELECT CAST(pg_backend_pid() AS TEXT)");
    pid.fetch_one(connection).await.unwrap().get(0)
}

#[tokio::test]
async fn a_connection_is_kept_unless_it_was_left_in_a_transaction() {
    let Some(fixture) = Fixture::on_server().await else { return };
    for pool in [&fixture.registry.reads, &fixture.registry.writes] {
        let mut servers = HashSet::new();
        for _ in 0..50 {
            servers.insert(backend_pid(&mut pool.acquire().await.unwrap()).await);
        }
        let max_connections = pool.options().get_max_connections() as usize;
        assert!(servers.len() <= max_connections, "{servers:?}");
        let mut abandoned = pool.acquire().await.unwrap();
        let server = backend_pid(&mut abandoned).await;
        sqlx::raw_sql("BEGIN").execute(&mut *abandoned).await.unwrap();
        drop(abandoned);
        for _ in 0..50 {
            assert_ne!(backend_pid(&mut pool.acquire().await.unwrap()).await, server);
        }
    }
}

#[tokio::test]
async fn a_lost_lock_is_taken_again_where_nobody_else_has() {
    let Some(fixture) = Fixture::on_server().await else { return };
    let first = fixture.holder().await.expect("nobody holds the lock");
    let terminate = format!("SELECT pg_terminate_backend({first})");
    sqlx::query(sqlx::AssertSqlSafe(terminate)).fetch_one(&fixture.pool().await).await.unwrap();
    let second = poll_until(async || fixture.holder().await.filter(|holder| *holder != first)).await;
    assert_ne!(second, first);
    fixture.settled("ann", EngineStatus::Running).await;
    // The new lock excludes others like the first one.
    assert!(matches!(refusal(fixture.database.url()).await, OpenRegistryError::Held(_)));
    let lost = tokio::time::timeout(Duration::ZERO, fixture.registry.lost_leadership()).await;
    assert!(lost.is_err());
}

#[tokio::test]
async fn who_was_deposed_writes_nothing_any_more() {
    let Some(fixture) = Fixture::on_server().await else { return };
    let running = fixture.settled("ann", EngineStatus::Running).await;
    let claimed = fixture.registry.claim(&running, &claim(Change::Stop)).await.unwrap().unwrap();
    let rows = fixture.count_audit_rows().await;
    fixture.run("UPDATE meta SET value = '99' WHERE name = 'epoch'").await;
    let registry = &fixture.registry;
    let entry = entry(running.engine_id, Event::Stop);
    let next = NextState::NotRunning(EngineStatus::Stopped);
    let other = product("other");
    let activities = [(running.engine_id, EngineActivity { failed_checks: 7, ..EngineActivity::default() })];
    let new = fixture.new_engine("bob");
    let results = [
        registry.settle(&claimed, next, Some(&entry)).await.map(|_| ()),
        registry.claim(&claimed, &claim(Change::Destroy)).await.map(|_| ()),
        registry.claim_new_engine(&new, &claim(Change::Provision), &fixture.placements).await.map(|_| ()),
        registry.register(&other, &AuditEntry { engine: None, ..entry.clone() }).await.map(|_| ()),
        registry
            .replace_policy(fixture.product_id, &Policy::default(), NOW, |_, _| Ok(entry.clone()))
            .await
            .map(|_| ()),
        registry.save_activity(&activities).await,
        registry.get_or_insert_meta("colour", "red").await.map(|_| ()),
        registry.check_leadership().await,
    ];
    for (number, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(RegistryError::LostLeadership)), "{number}: {result:?}");
    }
    assert_eq!(fixture.count_audit_rows().await, rows);
    let read = registry.engine(&running.owner).await.unwrap().unwrap();
    assert_eq!((read.generation, read.claim), (claimed.generation, Some(Change::Stop)));
    assert!(registry.product_by_slug(&other.slug).await.unwrap().is_none());
    let supervised = registry.supervised().await.unwrap();
    assert!(supervised.iter().all(|engine| engine.activity.failed_checks == 0));
    // The orchestrator is notified.
    tokio::time::timeout(TEST_TIMEOUT, registry.lost_leadership()).await.unwrap();
}

#[tokio::test]
async fn a_connection_left_in_a_transaction_is_not_used_again() {
    let Some(fixture) = Fixture::on_server().await else { return };
    let running = fixture.settled("ann", EngineStatus::Running).await;
    let registry = &fixture.registry;
    // As left by a caller that disappears while the server executes BEGIN.
    let mut abandoned = registry.reads.acquire().await.unwrap();
    for statement in ["BEGIN", "SELECT COUNT(*) FROM engines"] {
        sqlx::raw_sql(statement).execute(&mut *abandoned).await.unwrap();
    }
    drop(abandoned);
    let claimed = registry.claim(&running, &claim(Change::Stop)).await.unwrap().unwrap();
    poll_until(async || registry.is_idle().then_some(())).await;
    for _ in 0..8 {
        let found = registry.engine_by_id(running.engine_id).await.unwrap().unwrap();
        assert_eq!(found.generation, claimed.generation);
    }
}

#[tokio::test]
async fn a_writer_that_has_looked_is_waited_for_by_who_takes_over() {
    let Some(fixture) = Fixture::on_server().await else { return };
    let tx = fixture.registry.begin_product_tx(fixture.product_id, 0).await.unwrap();
    let pool = fixture.pool().await;
    let mut connection = pool.acquire().await.unwrap();
    let raise = "UPDATE meta SET value = '99' WHERE name = 'epoch'";
    sqlx::raw_sql("SET lock_timeout = '200ms'").execute(&mut *connection).await.unwrap();
    let error = sqlx::query(raise).execute(&mut *connection).await.unwrap_err();
    assert!(error.to_string().contains("lock timeout"), "{error}");
    tx.commit().await.unwrap();
    sqlx::query(raise).execute(&mut *connection).await.unwrap();
    let error = fixture.registry.begin_product_tx(fixture.product_id, 0).await.err().unwrap();
    assert!(matches!(error, RegistryError::LostLeadership), "{error:?}");
}

#[tokio::test]
async fn one_that_is_cut_off_loses_the_registry_to_the_next() {
    let Some(database) = TestDatabase::create_on_test_server().await else { return };
    let proxy = FaultProxy::start(database.address()).await;
    let first = Registry::open(&database.url_via_port(proxy.port()), NOW).await.unwrap();
    proxy.refuse_connections(true);
    let second = poll_until(async || Registry::open(database.url(), NOW).await.ok()).await;
    proxy.refuse_connections(false);
    tokio::time::timeout(TEST_TIMEOUT, first.lost_leadership()).await.expect("the first one never noticed");
    let error = first.get_or_insert_meta("colour", "red").await.unwrap_err();
    assert!(matches!(error, RegistryError::LostLeadership), "{error:?}");
    assert_eq!(second.get_or_insert_meta("colour", "blue").await.unwrap(), "blue");
}

/// A frozen orchestrator: its connections stay open, and nothing comes over them. It is also amid a change.
#[tokio::test]
async fn regression_o25_a_leader_that_is_silent_is_replaced_within_seconds_and_knows_it_before() {
    let Some(database) = TestDatabase::create_on_test_server().await else { return };
    let proxy = FaultProxy::start(database.address()).await;
    let first = Registry::open(&database.url_via_port(proxy.port()), NOW).await.unwrap();
    let changing = first.begin().await.unwrap();
    assert!(first.is_leading());
    let silent_since = tokio::time::Instant::now();
    proxy.hang(true);
    let second = poll_until(async || Registry::open(database.url(), NOW).await.ok());
    let second = tokio::time::timeout(TEST_TIMEOUT / 3, second).await.expect("it was not replaced");
    assert!(!first.is_leading() && second.is_leading());
    let took = silent_since.elapsed();
    assert!(took > Duration::from_secs(2), "it was replaced after {took:?}");
    assert!(took < Duration::from_secs(8), "its successor waited for the change that it was amid: {took:?}");
    proxy.hang(false);
    tokio::time::timeout(TEST_TIMEOUT, first.lost_leadership()).await.expect("the first one never noticed");
    assert!(changing.commit().await.is_err());
    let error = first.get_or_insert_meta("colour", "red").await.unwrap_err();
    assert!(matches!(error, RegistryError::LostLeadership), "{error:?}");
    assert_eq!(second.get_or_insert_meta("colour", "blue").await.unwrap(), "blue");
}

#[tokio::test]
async fn one_that_renews_its_lease_is_not_replaced() {
    let Some(fixture) = Fixture::on_server().await else { return };
    let holder = fixture.holder().await;
    let started = tokio::time::Instant::now();
    // More than two leases.
    while started.elapsed() < Duration::from_secs(7) {
        assert!(matches!(refusal(fixture.database.url()).await, OpenRegistryError::Held(_)));
        assert!(fixture.registry.is_leading());
    }
    assert_eq!(fixture.holder().await, holder);
}

#[tokio::test]
async fn of_two_that_open_a_new_database_at_once_one_makes_it() {
    let Some(database) = TestDatabase::create_on_test_server().await else { return };
    let both = tokio::join!(Registry::open(database.url(), NOW), Registry::open(database.url(), NOW));
    let (one, other) = match both {
        (Ok(registry), Err(error)) | (Err(error), Ok(registry)) => (registry, error),
        (Ok(_), Ok(_)) => panic!("both hold the lock"),
        (Err(one), Err(other)) => panic!("{one} and {other}"),
    };
    let OpenRegistryError::Held(holder) = other else { panic!("{other:?}") };
    assert!(holder.to_string().contains(&format!("process {}", std::process::id())), "{holder}");
    assert_eq!(one.get_or_insert_meta("colour", "red").await.unwrap(), "red");
}

#[tokio::test]
async fn a_database_with_other_tables_is_refused() {
    let Some(database) = TestDatabase::create_on_test_server().await else { return };
    let pool = database.pool().await;
    sqlx::raw_sql("CREATE TABLE notes (text TEXT)").execute(&pool).await.unwrap();
    let refused = refusal(database.url()).await;
    assert!(
        matches!(&refused, OpenRegistryError::ForeignTables { table } if table == "notes"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_from_a_broken_one() {
    let unreachable = DatabaseUrl::parse("postgres://ann:hunter2@127.0.0.1:1/d").unwrap();
    let refused = refusal(&unreachable).await;
    assert!(matches!(refused, OpenRegistryError::Unreachable(_)), "{refused:?}");
    let refused = verify(&unreachable, |_| panic!("there is nothing to check")).await.unwrap_err();
    let message = refused.to_string();
    assert!(message.contains("127.0.0.1:1/d") && !message.contains("hunter2"), "{message}");
}

#[tokio::test]
async fn a_product_that_is_being_changed_holds_up_no_other() {
    let Some(fixture) = Fixture::on_server().await else { return };
    let ann = fixture.settled("ann", EngineStatus::Running).await;
    let other = product("other");
    let registered = AuditEntry { engine: None, ..entry(EngineId::new(), Event::Register) };
    assert!(fixture.registry.register(&other, &registered).await.unwrap());
    let busy = fixture.registry.begin_product_tx(other.product_id, 0).await.unwrap();
    // Well before the busy transaction would time out.
    let stop = claim(Change::Stop);
    let stopped = fixture.registry.claim(&ann, &stop);
    let row =
        tokio::time::timeout(Duration::from_secs(7), stopped).await.expect("it waits").unwrap().unwrap();
    fixture.registry.settle(&row, NextState::NotRunning(EngineStatus::Stopped), None).await.unwrap();
    busy.commit().await.unwrap();
}

/// More callers than there are connections, all waiting for one product's row.
#[tokio::test]
async fn a_burst_of_one_product_leaves_the_connections_to_the_others() {
    let Some(fixture) = Fixture::on_server().await else { return };
    let fixture = Arc::new(fixture);
    let ann = fixture.settled("ann", EngineStatus::Running).await;
    let other = product("other");
    let registered = AuditEntry { engine: None, ..entry(EngineId::new(), Event::Register) };
    assert!(fixture.registry.register(&other, &registered).await.unwrap());
    let busy = fixture.registry.begin_product_tx(other.product_id, 0).await.unwrap();
    let burst: Vec<_> = (0..30)
        .map(|_| {
            let (fixture, product_id) = (Arc::clone(&fixture), other.product_id);
            tokio::spawn(async move { fixture.registry.begin_product_tx(product_id, 0).await.map(drop) })
        })
        .collect();
    // Each has progressed as far as it can.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let stop = claim(Change::Stop);
    let stopped = fixture.registry.claim(&ann, &stop);
    tokio::time::timeout(Duration::from_secs(4), stopped).await.expect("it waits").unwrap().unwrap();
    busy.commit().await.unwrap();
    for waiting in burst {
        waiting.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn products_that_lease_ports_at_once_never_share_one() {
    let Some(fixture) = Fixture::on_server().await else { return };
    let fixture = Arc::new(fixture);
    let mut products = vec![fixture.product_id];
    for slug in ["b", "c", "d"] {
        let other = product(slug);
        let registered = AuditEntry { engine: None, ..entry(EngineId::new(), Event::Register) };
        assert!(fixture.registry.register(&other, &registered).await.unwrap());
        products.push(other.product_id);
    }
    // More engines than ports, so that sleeping ones lose their ports while they are being started.
    let claims = (0..40).map(|number| {
        let (fixture, product_id) = (Arc::clone(&fixture), products[number % 4]);
        tokio::spawn(async move {
            let mut engine = fixture.new_engine(&format!("u{number}"));
            engine.owner.product_id = product_id;
            let claimed = fixture
                .registry
                .claim_new_engine(&engine, &claim(Change::Provision), &fixture.placements)
                .await;
            let Ok(engine) = claimed.unwrap() else { return };
            let settled = fixture
                .registry
                .settle(&engine.row, NextState::NotRunning(EngineStatus::Sleeping), None)
                .await;
            let settled = settled.unwrap().unwrap();
            // The claim may be refused: its port may have gone to another engine meanwhile.
            let _ = fixture
                .registry
                .claim_and_place(&settled, &claim(Change::Wake), &fixture.placements)
                .await
                .unwrap();
        })
    });
    for claimed in join_all(claims).await {
        claimed.unwrap();
    }
    let query = "SELECT COUNT(*) FROM engines WHERE claim_kind IS NOT NULL AND port IS NULL";
    let without_port: i64 = sqlx::query(query).fetch_one(&fixture.pool().await).await.unwrap().get(0);
    assert_eq!(without_port, 0, "an engine that has no port is being started");
}

#[tokio::test]
async fn a_listing_is_in_the_order_of_bytes_whatever_the_locale() {
    let Some(fixture) = Fixture::on_server().await else { return };
    fixture.settled("ann", EngineStatus::Stopped).await;
    let ids = ["eng_b", "eng_A", "eng_a", "eng_B", "eng_ä", "eng-c", "eng_1"];
    for (number, id) in ids.iter().enumerate() {
        let copy = format!(
            "INSERT INTO engines (engine_id, product_id, user_id, status, key_hash, sealed_key, \
             sealed_secrets_key, engine_version, pinned, created_at, generation) \
             SELECT '{id}', product_id, 'u{number}', status, key_hash, sealed_key, sealed_secrets_key, \
             engine_version, pinned, created_at, generation FROM engines WHERE user_id = 'ann'"
        );
        sqlx::query(sqlx::AssertSqlSafe(copy)).execute(&fixture.pool().await).await.unwrap();
    }
    let listed = sqlx::query("SELECT engine_id FROM engines WHERE user_id <> 'ann' ORDER BY engine_id");
    let listed = listed.fetch_all(&fixture.pool().await).await.unwrap();
    let listed: Vec<String> = listed.iter().map(|row| row.get(0)).collect();
    let mut sorted: Vec<String> = ids.map(str::to_owned).into();
    sorted.sort();
    assert_eq!(listed, sorted);
    let ordered = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = current_schema() \
                   AND column_name IN ('product_id', 'engine_id') AND table_name <> 'audit_log' \
                   AND collation_name IS DISTINCT FROM 'C'";
    assert_eq!(sqlx::query(ordered).fetch_one(&fixture.pool().await).await.unwrap().get::<i64, _>(0), 0);
}

#[tokio::test]
async fn odd_text_comes_back_as_it_was() {
    let Some(fixture) = Fixture::on_server().await else { return };
    for user in ["O'Brien", "\\x00", "ünïcödé \u{1f980}", "%_$1", " blank "] {
        let row = fixture.settled(user, EngineStatus::Running).await;
        let read = fixture.registry.engine(&row.owner).await.unwrap().unwrap();
        assert_eq!(read.owner.user_id.as_str(), user);
    }
    // Text that a column cannot store is refused earlier; a detail is escaped.
    assert!(DisplayName::new("a\0b").is_err() && UserId::new("a\0b").is_err());
    let row = fixture.settled("nul", EngineStatus::Running).await;
    let entry = AuditEntry { detail: json!({"reason": "a\0b"}), ..entry(row.engine_id, Event::Stop) };
    fixture.registry.settle(&row, NextState::Unchanged, Some(&entry)).await.unwrap();
    let mut rows = 0;
    verify(fixture.database.url(), |checked| rows += checked.rows.unwrap()).await.unwrap();
    assert_eq!(rows, 8);
}

#[tokio::test]
async fn a_second_registry_of_the_same_server_is_another_one() {
    let Some(fixture) = Fixture::on_server().await else { return };
    let Some(other) = Fixture::on_server().await else { return };
    other.settled("ann", EngineStatus::Running).await;
    fixture.settled("ann", EngineStatus::Running).await;
}
