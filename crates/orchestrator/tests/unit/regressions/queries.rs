//! An admit of a running engine, which products may call on every request of a user, is one query.

use serde_json::json;

use crate::testing::TestApp;

#[tokio::test]
async fn regression_o12_an_admit_of_a_running_engine_is_one_query_and_no_backend_call() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"rate_limit_rpm": 100})).await;
    product.provision("ann").await;
    let registry = app.orchestrator.fleet().registry();
    // Any other query fails from here on.
    registry.close_all_but_hot_reads().await;
    let (queries, calls) = (registry.hot_reads(), app.backend.count_all_calls());
    for admit in 1..=10 {
        let (status, answer) = product.admit("ann", json!({"auto_provision": true, "auto_wake": true})).await;
        assert_eq!((status, &answer["admitted"]), (200, &json!(true)), "{answer}");
        assert_eq!(registry.hot_reads(), queries + admit);
    }
    assert_eq!(app.backend.count_all_calls(), calls);
}
