//! A hung health check delays no other engine.

use std::collections::HashSet;
use std::time::Duration;

use api::EngineId;
use http_service::clock::Clock as _;
use serde_json::json;

use super::{SECOND, STEP, metric};
use crate::testing::{BackendCall, Fault, TestApp};

#[tokio::test]
async fn regression_o08_of_a_thousand_that_are_due_those_that_hang_hold_up_no_other() {
    let app = TestApp::new().await;
    app.register_product("demo", json!({"idle_sleep_threshold_s": 0})).await.provision("ann").await;
    let engines = app.add_engines(1_000).await;
    let app = app.kill_and_replace().await;
    app.start().await;
    let (hung, healthy) = engines.split_at(50);
    for engine_id in hung {
        app.backend.freeze(*engine_id);
    }
    let checked =
        |engines: &[EngineId], count| engines.iter().all(|id| app.backend.probe_count(*id) >= count);
    // From here on the clock stands still: the other checks do not wait until the hung ones time out.
    app.clock.advance(SECOND * 30);
    app.wait_until(|| checked(healthy, 1)).await;
    assert_eq!(app.elapsed(), SECOND * 30);
    // All checks were late, and the metrics show it.
    let all_began = async || metric(&app, "roundhouse_supervision_lag_seconds_count").await >= Some(1_001);
    app.advance_until(Duration::ZERO, all_began).await;
    // Some of the backend calls that handle the failures hang, too.
    for call in [BackendCall::Ping, BackendCall::Kill, BackendCall::List] {
        for _ in 0..3 {
            app.backend.inject(call, Fault::Hang);
        }
    }
    // Three checks of 10 s, the last one 90 s from now at the latest; then a ping and a kill. If one of these
    // calls times out after 15 s, the engine fails its next check an interval later.
    let bound = SECOND * (90 + 10 + 15 + 30 + 10);
    let failed = async || {
        let failed = app.rows("SELECT engine_id FROM engines WHERE status = 'failed'").await;
        let failed: HashSet<EngineId> = failed.iter().map(|row| row[0].parse().unwrap()).collect();
        hung.iter().all(|engine_id| failed.contains(engine_id))
    };
    app.advance_until(STEP * 8, failed).await;
    assert!(app.elapsed() <= SECOND * 30 + bound, "failed after {:?}", app.elapsed());
    let intervals = usize::try_from(app.clock.monotonic().as_secs() / 30).unwrap();
    assert!(checked(healthy, intervals - 1), "the healthy engines were not checked in every interval");
    assert!(app.rows("SELECT engine_id FROM engines WHERE status <> 'running'").await.len() == 50);
}
