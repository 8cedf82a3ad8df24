//! The registry as text: whatever it holds is the same after a restore, on either database, or nothing is restored.

use pretty_assertions::assert_eq;

use super::*;
use crate::registry::{BACKUP_JOB, DumpError, dump, restore};

async fn text_of(url: &DatabaseUrl) -> String {
    let mut text = Vec::new();
    dump(url, &mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}

/// The lines about one table.
fn rows(text: &str, table: &str) -> Vec<serde_json::Value> {
    let mut found = Vec::new();
    let mut is_table = false;
    for line in text.lines().skip(1) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        if let Some(name) = line.get("table") {
            is_table = name == table;
        } else if is_table {
            found.push(line);
        }
    }
    found.sort_by_key(ToString::to_string);
    found
}

async fn populated() -> Fixture {
    let fixture = Fixture::new().await;
    let unlimited = Policy { max_engines: Some(100), ..Policy::default() };
    fixture.limit(unlimited).await;
    for (user, status) in [
        ("running", EngineStatus::Running),
        ("sleeping", EngineStatus::Sleeping),
        ("stopped 'quoted' \"日本\" \\ $1", EngineStatus::Stopped),
    ] {
        fixture.settled(user, status).await;
    }
    // One in the middle of its provision.
    fixture.claim_new_engine("provisioning").await.unwrap();
    fixture.registry.note_backups().await.unwrap();
    fixture.registry.replace_meta(BACKUP_JOB, Some("{}"), None).await.unwrap();
    fill_the_other_tables(&fixture).await;
    fixture
}

/// A row, at least, in each table that is still empty, and values in each column that others leave empty.
async fn fill_the_other_tables(fixture: &Fixture) {
    let pool = fixture.pool().await;
    let statements = [
        "INSERT INTO browser_tokens SELECT 'tok_1', engine_id, 'hash', '[\"chat\"]', NULL, 1, 2, 3 FROM engines \
         WHERE user_id = 'sleeping'",
        "INSERT INTO product_origins SELECT product_id, '[\"https://shop.invalid\"]' FROM products",
        "INSERT INTO inbox SELECT engine_id, 'req_1', product_id, user_id, 9, '{\"a\": \"日本\"}' FROM engines \
         WHERE user_id = 'sleeping'",
        "INSERT INTO platform_keys SELECT 'key_1', product_id, 'hash', 1, NULL FROM products",
        "INSERT INTO audit_webhooks SELECT 'whk_1', product_id, 'https://shop.invalid/audit', '[]', 'active', 'sealed', \
         'sealed before', 5, 1, 2, 3, 4, '[]', NULL, NULL, 7 FROM products",
        "INSERT INTO audit_dead_letters VALUES ('whk_1', 2, 5, 9, 'refused', 1)",
        "INSERT INTO backup_erasures VALUES ('eng_gone')",
        "INSERT INTO idempotent_calls SELECT 'id', 'caller', product_id, 'fingerprint', 1, 2, 'eng_gone', 3, 4, 200, 'sealed', \
         5 FROM products",
        "INSERT INTO rollouts VALUES ('roll_1', 'svc-engine:0.2.0', 'svc-engine:0.1.0', '{}', 'rolled_back', 1, 1, 1, \
         'because', 2, 3)",
        "INSERT INTO rollout_engines SELECT 'roll_1', engine_id, product_id, user_id, 'svc-engine:0.1.0', 'stuck', 1, 7, \
         2, 3, '{\"code\": \"BACKEND_ERROR\", \"message\": \"why\"}' FROM engines",
        // Not copied: it is nobody's, and runs here only.
        "INSERT INTO warm_engines SELECT 'eng_warm', product_id, 'ready', 1, 'hash', 'sealed', 'sealed', \
         'svc-engine:0.1.0', '{}', 9, 'instance' FROM products",
        "INSERT INTO usage_days SELECT product_id, 20000, engine_id, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, '{}' FROM engines",
        "INSERT INTO admit_days SELECT product_id, 20000, 'run', 1, 2, 3, 4 FROM products",
        "UPDATE products SET state = 'disabled', state_since = 5, engines_to_delete = 4, former_slug = 'shop'",
    ];
    for statement in statements {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    pool.close().await;
}

/// The tables of a text, in its order.
fn tables(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter_map(|line| line.get("table").and_then(|name| name.as_str()).map(str::to_owned)).collect()
}

/// Restores `text` to `target`, and returns what is there then.
async fn restored(text: &str, target: &TestDatabase) -> String {
    let rows = restore(target.url(), text.as_bytes()).await.unwrap();
    assert_eq!((rows.products, rows.engines), (1, 4));
    let mut found = Vec::new();
    verify(target.url(), |checked| found.push(checked)).await.unwrap();
    assert!(found.len() == 1 && found[0].rows.is_ok(), "{found:?}");
    text_of(target.url()).await
}

fn assert_same(before: &str, after: &str) {
    for table in tables(before).iter().filter(|table| !["meta", "engines"].contains(&table.as_str())) {
        assert_eq!(rows(before, table), rows(after, table), "{table}");
    }
    // A restored registry has another epoch, and no job under way.
    let facts = |text: &str| {
        let mut facts = rows(text, "meta");
        facts.retain(|row| row[0] != "epoch" && row[0] != BACKUP_JOB);
        facts
    };
    assert_eq!(facts(before), facts(after));
    assert!(!rows(after, "meta").iter().any(|row| row[0] == BACKUP_JOB));
    // What was running sleeps, without a process.
    let status = |text: &str| {
        let mut found: Vec<_> = rows(text, "engines")
            .iter()
            .map(|row| (row[2].as_str().unwrap().to_owned(), row[3].as_str().unwrap().to_owned()))
            .collect();
        found.sort();
        found
    };
    let expected = status(before).into_iter().map(|(user, status)| {
        let status = if status == "running" { "sleeping".to_owned() } else { status };
        (user, status)
    });
    assert_eq!(status(after), expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_registry_is_the_same_after_a_restore_on_any_database() {
    let fixture = populated().await;
    let text = text_of(fixture.database.url()).await;
    assert!(text.contains("日本") && rows(&text, "audit_log").len() >= 4, "{text}");
    let folder = tempfile::tempdir().unwrap();
    let same_kind = TestDatabase::new(folder.path()).await;
    let after = restored(&text, &same_kind).await;
    assert_same(&text, &after);
    // From there to the other kind, and the orchestrator's own code opens it.
    if let Some(server) = TestDatabase::create_on_test_server().await {
        assert_same(&text, &restored(&text, &server).await);
        let registry = Registry::open(server.url(), NOW).await.unwrap();
        assert!(registry.makes_backups().await.unwrap());
        registry.close().await;
    }
    let registry = Registry::open(same_kind.url(), NOW).await.unwrap();
    let owner = EngineOwner { product_id: fixture.product_id, user_id: UserId::new("running").unwrap() };
    let engine = registry.engine(&owner).await.unwrap().unwrap();
    assert_eq!((engine.status, engine.instance, engine.claim), (EngineStatus::Sleeping, None, None));
    registry.close().await;
}

/// Whoever adds a table fills it above, which shows whether its rows survive a restore: all tables are copied but that of
/// warm engines, and each after those that its rows refer to.
#[tokio::test]
async fn every_table_is_in_the_copy() {
    let fixture = populated().await;
    let pool = fixture.pool().await;
    let select = if on_postgres() {
        "SELECT CAST(tablename AS TEXT) FROM pg_tables WHERE schemaname = current_schema()"
    } else {
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    };
    let rows = sqlx::query(select).fetch_all(&pool).await.unwrap();
    let mut expected: HashSet<String> = rows.iter().map(|row| row.try_get(0).unwrap()).collect();
    assert!(expected.remove("warm_engines") && expected.len() >= 11, "{expected:?}");
    let found = tables(&text_of(fixture.database.url()).await);
    assert_eq!(found.iter().cloned().collect::<HashSet<_>>(), expected);
    assert_eq!(found.len(), expected.len(), "{found:?}");
}

#[tokio::test]
async fn what_is_cut_off_or_changed_leaves_the_database_empty() {
    let fixture = populated().await;
    let text = text_of(fixture.database.url()).await;
    let folder = tempfile::tempdir().unwrap();
    let target = TestDatabase::new(folder.path()).await;
    let (head, rest) = text.split_once('\n').unwrap();
    let later = format!("{}\n{rest}", head.replace("\"registry\":1", "\"registry\":2"));
    assert!(matches!(restore(target.url(), later.as_bytes()).await, Err(DumpError::Newer)));
    let additions = format!("{}\n{rest}", head.replace("\"schema_additions\":", "\"schema_additions\":9"));
    assert!(matches!(restore(target.url(), additions.as_bytes()).await, Err(DumpError::Newer)));
    let broken = [
        String::new(),
        head.replace("schema_version", "schema"),
        text[..text.len() - 5].to_owned(),
        format!("{head}\n[1, 2]\n"),
        format!("{text}{{\"table\":\"engines; DROP TABLE engines\",\"columns\":[\"a\"]}}\n"),
        format!("{text}{{\"table\":\"unknown\",\"columns\":[\"a\"]}}\n[1]\n"),
        format!("{text}[1]\n"),
        format!("{text}[true]\n"),
    ];
    for text in broken {
        assert!(restore(target.url(), text.as_bytes()).await.is_err(), "{text}");
    }
    // Nothing of any of them is there.
    assert_same(&text, &restored(&text, &target).await);
    assert!(matches!(restore(target.url(), text.as_bytes()).await, Err(DumpError::NotEmpty)));
}

#[tokio::test]
async fn a_registry_of_an_earlier_version_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let target = TestDatabase::new(folder.path()).await;
    let text = concat!(
        r#"{"registry":1,"schema_version":1,"schema_additions":0}"#,
        "\n",
        r#"{"table":"meta","columns":["name","value"]}"#,
        "\n",
        r#"["deployment_id","d1"]"#,
        "\n",
        r#"{"table":"products","columns":["product_id","slug","display_name","policy","api_key_hash","created_at","audit_seq","audit_hash"]}"#,
        "\n",
        r#"["prod_0199a9f0000070008000000000000001","demo","Demo","{}","x",5,0,""]"#,
        "\n",
    );
    let rows = restore(target.url(), text.as_bytes()).await.unwrap();
    assert_eq!((rows.products, rows.engines, rows.rows), (1, 0, 2));
    let registry = Registry::open(target.url(), NOW).await.unwrap();
    assert_eq!(registry.get_or_insert_meta(DEPLOYMENT_ID, "other").await.unwrap(), "d1");
    registry.close().await;
    // It is one of the current version now.
    assert_eq!(text_of(target.url()).await.lines().next(), text_of_new().await.lines().next());
}

async fn text_of_new() -> String {
    let fixture = Fixture::new().await;
    text_of(fixture.database.url()).await
}
