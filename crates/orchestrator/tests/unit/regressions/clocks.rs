//! A jump of the wall clock neither opens nor closes a rate limit window.

use serde_json::json;

use super::{SECOND, advance};
use crate::testing::{TestApp, summarize};

#[tokio::test]
async fn regression_o17_a_rate_window_outlasts_a_wall_clock_that_jumps() {
    for hours in [-1, 1] {
        let app = TestApp::new().await;
        let product = app.register_product("demo", json!({"rate_limit_rpm": 2})).await;
        let admit = async || summarize(product.admit("ann", json!({})).await);
        for _ in 0..2 {
            assert_eq!(admit().await, "200 engine_not_found");
        }
        app.shift_wall(hours * 3_600_000);
        advance(&app, SECOND * 58).await;
        assert_eq!(admit().await, "429 RATE_LIMITED", "{hours} h");
        advance(&app, SECOND * 2).await;
        assert_eq!(admit().await, "200 engine_not_found", "{hours} h");
    }
}
