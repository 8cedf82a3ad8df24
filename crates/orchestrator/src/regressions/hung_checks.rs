//! One call that hangs holds up nobody else.

use std::collections::HashSet;

use api::EngineId;
use http_service::clock::Clock as _;
use serde_json::json;

use super::{SECOND, STEP, metric};
use crate::testing::{BackendCall, Fault, TestApp};

#[tokio::test]
async fn lesson_o08_of_a_thousand_that_are_due_those_that_hang_hold_up_no_other() {
    let app = TestApp::new().await;
    app.register_product("demo", json!({"idle_sleep_threshold_s": 0})).await.provision("ann").await;
    let engines = app.add_engines(1_000).await;
    let app = app.kill_and_replace().await;
    app.start().await;
    let (hung, well) = engines.split_at(50);
    for engine_id in hung {
        app.backend.freeze(*engine_id);
    }
    let asked = |engines: &[EngineId], times| engines.iter().all(|id| app.backend.probe_count(*id) >= times);
    // From here on the clock stands still: nobody waits for the hung ones to be given up.
    app.clock.advance(SECOND * 30);
    app.wait_until(|| asked(well, 1)).await;
    assert_eq!(app.elapsed(), SECOND * 30);
    // All were late, and the operator is told.
    let late = metric(&app, "roundhouse_supervision_lag_seconds_count").await;
    assert!(late >= Some(1_001), "{late:?}");
    // Nor does the backend: of what the failures need of it some hangs, too.
    for call in [BackendCall::Ping, BackendCall::Kill, BackendCall::List] {
        for _ in 0..3 {
            app.backend.inject(call, Fault::Hang);
        }
    }
    // Three checks of 10 s, the last one 90 s from now at the latest; then a ping and a kill. Whom one of these did
    // not answer, in 15 s, fails its next check an interval later.
    let bound = SECOND * (90 + 10 + 15 + 30 + 10);
    let failed = async || {
        let failed = app.rows("SELECT engine_id FROM engines WHERE status = 'failed'").await;
        let failed: HashSet<EngineId> = failed.iter().map(|row| row[0].parse().unwrap()).collect();
        hung.iter().all(|engine_id| failed.contains(engine_id))
    };
    app.advance_until(STEP * 8, failed).await;
    assert!(app.elapsed() <= SECOND * 30 + bound, "failed after {:?}", app.elapsed());
    let intervals = usize::try_from(app.clock.monotonic().as_secs() / 30).unwrap();
    assert!(asked(well, intervals - 1), "the well ones were not asked in every interval");
    assert!(app.rows("SELECT engine_id FROM engines WHERE status <> 'running'").await.len() == 50);
}
