//! Configurations from the environment, the catalog and a caller, and the servers that keys may be sent to.

use std::collections::BTreeMap;

use pretty_assertions::assert_eq;

use super::*;

fn model_name_from_env(pairs: &[(&str, &str)]) -> Result<String, String> {
    let env: BTreeMap<String, String> =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    routes_from_env(&env)
        .map(|routes| routes.chain[0].model.name().to_owned())
        .map_err(|reason| reason.to_string())
}

#[test]
fn a_complete_configuration_is_taken() {
    for (pairs, name) in [
        (&[("LLM_PROVIDER", "scripted")][..], "scripted"),
        (&[("LLM_PROVIDER", "anthropic"), ("LLM_API_KEY", "k"), ("LLM_MODEL", "m")], "m"),
        (&[("ANTHROPIC_API_KEY", "k")], "claude-sonnet-4-5"),
        (&[("OPENAI_API_KEY", "k"), ("LLM_MODEL", "m")], "m"),
        (&[("GEMINI_API_KEY", "k")], "gemini-2.5-pro"),
        (&[("LLM_PROVIDER", "ollama"), ("LLM_MODEL", "qwen3")], "qwen3"),
        (&[("LLM_PROVIDER", "openai-compatible"), ("LLM_BASE_URL", "http://h/v1"), ("LLM_MODEL", "m")], "m"),
    ] {
        assert_eq!(model_name_from_env(pairs), Ok(name.to_owned()));
    }
}

#[test]
fn what_is_missing_is_named_and_no_key_is_shown() {
    for (pairs, expected) in [
        (&[][..], "LLM_PROVIDER is not set"),
        (&[("LLM_PROVIDER", "clippy")], "LLM_PROVIDER is `clippy`"),
        (&[("LLM_PROVIDER", "anthropic")], "ANTHROPIC_API_KEY is not set"),
        (&[("LLM_PROVIDER", "openai")], "OPENAI_API_KEY is not set"),
        (
            &[("ANTHROPIC_API_KEY", "hunter2"), ("OPENAI_API_KEY", "k")],
            "ANTHROPIC_API_KEY and OPENAI_API_KEY",
        ),
        (&[("LLM_PROVIDER", "openai-compatible"), ("LLM_MODEL", "m")], "LLM_BASE_URL is not set"),
        (&[("LLM_PROVIDER", "openai-compatible"), ("LLM_BASE_URL", "http://h")], "LLM_MODEL is not set"),
        (&[("OPENAI_API_KEY", "hunter2"), ("LLM_BASE_URL", "ftp://h")], "LLM_BASE_URL is `ftp://h`"),
        (&[("LLM_PROVIDER", "scripted"), ("LLM_SCRIPT_PATH", "/nowhere.yaml")], "/nowhere.yaml"),
        (&[("LLM_PROVIDER", "gemini")], "GEMINI_API_KEY is not set"),
        (&[("LLM_PROVIDER", "ollama")], "LLM_MODEL is not set"),
        (&[("OPENAI_API_KEY", "k"), ("LLM_BASE_URL", "https://me:hunter2@h")], "LLM_BASE_URL is `***`"),
    ] {
        let reason = model_name_from_env(pairs).unwrap_err();
        assert!(reason.contains(expected) && !reason.contains("hunter2"), "{reason}");
    }
}

/// Sources with these variables, and with this `gateway.json` if there is one.
fn sources(pairs: &[(&str, &str)], file: Option<&str>) -> (tempfile::TempDir, ConfigSources) {
    let folder = tempfile::tempdir().unwrap();
    if let Some(text) = file {
        std::fs::write(folder.path().join(CONFIG_FILE), text).unwrap();
    }
    let env: BTreeMap<String, String> =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let sources = ConfigSources::new(&env, Some(folder.path()));
    (folder, sources)
}

fn single_model(provider: &str, more: &Value) -> Value {
    let mut model = json!({"provider": provider, "model": "m", "context_window": 100_000});
    for (field, value) in more.as_object().unwrap() {
        model[field] = value.clone();
    }
    json!({"models": {"one": model}, "default": "one"})
}

fn refusal(sources: &ConfigSources, document: Value) -> String {
    let key_policy = sources.load_catalog().unwrap().key_policy;
    sources.validate(document, &key_policy).err().expect("it should be refused").to_string()
}

fn validated(sources: &ConfigSources, document: Value) -> ValidatedConfig {
    let key_policy = sources.load_catalog().unwrap().key_policy;
    sources.validate(document, &key_policy).unwrap_or_else(|reason| panic!("{reason}"))
}

#[test]
fn what_the_environment_says_is_the_same_in_the_form_of_a_file() {
    for pairs in [
        &[("LLM_PROVIDER", "scripted")][..],
        &[("ANTHROPIC_API_KEY", "hunter2")],
        &[("LLM_PROVIDER", "openai"), ("LLM_API_KEY", "hunter2"), ("LLM_BASE_URL", "http://127.0.0.1:9/v1")],
        &[("LLM_PROVIDER", "ollama"), ("LLM_MODEL", "qwen3")],
        &[
            ("LLM_PROVIDER", "openai-compatible"),
            ("LLM_MODEL", "m"),
            ("LLM_BASE_URL", "http://h/v1"),
            ("LLM_API_KEY", "hunter2"),
        ],
    ] {
        let (_folder, sources) = sources(pairs, None);
        let config = sources.load_env().unwrap();
        let from_document = validated(&sources, config.document.clone());
        assert_eq!(from_document.document, config.document);
        let [before, after] = [&config, &from_document].map(|config| {
            let route = &config.routes.chain[0];
            (route.name.clone(), route.context_window, route.max_output, config.routes.retry)
        });
        assert_eq!(after, before);
        assert!(!config.document.to_string().contains("hunter2"));
    }
}

#[test]
fn a_caller_cannot_send_a_key_elsewhere() {
    let (_folder, sources) = sources(
        &[
            ("ANTHROPIC_API_KEY", "hunter2"),
            ("LLM_API_KEY", "hunter2"),
            ("MY_API_KEY", "hunter2"),
            ("LLM_BASE_URL", "http://proxy/v1"),
        ],
        Some(
            &single_model(
                "openai-compatible",
                &json!({"base_url": "http://catalog/v1", "api_key_env": "none"}),
            )
            .to_string(),
        ),
    );
    for (provider, more) in [
        ("anthropic", json!({"base_url": "http://evil"})),
        ("anthropic", json!({"base_url": "http://api.anthropic.com"})),
        ("anthropic", json!({"base_url": "http://proxy/v2"})),
        ("openai-compatible", json!({"base_url": "http://evil", "api_key_env": "ANTHROPIC_API_KEY"})),
        ("openai-compatible", json!({"base_url": "http://evil", "api_key_env": "LLM_API_KEY"})),
        (
            "openai-compatible",
            json!({"base_url": "https://api.openai.com/v1", "api_key_env": "ANTHROPIC_API_KEY"}),
        ),
        ("anthropic", json!({"base_url": "https://api.anthropic.com", "api_key_env": "MY_API_KEY"})),
        ("ollama", json!({"api_key_env": "ANTHROPIC_API_KEY"})),
    ] {
        let reason = refusal(&sources, single_model(provider, &more));
        assert!(
            reason.contains("config.models.one.base_url") && !reason.contains("hunter2"),
            "{more}: {reason}"
        );
    }
    for (provider, more) in [
        ("anthropic", json!({})),
        ("anthropic", json!({"base_url": "https://api.anthropic.com"})),
        ("anthropic", json!({"base_url": "http://PROXY:80/v1/"})),
        ("anthropic", json!({"base_url": "http://catalog/v1"})),
        ("openai-compatible", json!({"base_url": "http://catalog/v1", "api_key_env": "MY_API_KEY"})),
        // No key is sent there.
        ("anthropic", json!({"base_url": "http://127.0.0.1:1", "api_key_env": "none"})),
        ("openai-compatible", json!({"base_url": "http://127.0.0.1:1/v1"})),
        ("ollama", json!({})),
    ] {
        validated(&sources, single_model(provider, &more));
    }
}

#[test]
fn a_key_that_is_not_set_is_named() {
    let (_folder, sources) = sources(&[("LLM_PROVIDER", "anthropic"), ("LLM_API_KEY", "k")], None);
    let reason = refusal(&sources, single_model("openai", &json!({})));
    assert!(reason.contains("OPENAI_API_KEY is not set") && reason.contains("models.one"), "{reason}");
    let reason = refusal(&sources, single_model("anthropic", &json!({"api_key_env": "ANTHROPIC_API_KEY"})));
    assert!(reason.contains("ANTHROPIC_API_KEY is not set"), "{reason}");
    validated(&sources, single_model("anthropic", &json!({})));
}

#[test]
fn the_file_says_where_else_keys_may_go() {
    let elsewhere = json!({"base_url": "http://gateway.internal", "api_key_env": "TEAM_API_KEY"});
    let file = single_model("anthropic", &elsewhere).to_string();
    let (_folder, sources) = sources(&[("TEAM_API_KEY", "k")], Some(&file));
    let catalog = sources.load_catalog().unwrap();
    assert_eq!(catalog.config.unwrap().document.to_string(), file);
    validated(&sources, single_model("openai-compatible", &elsewhere));
    // The key is for that address, not for the vendor's own.
    assert!(
        refusal(&sources, single_model("anthropic", &json!({"api_key_env": "TEAM_API_KEY"})))
            .contains("models.one")
    );
}

#[test]
fn a_file_that_cannot_be_used_is_refused_whole() {
    let huge = " ".repeat(1024 * 1024 + 1);
    for (text, expected) in [
        (huge.as_str(), "1 MiB"),
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "an object"),
        ("null", "an object"),
        ("{\"models\": {}}", "gateway.json.default is not set"),
        (&single_model("oracle", &json!({})).to_string(), "gateway.json.models.one.provider is `oracle`"),
    ] {
        let (_folder, sources) = sources(&[("LLM_PROVIDER", "scripted")], Some(text));
        let reason = sources.load_catalog().err().unwrap().to_string();
        assert!(reason.contains(expected), "{text}: {reason}");
    }
    let (_folder, sources) = sources(&[], None);
    assert!(sources.load_catalog().unwrap().config.is_none());
    // An unreadable file is not treated as absent.
    let (folder, sources) = self::sources(&[], None);
    std::fs::create_dir(folder.path().join(CONFIG_FILE)).unwrap();
    assert!(sources.load_catalog().is_err());
}

#[test]
fn the_chain_is_the_default_and_its_fallbacks_once_each() {
    let model = json!({"provider": "scripted", "model": "m", "context_window": 1_000});
    let document = json!({
        "models": {"a": model, "b": model, "c": model},
        "default": "b", "planner": "c", "fallbacks": ["b", "a", "a"],
    });
    let (_folder, sources) = sources(&[], None);
    let routes = validated(&sources, document).routes;
    let names = |chain: Vec<std::sync::Arc<super::super::Route>>| -> Vec<String> {
        chain.iter().map(|route| route.name.clone()).collect()
    };
    assert_eq!(names(routes.chain_for(None)), ["b", "a"]);
    assert_eq!(names(routes.chain_for(Some("c"))), ["c", "b", "a"]);
    assert_eq!((routes.planner.unwrap().name.as_str(), routes.named.len()), ("c", 3));
}

#[test]
fn the_price_list_holds_for_the_vendors_own_servers() {
    let (_folder, sources) = sources(&[("ANTHROPIC_API_KEY", "k"), ("X_API_KEY", "k")], None);
    let prices = |provider: &str, model: &str, more: Value| {
        let mut document = single_model(provider, &more);
        document["models"]["one"]["model"] = model.into();
        validated(&sources, document).routes.chain[0].prices.map(|prices| (prices.input, prices.output))
    };
    let known = "claude-sonnet-4-5-20250929";
    assert_eq!(prices("anthropic", known, json!({})), Some((3.0, 15.0)));
    assert_eq!(prices("anthropic", "claude-of-the-future", json!({})), None);
    let own = json!({"prices": {"input": 1, "output": 2}});
    assert_eq!(prices("anthropic", known, own), Some((1.0, 2.0)));
    let elsewhere = json!({"base_url": "http://models.internal", "api_key_env": "none"});
    assert_eq!(prices("anthropic", known, elsewhere.clone()), None);
    let mut listed = elsewhere;
    listed["prices"] = "list".into();
    assert_eq!(prices("anthropic", known, listed), Some((3.0, 15.0)));
}
