//! Which variables of its own environment `roundhouse up` passes to its engines.

use std::collections::BTreeMap;

use http_service::env::Env;
use http_service::trace_settings;
use llm::config::{provider_key_variables, shows_provider};

/// Settings of the engine that do not begin with `LLM_`.
const ENGINE_SETTINGS: [&str; 18] = [
    "ENGINE_ALLOW_UNCONFINED",
    "ENGINE_LOG_FORMAT",
    "ENGINE_LOG_LEVEL",
    "ENGINE_MEMORY_BUDGET_MB",
    "ENGINE_USAGE_MAX_TOKENS_PER_DAY",
    "ENGINE_USAGE_MAX_TOKENS_PER_TASK",
    "ENGINE_USAGE_MAX_USD_PER_DAY",
    "ENGINE_USAGE_MAX_USD_PER_TASK",
    "ENGINE_USAGE_RETENTION_DAYS",
    "ENGINE_WEB_ALLOW",
    "ENGINE_WORKSPACE_FILE_MB",
    "ENGINE_WORKSPACE_QUOTA_MB",
    "CHANNEL_STATE_TTL_ACTIVE",
    "CHANNEL_STATE_TTL_HITL",
    "LC_BATCH_INTERVAL_HOURS",
    "OAUTH_CLIENT_METADATA_URL",
    REDIRECT_BASE_VAR,
    "REACTIVE_COMPACT_ENABLED",
];

/// The keys of search providers.
const SEARCH_KEYS: [&str; 2] = ["BRAVE_SEARCH_API_KEY", "TAVILY_API_KEY"];

/// The base of the URL to which authorization servers redirect the user's browser.
const REDIRECT_BASE_VAR: &str = "OAUTH_REDIRECT_BASE_URL";

/// The address on which `roundhouse connection connect` receives the browser. It is fixed, because authorization
/// servers store registered redirect URLs.
const LOCAL_REDIRECT_BASE: &str = "http://127.0.0.1:8765";

/// Returns the variables for engines: every `LLM_…`, each provider's key and each engine setting that is set. Adds
/// the offline provider if no provider is configured, and a redirect base on this machine if none is set.
pub(super) fn engine_env(env: &dyn Env) -> BTreeMap<String, String> {
    let wanted = |name: &str| {
        // Keys of other tools' providers are not passed on.
        let is_provider_key = || provider_key_variables().any(|variable| variable == name);
        name.starts_with("LLM_")
            || is_provider_key()
            || ENGINE_SETTINGS.contains(&name)
            || SEARCH_KEYS.contains(&name)
            || trace_settings::PASSED_ON.contains(&name)
    };
    let set = |name: String| {
        let value = env.get(&name).filter(|value| !value.is_empty())?;
        Some((name, value))
    };
    let mut passed: BTreeMap<_, _> =
        env.names().into_iter().filter(|name| wanted(name)).filter_map(set).collect();
    if !passed.keys().any(|name| shows_provider(name)) {
        passed.insert("LLM_PROVIDER".into(), "scripted".into());
    }
    passed.entry(REDIRECT_BASE_VAR.into()).or_insert_with(|| LOCAL_REDIRECT_BASE.into());
    // Made absolute, because an engine's working directory is its own folder.
    if let Some(script) = passed.get_mut("LLM_SCRIPT_PATH")
        && let Ok(absolute) = std::path::absolute(&*script)
    {
        *script = absolute.to_string_lossy().into_owned();
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let env: BTreeMap<String, String> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut passed = engine_env(&env);
        passed.retain(|name, value| name != REDIRECT_BASE_VAR || value != LOCAL_REDIRECT_BASE);
        passed.into_iter().collect()
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_what_engines_need_is_passed() {
        let set =
            [("ENGINE_LOG_LEVEL", "debug"), ("HOME", "/h"), ("OPENAI_API_KEY", "k"), ("GITHUB_API_KEY", "k")];
        assert_eq!(passed_env(&set), owned(&[("ENGINE_LOG_LEVEL", "debug"), ("OPENAI_API_KEY", "k")]));
        let keys = [("BRAVE_SEARCH_API_KEY", "k"), ("OPENAI_API_KEY", "k"), ("TAVILY_API_KEY", "k")];
        assert_eq!(passed_env(&keys), owned(&keys));
    }

    #[test]
    fn browsers_are_sent_back_to_this_machine_unless_somebody_says_otherwise() {
        for set in [vec![], vec![(REDIRECT_BASE_VAR.to_owned(), String::new())]] {
            let set: BTreeMap<String, String> = set.into_iter().collect();
            assert_eq!(
                engine_env(&set).get(REDIRECT_BASE_VAR).map(String::as_str),
                Some(LOCAL_REDIRECT_BASE)
            );
        }
        let set = [
            ("LLM_PROVIDER", "scripted"),
            ("OAUTH_CLIENT_METADATA_URL", "https://app.example.com/client.json"),
            ("OAUTH_REDIRECT_BASE_URL", "https://app.example.com"),
        ];
        assert_eq!(passed_env(&set), owned(&set));
    }

    #[test]
    fn without_a_provider_the_offline_one_answers() {
        assert_eq!(passed_env(&[]), owned(&[("LLM_PROVIDER", "scripted")]));
        assert_eq!(passed_env(&[("OPENAI_API_KEY", "")]), owned(&[("LLM_PROVIDER", "scripted")]));
        assert_eq!(passed_env(&[("GEMINI_API_KEY", "k")]), owned(&[("GEMINI_API_KEY", "k")]));
        let ollama = [("LLM_PROVIDER", "scripted"), ("OLLAMA_API_KEY", "k")];
        assert_eq!(passed_env(&[("OLLAMA_API_KEY", "k")]), owned(&ollama));
        let compatible = [("OPENAI_COMPATIBLE_API_KEY", "k")];
        assert_eq!(passed_env(&compatible), owned(&compatible));
        let script = [("LLM_SCRIPT_PATH", "/s.yaml")];
        assert_eq!(
            passed_env(&script),
            owned(&[("LLM_PROVIDER", "scripted"), ("LLM_SCRIPT_PATH", "/s.yaml")])
        );
    }
}
