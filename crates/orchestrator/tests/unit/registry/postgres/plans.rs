//! Lesson 12 on PostgreSQL: no frequent query scans a table.

use crate::registry::activity::{SELECT_ACTIVITY, SELECT_SUPERVISED};
use crate::registry::engines::SELECT_RUNNING_OR_CLAIMED;
use crate::registry::tests::*;
use crate::registry::wakes::SELECT_WAKES;
use crate::registry::{audit_queries, metrics, reseal, verify as check};

/// Returns PostgreSQL's generic query plan, with sequential scans discouraged.
async fn plan(fixture: &Fixture, query: &str) -> String {
    let pool = fixture.pool().await;
    let mut connection = pool.acquire().await.unwrap();
    let settings = "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan; \
                    SET enable_bitmapscan = off";
    sqlx::raw_sql(settings).execute(&mut *connection).await.unwrap();
    // The server infers the types of the parameters.
    let prepare = sqlx::AssertSqlSafe(format!("PREPARE examined AS {query}"));
    sqlx::raw_sql(prepare).execute(&mut *connection).await.unwrap();
    let count = (1..=9).rev().find(|number| query.contains(&format!("${number}"))).unwrap_or(0);
    let values = vec!["NULL"; count].join(", ");
    let values = if values.is_empty() { values } else { format!("({values})") };
    let explain = sqlx::AssertSqlSafe(format!("EXPLAIN (COSTS OFF) EXECUTE examined{values}"));
    let plan = sqlx::raw_sql(explain).fetch_all(&mut *connection).await.unwrap();
    plan.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

/// Inserts enough rows for the choice of the plan to matter.
const SEED_ROWS: &str = "
    INSERT INTO products SELECT 'prod_' || n, 'slug' || n, 'x', '{}', 'key' || n, n, 1, 'x', NULL, 0, 0, NULL, NULL, NULL, NULL, NULL
        FROM generate_series(1, 200) n;
    INSERT INTO engines (engine_id, product_id, user_id, status, key_hash, sealed_key, sealed_secrets_key,
            engine_version, pinned, created_at, generation, claim_kind, restart_at)
        SELECT 'eng_' || n, 'prod_' || 1 + n % 20, 'u' || n,
            CASE WHEN n % 50 = 0 THEN 'running' WHEN n % 60 = 1 THEN 'failed' ELSE 'sleeping' END, 'x', 'x', 'x',
            'svc-engine:0.1.0', 0, n, 1, CASE WHEN n % 100 = 2 THEN 'wake' END, CASE WHEN n % 60 = 1 THEN n END
        FROM generate_series(1, 6000) n;
    INSERT INTO audit_log SELECT 'prod_' || 1 + n % 20, n, n, 'eng_' || n % 300, 'u' || n % 300,
            CASE n % 4 WHEN 0 THEN 'provision' WHEN 1 THEN 'sleep' WHEN 2 THEN 'wake' ELSE 'crash' END, 1, '{}', 'x'
        FROM generate_series(2, 12000) n;
    ANALYZE";

#[tokio::test]
async fn regression_o12_every_query_uses_an_index() {
    let Some(fixture) = Fixture::on_server().await else { return };
    sqlx::raw_sql(SEED_ROWS).execute(&fixture.pool().await).await.unwrap();
    let mut wrong = Vec::new();
    for (query, index) in [
        ("SELECT * FROM engines WHERE product_id = $1 AND user_id = $2", "engines_product_id_user_id_key"),
        ("SELECT * FROM engines WHERE engine_id = $1", "engines_pkey"),
        (
            "SELECT * FROM engines WHERE product_id = $1 ORDER BY created_at, engine_id LIMIT 1",
            "engines_listed",
        ),
        (
            "SELECT * FROM engines WHERE product_id = $1 AND status = $2 ORDER BY created_at, engine_id LIMIT 1",
            "engines_listed_by_status",
        ),
        ("SELECT * FROM products WHERE api_key_hash = $1", "products_api_key_hash_key"),
        ("SELECT * FROM products ORDER BY product_id LIMIT 1", "products_pkey"),
        (audit_queries::NEWEST, "audit_log_pkey"),
        (audit_queries::NEWEST_OF_EVENT, "audit_log_by_event"),
        (audit_queries::NEWEST_OF_USER, "audit_log_by_user"),
        (audit_queries::NEWEST_OF_USER_AND_EVENT, "audit_log_by_user"),
        (audit_queries::ROWS_AFTER, "audit_log_pkey"),
        (audit_queries::LAST_ROW_ID, "products_pkey"),
        (metrics::SELECT_METRICS, "audit_log_by_time"),
        (metrics::SELECT_STATUS_COUNTS, "Index Cond: (product_id = $1)"),
        (check::NEXT_PRODUCT, "products_pkey"),
        (check::SELECT_AUDIT_ROWS, "audit_log_pkey"),
        (reseal::NEXT_ENGINES, "engines_pkey"),
        (SELECT_RUNNING_OR_CLAIMED, "engines_running"),
        (SELECT_RUNNING_OR_CLAIMED, "engines_claimed"),
        (SELECT_SUPERVISED, "engines_to_restart"),
        (SELECT_ACTIVITY, "engines_to_restart"),
        (SELECT_WAKES, "engines_to_wake"),
    ] {
        let plan = plan(&fixture, query).await;
        // Of the engines that are due, and only of those, the first ones of each product are selected.
        let may_sort = query == SELECT_WAKES;
        if !plan.contains(index) || plan.contains("Seq Scan") || (plan.contains("Sort") && !may_sort) {
            wrong.push(format!("{query}: {plan}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
