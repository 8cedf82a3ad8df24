//! The registry as text: whatever it holds is the same after a restore, on either database, or nothing is restored.

use pretty_assertions::assert_eq;

use super::*;
use crate::registry::{DumpError, dump, restore};

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
    fixture
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
    for table in ["products", "audit_log", "browser_tokens", "platform_keys", "inbox"] {
        assert_eq!(rows(before, table), rows(after, table), "{table}");
    }
    let names: Vec<_> = rows(before, "meta").into_iter().filter(|row| row[0] != "epoch").collect();
    let names_after: Vec<_> = rows(after, "meta").into_iter().filter(|row| row[0] != "epoch").collect();
    assert_eq!(names, names_after);
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
