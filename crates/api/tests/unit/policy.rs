//! Tests of policies: what they accept, and what they mean.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn read(policy: &Value) -> Result<Policy, String> {
    serde_json::from_str(&policy.to_string()).map_err(|error| error.to_string())
}

fn allows(rules: &Value, image: &str) -> bool {
    read(&json!({"allowed_engine_versions": rules}))
        .unwrap()
        .allows(&image.parse().unwrap(), &"svc-engine:1.0.0".parse().unwrap())
}

#[test]
fn a_policy_is_written_back_as_it_was_given() {
    for policy in [
        json!({}),
        json!({
            "max_engines": 0, "rate_limit_rpm": 60, "suspended": false,
            "allowed_engine_versions": ["svc-engine:1.2.3", "^1.2", ">=1.2, <1.5", "*", "1"],
            "idle_sleep_threshold_s": 3600, "oauth_redirect_base_url": "https://app.example.com/oauth/",
            "engine_memory_mb": 64, "engine_cpus": 2, "engine_pids": 16,
        }),
        json!({"idle_sleep_threshold_s": 0.25, "engine_cpus": 0.5, "allowed_engine_versions": []}),
        json!({"idle_sleep_threshold_s": 0, "max_engines": u64::MAX, "engine_cpus": 1e300}),
    ] {
        let text = serde_json::to_string(&read(&policy).unwrap()).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), policy);
        assert_eq!(read(&policy).unwrap(), serde_json::from_str(&text).unwrap());
    }
}

#[test]
fn null_is_absent() {
    let fields = serde_json::to_value(read(&every_field_null()).unwrap()).unwrap();
    assert_eq!(fields, json!({}));
    assert_eq!(read(&every_field_null()).unwrap(), Policy::default());
}

fn every_field_null() -> Value {
    json!({
        "max_engines": null, "rate_limit_rpm": null, "suspended": null, "allowed_engine_versions": null,
        "idle_sleep_threshold_s": null, "oauth_redirect_base_url": null, "engine_memory_mb": null,
        "engine_cpus": null, "engine_pids": null,
    })
}

#[test]
fn an_unknown_field_is_refused_by_name() {
    for name in ["max_engine", "Max_engines", "", "engine_gpus"] {
        let refusal = read(&json!({name: 3})).unwrap_err();
        assert!(refusal.contains(&format!("`{name}`")), "{refusal}");
    }
}

#[test]
fn only_an_object_is_a_policy() {
    for other in [json!([]), json!([3]), json!(null), json!(7), json!("{}"), json!(true)] {
        assert!(read(&other).is_err(), "{other}");
    }
}

#[test]
fn values_out_of_range_are_refused() {
    let long = format!("https://a.example/{}", "x".repeat(2_048));
    for (field, wrong) in [
        ("max_engines", json!([-1, 1.5, "3", true, 1e30])),
        ("rate_limit_rpm", json!([-1, 1.5, "3"])),
        ("suspended", json!([0, 1, "true", []])),
        ("idle_sleep_threshold_s", json!([-1, -0.1, "1", true])),
        ("engine_memory_mb", json!([63, 0, -1, 64.5, "64"])),
        ("engine_cpus", json!([0, 0.0, -1, "1", []])),
        ("engine_pids", json!([15, 0, 16.5, "16"])),
        (
            "allowed_engine_versions",
            json!([
                "^1.2",
                {},
                [7],
                [null],
                [""],
                ["latest"],
                ["svc-engine:latest"],
                ["svc-engine:1"],
                ["^1.2.3.4"],
                ["1.2 || 1.3"],
                [format!(">=1.0.{}", "0".repeat(300))],
                vec!["^1"; 101],
            ]),
        ),
        (
            "oauth_redirect_base_url",
            json!([
                7,
                "",
                "example.com",
                "//example.com",
                "ftp://example.com",
                "http://",
                "https:example.com",
                "https:///path",
                "https://user@example.com",
                "https://u:p@example.com",
                "https://a.example?x=1",
                "https://a.example#x",
                "https://a.example/ ",
                " https://a.example",
                "https://a.example/\n",
                "https://a.example\\path",
                "https://a.example:99999",
                "javascript:alert(1)",
                "https://ä.example",
                "HTTPS://a.example",
                "https://[::1",
                long,
            ]),
        ),
    ] {
        for value in wrong.as_array().unwrap() {
            assert!(read(&json!({field: value})).is_err(), "{field}: {value} was accepted");
        }
    }
    assert!(serde_json::from_str::<Policy>(r#"{"engine_cpus": 1e400}"#).is_err());
    assert!(serde_json::from_str::<Policy>(r#"{"max_engines": 1, "max_engines": 2}"#).is_err());
}

#[test]
fn addresses_that_serve_are_taken() {
    for good in [
        "https://app.example.com",
        "http://localhost:3000",
        "http://127.0.0.1:8080/callback",
        "https://[::1]:8443/",
        "https://a.example/a%20b",
    ] {
        assert!(read(&json!({"oauth_redirect_base_url": good})).is_ok(), "{good}");
    }
}

#[test]
fn without_a_list_the_deployments_image_is_allowed_in_any_version_and_with_an_empty_one_none() {
    let default =
        |image: &str| Policy::default().allows(&image.parse().unwrap(), &"svc-engine:9.0.0".parse().unwrap());
    assert!(
        default("svc-engine:1.2.3")
            && !default("other-engine:1.2.3")
            && !default("registry/svc-engine:9.0.0")
    );
    assert!(!allows(&json!([]), "svc-engine:1.2.3"));
}

#[test]
fn an_image_is_allowed_by_itself_or_by_its_version() {
    for (rules, image, allowed) in [
        (json!(["svc-engine:1.2.3"]), "svc-engine:1.2.3", true),
        (json!(["svc-engine:1.2.3"]), "svc-engine:1.2.4", false),
        (json!(["svc-engine:1.2.3"]), "other/svc-engine:1.2.3", false),
        (json!(["^1.2"]), "svc-engine:1.9.0", true),
        (json!(["^1.2"]), "registry.example.com:5000/svc-engine:1.2.0", true),
        (json!(["^1.2"]), "svc-engine:1.1.9", false),
        (json!(["^1.2"]), "svc-engine:2.0.0", false),
        (json!(["1.2"]), "svc-engine:1.3.0", true),
        (json!(["=1.2.3"]), "svc-engine:1.2.4", false),
        (json!(["~1.2"]), "svc-engine:1.3.0", false),
        (json!([">=1.2, <1.5"]), "svc-engine:1.5.0", false),
        (json!(["*"]), "svc-engine:9.9.9", true),
        (json!(["^1.2"]), "svc-engine:1.3.0-rc.1", false),
        (json!(["svc-engine:1.3.0-rc.1"]), "svc-engine:1.3.0-rc.1", true),
        (json!(["svc-engine:0.1.0", "^2"]), "svc-engine:2.7.1", true),
    ] {
        assert_eq!(allows(&rules, image), allowed, "{rules} {image}");
    }
}

#[test]
fn seconds_are_spans_however_long() {
    for (number, span) in [
        (json!(0), Duration::ZERO),
        (json!(3600), Duration::from_hours(1)),
        (json!(0.2), Duration::from_millis(200)),
        (json!(1e300), Duration::MAX),
        (json!(u64::MAX), Duration::MAX),
    ] {
        let seconds: Seconds = serde_json::from_value(number.clone()).unwrap();
        assert_eq!(seconds.duration(), span, "{number}");
    }
    let cpus: Cpus = serde_json::from_value(json!(0.5)).unwrap();
    assert!((cpus.get() - 0.5).abs() < f64::EPSILON);
}

proptest! {
    #[test]
    fn what_is_taken_reads_back(
        milliseconds: u32, millicpus in 1_u32.., memory in 64_i64.., engines: u64, suspended: bool,
    ) {
        let policy = json!({
            "idle_sleep_threshold_s": f64::from(milliseconds) / 1_000.0,
            "engine_cpus": f64::from(millicpus) / 1_000.0, "engine_memory_mb": memory,
            "max_engines": engines, "suspended": suspended,
        });
        let policy = read(&policy).unwrap();
        let text = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy);
    }

    #[test]
    fn no_text_panics_a_rule(text in ".{0,60}") {
        let rule = json!({"allowed_engine_versions": [text.clone()], "oauth_redirect_base_url": text});
        let _ = read(&rule);
    }
}
