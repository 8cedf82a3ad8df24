//! The first of three configurations that works is active, and a faulty one changes nothing.

use std::collections::BTreeMap;
use std::path::Path;

use pretty_assertions::assert_eq;
use serde_json::json;
use tempfile::TempDir;
use testkit::with_deadline;

use super::*;

fn gateway_document(model: &str) -> Value {
    json!({"models": {"m": {"provider": "scripted", "model": model, "context_window": 1_000}}, "default": "m"})
}

fn write_file(folder: &TempDir, text: &str) {
    std::fs::write(folder.path().join("gateway.json"), text).unwrap();
}

/// Starts from `folder` as an engine does.
fn open_config(folder: &Path, env: &[(&str, &str)]) -> (Brain, Arc<ActiveConfig>) {
    let env: BTreeMap<String, String> =
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let brain = Brain::open(&folder.join("brain.sqlite")).unwrap();
    let in_force = ActiveConfig::open(ConfigSources::new(&env, Some(folder)), &brain).unwrap();
    (brain, Arc::new(in_force))
}

fn active_model(in_force: &ActiveConfig) -> String {
    in_force
        .gateway()
        .routes()
        .map_or_else(|error| error.to_string(), |routes| routes.model_name().to_owned())
}

const ENV: &[(&str, &str)] = &[("LLM_PROVIDER", "scripted"), ("LLM_MODEL", "of-the-environment")];

#[tokio::test]
async fn what_was_set_is_kept_and_reload_goes_back_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    write_file(&folder, &gateway_document("of-the-file").to_string());
    let (brain, in_force) = open_config(folder.path(), ENV);
    assert_eq!(
        (active_model(&in_force), in_force.document().await),
        ("of-the-file".into(), gateway_document("of-the-file"))
    );
    in_force.set(gateway_document("set")).await.unwrap();
    assert_eq!((active_model(&in_force), in_force.document().await), ("set".into(), gateway_document("set")));
    brain.close().await;
    drop((brain, in_force));

    let (brain, in_force) = open_config(folder.path(), ENV);
    assert_eq!((active_model(&in_force), in_force.document().await), ("set".into(), gateway_document("set")));
    write_file(&folder, &gateway_document("of-the-newer-file").to_string());
    in_force.reload().await.unwrap();
    assert_eq!(active_model(&in_force), "of-the-newer-file");
    brain.close().await;
    drop((brain, in_force));

    std::fs::remove_file(folder.path().join("gateway.json")).unwrap();
    let (_brain, in_force) = open_config(folder.path(), ENV);
    assert_eq!(active_model(&in_force), "of-the-environment");
    let document = in_force.document().await;
    in_force.set(document.clone()).await.unwrap();
    assert_eq!((active_model(&in_force), in_force.document().await), ("of-the-environment".into(), document));
}

#[tokio::test]
async fn what_is_faulty_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write_file(&folder, &gateway_document("of-the-file").to_string());
    let (brain, in_force) = open_config(folder.path(), ENV);
    in_force.set(gateway_document("set")).await.unwrap();
    for invalid_field in [json!({}), json!(null), json!({"models": {}, "default": "m"})] {
        assert!(matches!(in_force.set(invalid_field).await, Err(ConfigError::Invalid(_))));
    }
    write_file(&folder, "{");
    assert!(matches!(in_force.reload().await, Err(ConfigError::Invalid(_))));
    assert_eq!((active_model(&in_force), in_force.document().await), ("set".into(), gateway_document("set")));
    brain.close().await;
    // A configuration that cannot be stored does not become active.
    assert!(matches!(in_force.set(gateway_document("unstored")).await, Err(ConfigError::Write(_))));
    assert_eq!(active_model(&in_force), "set");
}

#[tokio::test]
async fn at_a_start_the_next_one_stands_in_for_what_works_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let keyed = json!({
        "models": {"m": {"provider": "anthropic", "model": "set", "context_window": 200_000}},
        "default": "m",
    });
    let with_key = [ENV, &[("ANTHROPIC_API_KEY", "k")]].concat();
    let (brain, in_force) = open_config(folder.path(), &with_key);
    in_force.set(keyed).await.unwrap();
    brain.close().await;
    drop((brain, in_force));

    write_file(&folder, &gateway_document("of-the-file").to_string());
    for (file, env, expected) in [
        (gateway_document("of-the-file").to_string(), ENV, "of-the-file"),
        ("{".to_owned(), ENV, "of-the-environment"),
        ("{".to_owned(), &with_key, "set"),
    ] {
        write_file(&folder, &file);
        let (brain, in_force) = open_config(folder.path(), env);
        assert_eq!(active_model(&in_force), expected);
        brain.close().await;
    }
    // If nothing works, all reasons are reported.
    let (_brain, in_force) = open_config(folder.path(), &[]);
    let reason = active_model(&in_force);
    assert!(reason.contains("gateway.json") && reason.contains("LLM_PROVIDER is not set"), "{reason}");
    assert_eq!(in_force.document().await, Value::Null);
    in_force.set(gateway_document("set")).await.unwrap();
    assert_eq!(active_model(&in_force), "set");
}

#[tokio::test]
async fn a_caller_who_goes_away_leaves_no_half_change() {
    let folder = tempfile::tempdir().unwrap();
    let (brain, in_force) = open_config(folder.path(), ENV);
    let mut setting = Box::pin(in_force.set(gateway_document("set")));
    assert!(futures::poll!(&mut setting).is_pending());
    drop(setting);
    with_deadline(async {
        while active_model(&in_force) != "set" {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(in_force.document().await, gateway_document("set"));
    assert_eq!(brain.setting(Setting::Gateway).unwrap().unwrap(), gateway_document("set").to_string());
}
