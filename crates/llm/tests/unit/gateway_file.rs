//! Valid configurations, and the errors that are reported for invalid ones.

use std::collections::BTreeMap;

use pretty_assertions::assert_eq;
use serde_json::json;

use super::*;

fn read(value: &Value) -> Result<GatewayFile, Vec<String>> {
    let env = BTreeMap::new();
    let mut reader = EnvReader::new(&env);
    let document = parse("config", value, &mut reader);
    reader.finish(document).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

fn single_model(model: &Value) -> Value {
    json!({"models": {"m": model}, "default": "m"})
}

/// The only model of a valid configuration, with these fields.
fn model(fields: &Value) -> ModelConfig {
    let mut model = json!({"provider": "anthropic", "model": "claude-sonnet-4-5", "context_window": 200_000});
    for (field, value) in fields.as_object().unwrap() {
        model[field] = value.clone();
    }
    read(&single_model(&model)).unwrap().models.remove("m").unwrap()
}

#[test]
fn the_smallest_configuration_has_the_usual_rules() {
    let fields = json!({"provider": "openai", "model": "gpt-5", "context_window": 400_000});
    let document = read(&single_model(&fields)).unwrap();
    assert_eq!((document.default.as_str(), document.planner, document.fallbacks.len()), ("m", None, 0));
    assert_eq!((document.retry, document.budgets), (RetryPolicy::default(), Budgets::default()));
    let expected = ModelConfig {
        provider: Provider::OpenAi,
        model: "gpt-5".into(),
        base_url: None,
        key: KeySource::Default,
        api: OpenAiApi::Chat,
        context_window: 400_000,
        max_output: 32_000,
        thinking: Thinking::Effort(Effort::High),
        takes_audio: false,
        prices: None,
    };
    assert_eq!(document.models["m"], expected);
}

#[test]
fn everything_that_can_be_said_is_read() {
    let document = read(&json!({
        "models": {
            "fast": {
                "provider": "openai", "model": "gpt-5-mini", "base_url": "https://Models.example:443/v1/",
                "api_key_env": "TEAM_API_KEY", "api": "responses", "context_window": 100_000,
                "max_output": 8_000, "thinking": {"effort": "low"},
                "prices": {"input": 0.25, "output": 2, "cache_read": 0.025},
            },
            "local": {"provider": "ollama", "model": "qwen3", "api_key_env": "none", "context_window": 4_000},
        },
        "default": "fast", "planner": "local", "fallbacks": ["local"],
        "retry": {"max_attempts": 2, "max_seconds": 1.5},
        "budgets": {"tokens_per_turn": 1, "tokens_per_hour": 2, "tokens_per_day": 3},
    }))
    .unwrap();
    let fast = &document.models["fast"];
    assert_eq!(fast.base_url.as_ref().unwrap().as_str(), "https://models.example/v1");
    assert_eq!((&fast.key, fast.api), (&KeySource::Variable("TEAM_API_KEY".into()), OpenAiApi::Responses));
    assert_eq!((fast.max_output, fast.thinking), (8_000, Thinking::Effort(Effort::Low)));
    let prices = Prices { input: 0.25, output: 2.0, cache_read: 0.025, cache_write: 0.25 };
    assert_eq!(fast.prices, Some(prices));
    // Half of the window is left to the prompt.
    assert_eq!(
        (document.models["local"].max_output, &document.models["local"].key),
        (2_000, &KeySource::None)
    );
    assert_eq!((document.planner.as_deref(), document.fallbacks), (Some("local"), vec!["local".to_owned()]));
    let retry = RetryPolicy { max_attempts: 2, max_elapsed: Duration::from_millis(1_500) };
    assert_eq!(document.retry, retry);
    let budgets = Budgets { tokens_per_turn: Some(1), tokens_per_hour: Some(2), tokens_per_day: Some(3) };
    assert_eq!(document.budgets, budgets);
}

#[test]
fn thinking_has_its_forms_and_each_is_written_as_it_is_read() {
    for (form, thinking) in [
        (json!("off"), Thinking::Off),
        (json!("adaptive"), Thinking::Adaptive(Effort::High)),
        (json!("effort"), Thinking::Effort(Effort::High)),
        (json!({"adaptive": "max"}), Thinking::Adaptive(Effort::Max)),
        (json!({"effort": "xhigh"}), Thinking::Effort(Effort::Xhigh)),
        (json!({"budget_tokens": 1_024}), Thinking::Budget(1_024)),
        (json!(null), Thinking::Budget(16_000)),
    ] {
        assert_eq!(model(&json!({"thinking": form})).thinking, thinking);
        assert_eq!(model(&json!({"thinking": thinking_to_json(thinking)})).thinking, thinking);
    }
}

#[test]
fn a_model_takes_audio_by_its_name_unless_the_file_says_otherwise() {
    let of = |provider: &str, name: &str, audio: Value| {
        let mut fields = json!({"provider": provider, "model": name, "audio": audio});
        if provider == "openai-compatible" {
            fields["base_url"] = "http://localhost/v1".into();
        }
        model(&fields).takes_audio
    };
    for (provider, name, audio, expected) in [
        ("gemini", "gemini-2.5-flash", Value::Null, true),
        ("gemini", "gemini-2.5-flash", json!(false), false),
        ("openai", "gpt-audio", Value::Null, true),
        ("openai", "gpt-4o", Value::Null, false),
        ("openai", "ft:ours", json!(true), true),
        ("openai-compatible", "qwen2-audio", Value::Null, false),
        ("openai-compatible", "qwen2-audio", json!(true), true),
        ("anthropic", "claude-sonnet-4-5", json!(false), false),
    ] {
        assert_eq!(of(provider, name, audio), expected, "{name}");
    }
    let refused = |fields: Value| {
        let mut model =
            json!({"provider": "anthropic", "model": "m", "context_window": 9_000, "audio": true});
        model.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        read(&single_model(&model)).unwrap_err().join("\n")
    };
    for fields in
        [json!({}), json!({"provider": "ollama"}), json!({"provider": "openai", "api": "responses"})]
    {
        let error = refused(fields);
        assert!(error.contains("config.models.m.audio") && error.contains("false or absent"), "{error}");
    }
    assert!(refused(json!({"provider": "gemini", "audio": "yes"})).contains("true or false"));
}

#[test]
fn the_usual_budget_of_thinking_is_less_than_the_answer() {
    for (max_output, thinking) in
        [(16_001, Thinking::Budget(16_000)), (16_000, Thinking::Budget(8_000)), (2_000, Thinking::Off)]
    {
        assert_eq!(model(&json!({"max_output": max_output})).thinking, thinking);
    }
}

#[test]
fn the_text_of_a_fault_does_not_grow_with_the_number_of_models() {
    let (entry, name) =
        (json!({"provider": "scripted", "model": "m", "context_window": 10}), "a-longer-name");
    let models: Map<String, Value> =
        (0..1_000).map(|number| (format!("{name}-{number}"), entry.clone())).collect();
    let errors = read(&json!({"models": models, "default": "none"})).unwrap_err();
    assert!(errors.len() == 1 && errors[0].len() < 400, "{errors:?}");
}

#[test]
fn all_faults_are_told_at_once_each_with_its_place() {
    let errors = read(&json!({
        "models": {
            "a": {"provider": "oracle", "model": " ", "context_window": 0, "base_url": "ftp://h", "price": {}},
            "b": {"provider": "openai-compatible", "model": "m", "context_window": 10, "max_output": 10},
            "c": [],
        },
        "default": "d", "planner": 7, "fallbacks": ["a", "e"],
        "retry": {"max_attempts": 0, "max_seconds": -1, "seconds": 1},
        "budgets": {"tokens_per_hour": 0, "tokens_per_week": 5, "tokens_per_day": 1.5},
        "defaults": "a",
    }))
    .unwrap_err();
    let mut paths: Vec<&str> = errors.iter().map(|error| error.split(" is ").next().unwrap()).collect();
    paths.sort_unstable();
    let expected = [
        "config.budgets.tokens_per_day",
        "config.budgets.tokens_per_hour",
        "config.budgets.tokens_per_week",
        "config.default",
        "config.defaults",
        "config.fallbacks[1]",
        "config.models.a.base_url",
        "config.models.a.context_window",
        "config.models.a.model",
        "config.models.a.price",
        "config.models.a.provider",
        "config.models.b.base_url",
        "config.models.b.max_output",
        "config.models.c",
        "config.planner",
        "config.retry.max_attempts",
        "config.retry.max_seconds",
        "config.retry.seconds",
    ];
    assert_eq!(paths, expected);
    let default = errors.iter().find(|error| error.starts_with("config.default ")).unwrap();
    assert_eq!(default, "config.default is `d`: it must be the name of one of `models` (a, b, c)");
}

#[test]
fn what_a_model_cannot_be_is_refused() {
    for (fields, path) in [
        (json!({"thinking": "hard"}), "thinking"),
        (json!({"thinking": {"effort": "huge"}}), "thinking"),
        (json!({"thinking": {"budget_tokens": 1_023}}), "thinking"),
        (json!({"thinking": {"budget_tokens": 32_000}}), "thinking"),
        (json!({"thinking": {"effort": "low", "budget_tokens": 2_000}}), "thinking"),
        (json!({"api": "responses"}), "api"),
        (json!({"api_key_env": "PATH"}), "api_key_env"),
        (json!({"provider": "scripted", "base_url": "http://h"}), "base_url"),
        (json!({"provider": "scripted", "api_key_env": "X_API_KEY"}), "api_key_env"),
        (json!({"provider": "scripted", "thinking": "off"}), "thinking"),
        (json!({"prices": {"input": -1}}), "prices.input"),
        (json!({"prices": {"Input": 1}}), "prices.Input"),
        (json!({"prices": "free"}), "prices"),
        (json!({"prices": "list", "model": "claude-of-the-future"}), "prices"),
        (json!({"context_window": "200000"}), "context_window"),
        (json!({"context_window": 1.5}), "context_window"),
    ] {
        let mut entry =
            json!({"provider": "anthropic", "model": "claude-sonnet-4-5", "context_window": 200_000});
        for (field, value) in fields.as_object().unwrap() {
            entry[field] = value.clone();
        }
        let errors = read(&single_model(&entry)).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].starts_with(&format!("config.models.m.{path} is ")), "{errors:?}");
    }
    for value in [json!(null), json!([]), json!("x"), json!({}), json!({"models": {}, "default": "m"})] {
        assert!(read(&value).is_err(), "{value}");
    }
}

#[test]
fn a_model_at_any_address_can_have_the_prices_of_the_list() {
    let fields = json!({
        "provider": "anthropic", "model": "claude-sonnet-4-5", "context_window": 200_000,
        "base_url": "http://proxy.internal", "prices": "list",
    });
    let prices = Prices { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
    assert_eq!(read(&single_model(&fields)).unwrap().models["m"].prices, Some(prices));
}

#[test]
fn a_key_in_the_wrong_place_is_not_shown() {
    for fields in [
        json!({"api_key_env": "hunter2"}),
        json!({"api_key": "hunter2"}),
        json!({"base_url": "https://me:hunter2@h"}),
    ] {
        let mut entry = json!({"provider": "anthropic", "model": "m", "context_window": 200_000});
        for (field, value) in fields.as_object().unwrap() {
            entry[field] = value.clone();
        }
        let errors = read(&single_model(&entry)).unwrap_err().join("\n");
        assert!(!errors.contains("hunter2"), "{errors}");
    }
}
