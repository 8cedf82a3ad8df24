//! Tests of the verification: every change of a written audit log is detected.

use std::path::Path;

use pretty_assertions::assert_eq;

use super::*;

/// Returns the result for the only product after `changes` were made to the database directly.
async fn verify_after(changes: &[&'static str]) -> Result<i64, ChainBreak> {
    let fixture = Fixture::new().await;
    for user in ["ann", "bob", "eve"] {
        fixture.settled(user, EngineStatus::Running).await;
    }
    let pool = fixture.pool().await;
    let mut connection = pool.acquire().await.unwrap();
    let drop_guards = if on_postgres() {
        "DROP TRIGGER audit_log_no_change ON audit_log; SET session_replication_role = replica"
    } else {
        "DROP TRIGGER audit_log_no_update; DROP TRIGGER audit_log_no_delete; DROP TRIGGER audit_log_no_replace; \
         PRAGMA foreign_keys = OFF"
    };
    sqlx::raw_sql(drop_guards).execute(&mut *connection).await.unwrap();
    for statement in changes {
        let result = sqlx::query(*statement).execute(&mut *connection).await.unwrap();
        assert_ne!(result.rows_affected(), 0, "{statement}");
    }
    let mut found = check(&fixture).await;
    assert_eq!(found.len(), 1);
    found.remove(0).rows
}

async fn check(fixture: &Fixture) -> Vec<VerifiedProduct> {
    let mut found = Vec::new();
    verify(fixture.database.url(), |checked| found.push(checked)).await.unwrap();
    found
}

#[tokio::test]
async fn a_ledger_as_it_was_written_is_told_with_its_rows() {
    assert_eq!(verify_after(&[]).await, Ok(4));
}

#[tokio::test]
async fn any_changed_column_is_found() {
    for change in [
        "UPDATE audit_log SET at = at + 1 WHERE id = 3",
        "UPDATE audit_log SET event = 'stop' WHERE id = 3",
        "UPDATE audit_log SET engine_id = NULL WHERE id = 3",
        "UPDATE audit_log SET user_id = 'eve' WHERE id = 3",
        "UPDATE audit_log SET duration_ms = NULL WHERE id = 3",
        "UPDATE audit_log SET duration_ms = 8 WHERE id = 3",
        "UPDATE audit_log SET detail = '{\"reason\":\"other\"}' WHERE id = 3",
        "UPDATE audit_log SET detail = detail || ' ' WHERE id = 3",
        "UPDATE audit_log SET hash = 'x' WHERE id = 3",
    ] {
        assert_eq!(verify_after(&[change]).await, Err(ChainBreak::Changed { id: 3 }), "{change}");
    }
    // PostgreSQL's columns accept no other type.
    let text = "UPDATE audit_log SET at = 'noon' WHERE id = 3";
    if on_postgres() {
        return;
    }
    assert_eq!(verify_after(&[text]).await, Err(ChainBreak::Unreadable { id: 3 }));
}

#[tokio::test]
async fn rows_in_another_order_are_found() {
    let swap = [
        "UPDATE audit_log SET id = 99 WHERE id = 2",
        "UPDATE audit_log SET id = 2 WHERE id = 3",
        "UPDATE audit_log SET id = 3 WHERE id = 99",
    ];
    assert_eq!(verify_after(&swap).await, Err(ChainBreak::Changed { id: 2 }));
}

#[tokio::test]
async fn rows_that_are_gone_are_found_the_last_one_too() {
    let cut = "DELETE FROM audit_log WHERE id >= 3";
    assert_eq!(verify_after(&[cut]).await, Err(ChainBreak::Truncated { id: 3, had: 4 }));
    let all = "DELETE FROM audit_log";
    assert_eq!(verify_after(&[all]).await, Err(ChainBreak::Truncated { id: 1, had: 4 }));
    let middle = "DELETE FROM audit_log WHERE id = 2";
    assert_eq!(verify_after(&[middle]).await, Err(ChainBreak::Missing { id: 2, found: 3 }));
    let closed = [middle, "UPDATE audit_log SET id = id - 1 WHERE id > 2"];
    assert_eq!(verify_after(&closed).await, Err(ChainBreak::Changed { id: 2 }));
    // With an adapted count, the last hash is still wrong.
    let counted = ["DELETE FROM audit_log WHERE id = 4", "UPDATE products SET audit_seq = 3"];
    assert_eq!(verify_after(&counted).await, Err(ChainBreak::WrongLastHash { id: 3 }));
}

#[tokio::test]
async fn rows_that_were_added_are_found() {
    let added = "INSERT INTO audit_log SELECT product_id, id + 1, at, engine_id, user_id, event, duration_ms, \
                 detail, hash FROM audit_log WHERE id = 4";
    assert_eq!(verify_after(&[added]).await, Err(ChainBreak::Added { id: 5, has: 4 }));
    let early = "UPDATE audit_log SET id = 0 WHERE id = 1";
    assert_eq!(verify_after(&[early]).await, Err(ChainBreak::Missing { id: 1, found: 0 }));
    assert_eq!(
        verify_after(&["DELETE FROM engines", "DELETE FROM products"]).await,
        Err(ChainBreak::NoProduct { id: 1 })
    );
}

#[tokio::test]
async fn every_product_is_checked_for_itself() {
    let fixture = Fixture::new().await;
    fixture.settled("ann", EngineStatus::Running).await;
    let other = product("other");
    let registered = AuditEntry { engine: None, ..entry(EngineId::new(), Event::Register) };
    assert!(fixture.registry.register(&other, &registered).await.unwrap());
    let pool = fixture.pool().await;
    sqlx::query("UPDATE products SET audit_hash = 'x' WHERE slug = 'demo'").execute(&pool).await.unwrap();
    let found = check(&fixture).await;
    let rows: HashMap<_, _> = found.into_iter().map(|checked| (checked.product_id, checked.rows)).collect();
    assert_eq!(
        rows,
        HashMap::from([
            (fixture.product_id.to_string(), Err(ChainBreak::WrongLastHash { id: 2 })),
            (other.product_id.to_string(), Ok(1)),
        ])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn beside_a_registry_at_work_a_check_sees_one_moment() {
    let fixture = Arc::new(Fixture::new().await);
    let writing = Arc::clone(&fixture);
    let writes = tokio::spawn(async move {
        let mut row = writing.settled("ann", EngineStatus::Running).await;
        for _ in 0..200 {
            let entry = entry(row.engine_id, Event::Stop);
            row = writing.registry.settle(&row, NextState::Unchanged, Some(&entry)).await.unwrap().unwrap();
        }
    });
    let (mut rows, mut checks) = (0, 0);
    while !writes.is_finished() || checks < 3 {
        let found = check(&fixture).await.remove(0).rows.expect("the chain is broken");
        assert!(found >= rows, "{found} after {rows}");
        (rows, checks) = (found, checks + 1);
    }
    writes.await.unwrap();
    assert_eq!(check(&fixture).await[0].rows, Ok(202));
}

#[tokio::test]
async fn a_registry_that_nobody_holds_is_checked_and_left_as_it_was() {
    if skip_unless_sqlite("file") {
        return;
    }
    let fixture = Fixture::new().await;
    fixture.registry.close().await;
    let Fixture { registry, folder, .. } = fixture;
    drop(registry);
    let database = folder.path().join("registry.db");
    let before = std::fs::read(&database).unwrap();
    let mut rows = 0;
    let url = DatabaseUrl::Sqlite(database.clone());
    verify(&url, |checked| rows += checked.rows.unwrap()).await.unwrap();
    assert_eq!(rows, 1);
    assert!(std::fs::read(&database).unwrap() == before);
    assert!(Registry::open(&url, NOW).await.is_ok());
}

#[tokio::test]
async fn what_is_no_registry_is_not_checked_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.db");
    let refused = async |path: &Path| {
        verify(&DatabaseUrl::Sqlite(path.to_owned()), |_| panic!("there is nothing to check"))
            .await
            .unwrap_err()
    };
    assert!(matches!(refused(&missing).await, VerifyError::Unreadable { .. }));
    assert!(!missing.exists());
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "these are just some notes".repeat(100)).unwrap();
    assert!(matches!(refused(&text).await, VerifyError::NotARegistry { .. }));
    let empty = folder.path().join("empty.db");
    std::fs::write(&empty, "").unwrap();
    assert!(matches!(refused(&empty).await, VerifyError::NotARegistry { .. }));
}
