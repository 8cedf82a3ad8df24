use std::future::pending;
use std::time::Duration;

use futures::FutureExt as _;

use super::labels::BackendErrorKind;
use super::*;

fn exposed(metrics: &Metrics) -> String {
    metrics.recorder().unwrap().encode(FleetGauges::default(), TextFormat::Prometheus)
}

#[test]
fn a_disabled_handle_measures_nothing() {
    let metrics = Metrics::default();
    assert!(metrics.stopwatch().0.is_none());
    metrics.admit(AdmitOutcome::Running, metrics.stopwatch());
    assert!(metrics.recorder().is_none());
}

#[test]
fn an_admit_of_a_running_engine_is_timed_and_others_are_only_counted() {
    let metrics = Metrics::enabled(Timestamp::from_unix_ms(0));
    metrics.admit(AdmitOutcome::Running, metrics.stopwatch());
    metrics.admit(AdmitOutcome::Started, metrics.stopwatch());
    let text = exposed(&metrics);
    for line in [
        "roundhouse_admits_total{outcome=\"running\"} 1",
        "roundhouse_admits_total{outcome=\"started\"} 1",
        "roundhouse_admits_total{outcome=\"failed\"} 0",
        "roundhouse_admit_duration_seconds_count 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no {line:?} in: {text}");
    }
}

#[test]
fn an_unknown_path_is_no_label() {
    let metrics = Metrics::enabled(Timestamp::from_unix_ms(0));
    let recorder = metrics.recorder().unwrap();
    recorder.set_routes(["/engines/{user_id}".to_owned()]);
    recorder.answer(Some("/engines/{user_id}"), 200, None, Duration::from_millis(2));
    recorder.answer(Some("/engines/user-17"), 404, None, Duration::ZERO);
    recorder.answer(None, 404, None, Duration::ZERO);
    let text = exposed(&metrics);
    assert!(text.contains("roundhouse_http_requests_total{route=\"/engines/{user_id}\",status=\"2xx\"} 1"));
    assert!(text.contains("roundhouse_http_requests_total{route=\"other\",status=\"4xx\"} 2"));
    assert!(!text.contains("user-17"), "{text}");
}

#[test]
fn answers_429_are_counted_by_cause() {
    let metrics = Metrics::enabled(Timestamp::from_unix_ms(0));
    let recorder = metrics.recorder().unwrap();
    for code in [Some(ErrorCode::RateLimited), Some(ErrorCode::QuotaExceeded), None] {
        recorder.answer(None, 429, code, Duration::ZERO);
    }
    recorder.answer(None, 503, Some(ErrorCode::RateLimited), Duration::ZERO);
    let text = exposed(&metrics);
    for cause in ["rate_limited", "quota_exceeded", "engine"] {
        assert!(text.contains(&format!("limited_requests_total{{cause=\"{cause}\"}} 1")), "{text}");
    }
}

#[test]
fn a_call_that_is_dropped_is_recorded_as_abandoned() {
    let recorded = Mutex::new(Vec::new());
    let timer = || CallTimer::new(BackendErrorKind::Abandoned, |_, kind| recorded.lock().push(kind));
    timer().end(None);
    timer().end(Some(BackendErrorKind::Failed));
    let call = async {
        let timer = timer();
        pending::<()>().await;
        timer.end(None);
    };
    assert!(call.now_or_never().is_none());
    let kinds = [None, Some(BackendErrorKind::Failed), Some(BackendErrorKind::Abandoned)];
    assert_eq!(*recorded.lock(), kinds);
}
