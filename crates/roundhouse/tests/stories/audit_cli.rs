//! `roundhouse audit verify`: the operator verifies the audit log.

use std::collections::BTreeMap;

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::json;

use crate::support::{Fleet, ProgramExit, TestEnv};

/// Verifies the audit log of a deployment.
async fn verify(fleet: &Fleet) -> ProgramExit {
    let database = format!("sqlite:{}", fleet.folder().join("registry.sqlite").display());
    let variables = BTreeMap::from([("ORCH_DATABASE_URL".to_owned(), database)]);
    fleet.test_env.run(&["audit", "verify"], &variables).wait().await
}

/// Changes a registry directly, as anyone with write access to its file could.
fn tamper(fleet: &Fleet, statements: &str) {
    let registry = Connection::open(fleet.folder().join("registry.sqlite")).unwrap();
    registry.execute_batch(statements).unwrap();
}

#[tokio::test]
async fn a_whole_ledger_is_told_product_by_product_beside_a_running_orchestrator() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let (product, other) = (up.product(), up.register("other", json!({})).await);
    product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    let output = verify(&fleet).await.assert_success();
    // register, provision, stop; register.
    assert!(output.contains(": 3 row(s)") && output.contains(": 1 row(s)"), "{output}");
    assert!(output.contains("2 products"), "{output}");
    // The orchestrator was not disturbed, and later rows are verified too.
    other.engine("bob").await;
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    up.signal_and_wait(Signal::TERM).await.assert_success();
    let output = verify(&fleet).await.assert_success();
    // The end of `up` put bob's engine to sleep.
    assert!(output.contains(": 4 row(s)") && output.contains(": 3 row(s)"), "{output}");
    fleet.start_up().await.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn a_changed_row_and_a_cut_tail_are_found() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    product.engine("ada").await;
    product.stop("ada").await.assert_ok("status:text");
    up.signal_and_wait(Signal::TERM).await.assert_success();
    let product_id = {
        let registry = Connection::open(fleet.folder().join("registry.sqlite")).unwrap();
        registry.query_row("SELECT product_id FROM products", [], |row| row.get::<_, String>(0)).unwrap()
    };

    tamper(&fleet, "DROP TRIGGER audit_log_no_update; UPDATE audit_log SET at = at + 1 WHERE id = 2");
    verify(&fleet)
        .await
        .assert_failure(1, &[&product_id, "row 2 or the row before it was changed", "broken"]);
    tamper(&fleet, "UPDATE audit_log SET at = at - 1 WHERE id = 2");
    verify(&fleet).await.assert_success();
    tamper(&fleet, "DROP TRIGGER audit_log_no_delete; DELETE FROM audit_log WHERE id = 3");
    verify(&fleet).await.assert_failure(1, &[&product_id, "row 3 is missing", "broken"]);
}

#[tokio::test]
async fn what_cannot_be_checked_is_named() {
    let home = TestEnv::new();
    let verify = async |variables: &[(&str, String)]| {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        home.run(&["audit", "verify"], &variables).wait().await
    };
    verify(&[]).await.assert_failure(2, &["ORCH_DATABASE_URL"]);
    let nowhere = home.path().join("nowhere.sqlite");
    let database = ("ORCH_DATABASE_URL", format!("sqlite:{}", nowhere.display()));
    verify(&[database]).await.assert_failure(2, &[nowhere.to_str().unwrap(), "No such file"]);
    assert!(!nowhere.exists());
}
