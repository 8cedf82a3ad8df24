//! Lesson 12: no query for a listing, the audit log or the metrics reads more rows than it returns.

use pretty_assertions::assert_eq;
use sqlx::Row as _;

use super::super::{
    audit_queries, audit_webhooks, drift, fleet_queries, idempotency, metrics, platform_keys, product_states,
    reseal, verify, webhook_progress,
};
use super::Fixture;
use crate::registry::activity::{SELECT_ACTIVITY, SELECT_SUPERVISED};
use crate::registry::engines::SELECT_RUNNING_OR_CLAIMED;
use crate::testing::skip_unless_sqlite;

/// Returns the steps of SQLite's query plan.
async fn plan(fixture: &Fixture, query: &str) -> Vec<String> {
    let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {query}"));
    let plan = sqlx::query(explain).fetch_all(&fixture.pool().await).await.unwrap();
    plan.iter().map(|row| row.get(3)).collect()
}

#[tokio::test]
async fn regression_o12_the_ledger_and_the_figures_use_an_index() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let fixture = Fixture::new().await;
    let by_event = "audit_log USING INDEX audit_log_by_event (product_id=? AND event=? AND id<?)";
    let by_user = "audit_log USING INDEX audit_log_by_user (product_id=? AND user_id=? AND id<?)";
    let key = "USING INDEX sqlite_autoindex_audit_log_1 (product_id=? AND id";
    for (query, expected) in [
        (audit_queries::NEWEST, format!("SEARCH audit_log {key}<?)")),
        (audit_queries::NEWEST_OF_EVENT, format!("SEARCH {by_event}")),
        (audit_queries::NEWEST_OF_USER, format!("SEARCH {by_user}")),
        (audit_queries::NEWEST_OF_USER_AND_EVENT, format!("SEARCH {by_user}")),
        (audit_queries::ROWS_AFTER, format!("SEARCH audit_log {key}>?)")),
        (
            audit_queries::LAST_ROW_ID,
            "SEARCH products USING INDEX sqlite_autoindex_products_1 (product_id=?)".into(),
        ),
        (
            metrics::SELECT_STATUS_COUNTS,
            "SEARCH engines USING COVERING INDEX engines_listed_by_status (product_id=?)".into(),
        ),
        (
            verify::NEXT_PRODUCT,
            "SEARCH products USING COVERING INDEX sqlite_autoindex_products_1 (product_id>?)".into(),
        ),
        (
            verify::SELECT_AUDIT_ROWS,
            "SEARCH audit_log USING INDEX sqlite_autoindex_audit_log_1 (product_id=?)".into(),
        ),
        (
            reseal::NEXT_WEBHOOKS,
            "SEARCH audit_webhooks USING INDEX sqlite_autoindex_audit_webhooks_1 (webhook_id>?)".into(),
        ),
        (
            reseal::NEXT_CALLS,
            "SEARCH idempotent_calls USING INDEX sqlite_autoindex_idempotent_calls_1 (call_id>?)".into(),
        ),
        (
            idempotency::COUNT_OF_CALLER,
            "SEARCH idempotent_calls USING COVERING INDEX idempotent_calls_of_caller (caller=?)".into(),
        ),
        (
            idempotency::FULFIL_CLAIM,
            "SEARCH idempotent_calls USING INDEX idempotent_calls_of_engine (engine_id=?)".into(),
        ),
        (
            idempotency::EXPIRED,
            "SEARCH idempotent_calls USING INDEX idempotent_calls_by_age (created_at<?)".into(),
        ),
        (
            reseal::NEXT_WARM_ENGINES,
            "SEARCH warm_engines USING INDEX sqlite_autoindex_warm_engines_1 (engine_id>?)".into(),
        ),
        (reseal::NEXT_ENGINES, "SEARCH engines USING INDEX sqlite_autoindex_engines_1 (engine_id>?)".into()),
    ] {
        // A single step: there is no sorting either.
        assert_eq!(plan(&fixture, query).await, [expected], "{query}");
    }
    // The smallest product id may come from any index.
    let next = plan(&fixture, verify::NEXT_AUDITED_PRODUCT).await;
    assert!(next.len() == 1 && next[0].starts_with("SEARCH audit_log USING COVERING INDEX"), "{next:?}");
}

#[tokio::test]
async fn the_place_of_a_time_in_a_log_is_found_without_reading_the_log() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let plan = plan(&Fixture::new().await, audit_queries::ROW_BEFORE).await;
    let row = "SEARCH audit_log USING INDEX sqlite_autoindex_audit_log_1 (product_id=? AND id=?)";
    assert!(plan.iter().any(|step| step == row), "{plan:?}");
    let scans = plan.iter().filter(|step| step.starts_with("SCAN") && *step != "SCAN search");
    assert_eq!(scans.count(), 0, "{plan:?}");
}

#[tokio::test]
async fn what_a_webhook_reads_is_found_without_a_scan() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let fixture = Fixture::new().await;
    for query in [
        audit_queries::ROWS_OF_USER,
        audit_queries::ROWS_OF_NO_USER,
        audit_webhooks::WEBHOOKS_OF_PRODUCT,
        audit_webhooks::WEBHOOK_OF_PRODUCT,
        webhook_progress::DEAD_LETTERS,
    ] {
        let plan = plan(&fixture, query).await;
        assert!(
            plan.iter().all(|step| !step.starts_with("SCAN") && !step.contains("TEMP")),
            "{query}: {plan:?}"
        );
    }
}

#[tokio::test]
async fn a_platform_key_is_found_by_its_hash_and_listed_without_a_scan() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let fixture = Fixture::new().await;
    for query in [platform_keys::KEY_BY_HASH, platform_keys::KEYS_OF_PRODUCT] {
        let plan = plan(&fixture, query).await;
        assert_eq!(plan.iter().filter(|step| step.starts_with("SEARCH")).count(), 2, "{query}: {plan:?}");
        assert!(plan.iter().all(|step| !step.starts_with("SCAN")), "{query}: {plan:?}");
    }
}

#[tokio::test]
async fn the_awake_engines_of_a_product_are_found_and_counted_without_a_scan() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let fixture = Fixture::new().await;
    for query in [product_states::AWAKE_OF_PRODUCT, product_states::COUNT_OF_PRODUCT] {
        let plan = plan(&fixture, query).await;
        let scans: Vec<_> = plan.iter().filter(|step| step.starts_with("SCAN")).collect();
        // That index has no other engines than those that are being changed.
        let is_small = |step: &&&String| step.ends_with("engines_claimed");
        assert!(
            scans.iter().all(|step| is_small(&step) || *step == "SCAN CONSTANT ROW"),
            "{query}: {plan:?}"
        );
    }
}

#[tokio::test]
async fn what_is_awake_and_asleep_is_counted_in_indexes() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let plan = plan(&Fixture::new().await, fleet_queries::COUNT_AWAKE_AND_ASLEEP).await;
    let scans = plan.iter().filter(|step| step.starts_with("SCAN engines"));
    // The first two indexes have no other engines than those that are counted.
    let indexes: Vec<_> = scans.map(|step| step.rsplit(' ').next().unwrap()).collect();
    assert_eq!(indexes, ["engines_running", "engines_claimed", "engines_listed_by_status"], "{plan:?}");
}

#[tokio::test]
async fn regression_o12_metrics_read_the_hour_alone() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let fixture = Fixture::new().await;
    let plan = plan(&fixture, metrics::SELECT_METRICS).await;
    let hour = "SEARCH audit_log USING COVERING INDEX audit_log_by_time \
                (product_id=? AND event=? AND at>? AND at<?)";
    assert_eq!(plan[0], "SEARCH products USING INDEX sqlite_autoindex_products_1 (product_id=?)");
    assert_eq!(plan.iter().filter(|step| *step == hour).count(), 4, "{plan:?}");
    let other = plan[1..].iter().filter(|step| *step != hour && !step.starts_with("SCALAR SUBQUERY"));
    assert_eq!(other.count(), 0, "{plan:?}");
}

#[tokio::test]
async fn regression_o12_lists_and_counts_use_an_index() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let fixture = Fixture::new().await;
    for (query, expected) in [
        ("SELECT COUNT(*) FROM engines WHERE product_id = 'p'", "SEARCH engines USING COVERING INDEX"),
        (
            "SELECT COUNT(*) FROM engines WHERE product_id = 'p' AND status = 's'",
            "SEARCH engines USING COVERING INDEX engines_listed_by_status (product_id=? AND status=?)",
        ),
        (
            "SELECT * FROM products ORDER BY product_id LIMIT 1 OFFSET 1",
            "SCAN products USING INDEX sqlite_autoindex_products_1",
        ),
    ] {
        let plan = plan(&fixture, query).await;
        assert!(plan.len() == 1 && plan[0].starts_with(expected), "{query}: {plan:?}");
    }
}

#[tokio::test]
async fn regression_o12_what_is_supervised_is_found_without_a_scan() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let fixture = Fixture::new().await;
    for query in [SELECT_RUNNING_OR_CLAIMED, SELECT_SUPERVISED, SELECT_ACTIVITY] {
        let plan = plan(&fixture, query).await;
        let indexes = ["engines_running", "engines_claimed", "engines_to_restart"];
        let halves = plan.iter().filter(|step| indexes.iter().any(|index| step.contains(index)));
        assert_eq!(halves.count(), 2, "{query}: {plan:?}");
        let other = plan.iter().filter(|step| step.contains("SCAN engines") && !step.contains("USING"));
        assert_eq!(other.count(), 0, "{query}: {plan:?}");
    }
}

#[tokio::test]
async fn all_engines_and_the_ends_of_some_are_read_by_an_index() {
    if skip_unless_sqlite("query plans") {
        return;
    }
    let fixture = Fixture::new().await;
    let ends = drift::select_ended(3);
    for (query, expected) in [
        (drift::SELECT_PAGE, "SEARCH engines USING INDEX sqlite_autoindex_engines_1 (engine_id>?)"),
        (ends.as_str(), "SEARCH audit_log USING INDEX audit_log_of_ended_engines (engine_id=?)"),
    ] {
        assert_eq!(plan(&fixture, query).await, [expected], "{query}");
    }
}
