use std::fs;

use pretty_assertions::assert_eq;
use serde_json::{Value, json};

use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn environment() -> Environment {
    let variables = [("HOOK_SECRET", SECRET), ("HOOK_TOKEN", "t-secret")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Environment::from_env(&BTreeMap::from(variables))
}

fn load_value(value: &Value, before: &WebhookSetting) -> (WebhookSetting, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("webhook.json"), value.to_string()).unwrap();
    let mut warnings = Vec::new();
    let setting = load(folder.path(), &environment(), before, &mut warnings);
    (setting, warnings)
}

fn receiver() -> Value {
    json!({"url": "https://product.example/hooks", "secrets": ["${HOOK_SECRET}"]})
}

#[test]
fn a_receiver_is_read_with_its_secrets_and_events() {
    let (setting, warnings) = load_value(
        &json!({
            "url": "http://hooks.internal:8080/a?b=c", "headers": {"Authorization": "Bearer ${HOOK_TOKEN}"},
            "secrets": ["${HOOK_SECRET}", SECRET], "events": ["turn.waiting"]
        }),
        &WebhookSetting::Unknown,
    );
    assert_eq!(warnings, [""; 0]);
    let WebhookSetting::Receiver(spec) = &setting else { panic!("{setting:?}") };
    assert_eq!(spec.call.url.as_str(), "http://hooks.internal:8080/a?b=c");
    assert_eq!(spec.call.headers["authorization"], "Bearer t-secret");
    assert_eq!((spec.secrets.len(), &spec.events), (2, &BTreeSet::from([WebhookEvent::TurnWaiting])));
    assert!(!format!("{setting:?}").contains("secret\""), "secrets are not printed: {setting:?}");

    let (all, _) = load_value(&receiver(), &WebhookSetting::None);
    let WebhookSetting::Receiver(spec) = &all else { panic!("{all:?}") };
    assert_eq!(spec.events, BTreeSet::from(WebhookEvent::ALL));
}

#[test]
fn a_faulty_file_changes_nothing_and_says_why() {
    let (good, _) = load_value(&receiver(), &WebhookSetting::None);
    let with = |field: &str, value: Value| {
        let mut receiver = receiver();
        receiver[field] = value;
        receiver
    };
    for (value, reason) in [
        (with("url", json!("ftp://a.example")), "`url` must be an address"),
        (with("url", json!("https://u:p@a.example/")), "`url` must hold no user"),
        (with("url", json!("https://a.example/#b")), "`url` must have no fragment"),
        (with("secrets", json!([])), "`secrets` has 0 entries"),
        (with("secrets", json!([SECRET, SECRET, SECRET])), "`secrets` has 3 entries"),
        (with("secrets", json!([SECRET, "t-secret"])), "secret 2 must be `whsec_` and 24 to 64 bytes"),
        (with("secrets", json!(["${MISSING}"])), "secret 1: the engine's environment has no variable"),
        (with("events", json!([])), "`events` must name at least one event"),
        (with("events", json!(["turn.begun"])), "line 1"),
        (with("retries", json!(3)), "unknown field"),
        (json!({}), "missing field"),
    ] {
        for (before, outcome) in [
            (&good, "its last good version stays in use"),
            (&WebhookSetting::Unknown, "nothing is reported until this is fixed"),
        ] {
            let (setting, warnings) = load_value(&value, before);
            assert_eq!(&setting, before);
            let [warning] = &warnings[..] else { panic!("{value}: {warnings:?}") };
            assert!(warning.contains(reason) && warning.contains(outcome), "{value}: {warning}");
            assert!(!warning.contains("t-secret") && !warning.contains(SECRET), "{warning}");
        }
    }
}

#[test]
fn without_the_file_nothing_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (good, _) = load_value(&receiver(), &WebhookSetting::None);
    let mut warnings = Vec::new();
    assert_eq!(load(folder.path(), &environment(), &good, &mut warnings), WebhookSetting::None);
    assert_eq!(warnings, [""; 0]);
}
