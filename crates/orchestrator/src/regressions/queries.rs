//! The call that is made on every request of every user costs next to nothing.

use serde_json::json;

use crate::testing::TestApp;

#[tokio::test]
async fn lesson_o12_an_admit_of_a_running_engine_is_one_query_and_no_backend_call() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({"rate_limit_rpm": 100})).await;
    product.provision("ann").await;
    let registry = app.orchestrator.fleet().registry();
    // Whatever else would be asked of the database fails from here on.
    registry.close_all_but_hot_reads().await;
    let (queries, calls) = (registry.hot_reads(), app.backend.count_all_calls());
    for admit in 1..=10 {
        let (status, answer) = product.admit("ann", json!({"auto_provision": true, "auto_wake": true})).await;
        assert_eq!((status, &answer["admitted"]), (200, &json!(true)), "{answer}");
        assert_eq!(registry.hot_reads(), queries + admit);
    }
    assert_eq!(app.backend.count_all_calls(), calls);
}
