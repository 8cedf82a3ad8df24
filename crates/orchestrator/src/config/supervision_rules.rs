//! How engines are supervised.

use http_service::env::{EnvReader, parse_seconds};

use crate::domain::SupervisionRules;

/// Reads the supervision rules. The contract's example values are the defaults.
pub(super) fn read(reader: &mut EnvReader<'_>) -> SupervisionRules {
    const SECONDS: &str = "seconds above 0, decimals allowed";
    const COUNT: &str = "a whole number above 0";
    let defaults = SupervisionRules::default();
    let above_zero = |text: &str| parse_seconds(text).filter(|time| !time.is_zero());
    let count = |text: &str| text.parse().ok().filter(|count: &u32| *count > 0);
    let check_interval =
        reader.parse_or("ORCH_HEALTH_CHECK_INTERVAL_S", SECONDS, defaults.check_interval, above_zero);
    let check_timeout =
        reader.parse_or("ORCH_HEALTH_CHECK_TIMEOUT_S", SECONDS, defaults.check_timeout, above_zero);
    let max_failures = reader.parse_or("ORCH_HEALTH_MAX_FAILURES", COUNT, defaults.max_failures, count);
    let backoff_base =
        reader.parse_or("ORCH_RESTART_BACKOFF_BASE_S", SECONDS, defaults.backoff_base, above_zero);
    let backoff_max =
        reader.parse_or("ORCH_RESTART_BACKOFF_MAX_S", SECONDS, defaults.backoff_max, above_zero);
    let max_restarts = reader.parse_or(
        "ORCH_RESTART_MAX_ATTEMPTS",
        "a whole number; 0: failed engines are not restarted",
        defaults.max_restarts,
        |text| text.parse().ok(),
    );
    let idle_threshold = reader.parse_or(
        "ORCH_IDLE_SLEEP_THRESHOLD_S",
        "seconds, decimals allowed; 0: engines never sleep",
        defaults.idle_threshold,
        parse_seconds,
    );
    if backoff_max < backoff_base {
        reader.add_error(
            "ORCH_RESTART_BACKOFF_MAX_S",
            Some(backoff_max.as_secs_f64().to_string()),
            &format!("at least ORCH_RESTART_BACKOFF_BASE_S, which is {}", backoff_base.as_secs_f64()),
        );
    }
    SupervisionRules {
        check_interval,
        check_timeout,
        max_failures,
        backoff_base,
        backoff_max,
        max_restarts,
        idle_threshold,
    }
}
