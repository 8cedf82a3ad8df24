//! What an operator's Prometheus is told of calls that fail, or wait, before they reach what is measured otherwise.

use std::fs;
use std::time::Duration;

use api::EngineId;
use serde_json::json;

use crate::config::SupervisionRules;
use crate::metrics::{FleetGauges, TextFormat};
use crate::testing::{BackendCall, Fault, TestApp, summarize};

const SECOND: Duration = Duration::from_secs(1);

/// The value of a series.
pub(super) fn scraped(app: &TestApp, series: &str) -> u64 {
    let recorder = app.orchestrator.fleet().metrics().recorder().unwrap();
    let text = recorder.encode(FleetGauges::default(), TextFormat::Prometheus);
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {series} in: {text}"))
}

#[tokio::test]
async fn whoever_finds_no_port_is_measured_also_where_all_are_leased() {
    let app = TestApp::with_ports(9_001, 9_001).await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    let no_port = "roundhouse_boots_total{outcome=\"no_free_port\"}";
    assert_eq!(scraped(&app, no_port), 0);
    assert_eq!(summarize(product.provision("bob").await), "503 PORT_EXHAUSTION");
    assert_eq!(scraped(&app, no_port), 1);
}

#[tokio::test]
async fn whoever_finds_no_data_is_measured() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    product.stop("ann").await;
    let no_data = "roundhouse_backend_errors_total{kind=\"data_unavailable\"}";
    assert_eq!(scraped(&app, no_data), 0);
    let root = app.data_root();
    let aside = root.with_extension("aside");
    fs::rename(&root, &aside).unwrap();
    assert_eq!(summarize(product.start("ann").await), "502 BACKEND_ERROR");
    let without_root = scraped(&app, no_data);
    assert!(without_root > 0);
    fs::rename(&aside, &root).unwrap();
    let engine_id = product.get("ann").await.1["engine_id"].as_str().unwrap().parse().unwrap();
    app.backend.remove_folder(engine_id);
    assert_eq!(summarize(product.start("ann").await), "502 BACKEND_ERROR");
    assert!(scraped(&app, no_data) > without_root);
}

#[tokio::test]
async fn a_check_that_waits_for_others_is_as_late_as_it_begins() {
    let app = TestApp::new().await;
    app.register_product("demo", json!({"idle_sleep_threshold_s": 0})).await.provision("ann").await;
    // More than are checked at a time, and none answers.
    let engines = app.add_engines(300).await;
    let app = app.kill_and_replace().await;
    app.start().await;
    for engine_id in &engines {
        app.backend.freeze(*engine_id);
    }
    let begun = || scraped(&app, "roundhouse_health_check_lag_seconds_count");
    // From here on the clock stands still: no check times out.
    app.clock.advance(SECOND * 30);
    app.wait_until(|| begun() >= 256).await;
    // The user's engine may have been checked before.
    assert!((256..=257).contains(&begun()), "{} checks have begun", begun());
    app.advance_until(SECOND, async || begun() >= 301).await;
}

#[tokio::test]
async fn an_engine_that_is_being_stopped_is_not_called_unhealthy() {
    let rules =
        SupervisionRules { check_interval: SECOND * 2, check_timeout: SECOND, ..SupervisionRules::default() };
    let app = TestApp::with_rules(rules).await;
    let product = app.register_product("demo", json!({})).await;
    let (_, engine) = product.provision("ann").await;
    let engine_id: EngineId = engine["engine_id"].as_str().unwrap().parse().unwrap();
    let unhealthy = || scraped(&app, "roundhouse_health_checks_total{result=\"unhealthy\"}");
    // It answers nothing from now on, and its end takes longer than several checks.
    app.backend.freeze(engine_id);
    app.backend.inject(BackendCall::Stop, Fault::Delay(SECOND * 25));
    let (probes, step) = (app.backend.probe_count(engine_id), Duration::from_millis(250));
    let stopped = app.while_time_passes(step, product.stop("ann")).await;
    assert_eq!(summarize(stopped), "200 stopped");
    app.while_time_passes(step, app.sleep(SECOND * 5)).await;
    assert!(app.backend.probe_count(engine_id) > probes, "it was checked meanwhile");
    assert_eq!(unhealthy(), 0);
    // One that nobody stops is.
    product.start("ann").await;
    app.backend.freeze(engine_id);
    app.advance_until(step, async || unhealthy() > 0).await;
}
