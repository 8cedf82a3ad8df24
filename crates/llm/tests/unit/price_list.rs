//! The list can be read, names its source and date, and prices no model that it does not name.

use super::*;

#[test]
fn the_list_is_complete() {
    let raw: serde_json::Value = serde_json::from_str(include_str!("../../src/prices.json")).unwrap();
    let list = PriceList::deserialize(&raw).unwrap();
    for (name, prices) in &list.providers {
        assert!(Provider::from_name(name).is_some(), "prices.json: no provider has the name {name}");
        let text = |field: &str| raw["providers"][name][field].as_str().unwrap();
        assert!(text("source").starts_with("https://"), "{name}");
        assert!(text("as_of").parse::<jiff::civil::Date>().is_ok(), "{name}");
        for (model, listed) in &prices.models {
            let Prices { input, output, cache_read, cache_write } = (*listed).into();
            assert!(input > 0.0 && output > input && cache_read > 0.0 && cache_read <= input, "{model}");
            assert!(cache_write >= input, "{model}");
        }
    }
    // The models that are used without a configuration have prices.
    for provider in Provider::vendors() {
        let (name, model) = (provider.name(), provider.default_model().unwrap());
        assert!(
            find(provider, model).is_some(),
            "prices.json has no price of {name}'s default model {model}"
        );
    }
}

#[test]
fn a_snapshot_costs_what_its_model_costs_and_an_unknown_model_has_no_price() {
    let price = |provider, model: &str| find(provider, model).map(|prices| (prices.input, prices.output));
    for (provider, model, expected) in [
        (Provider::Anthropic, "claude-sonnet-4-5-20250929", Some((3.0, 15.0))),
        (Provider::Anthropic, "claude-sonnet-4-20250514", Some((3.0, 15.0))),
        (Provider::Anthropic, "claude-3-5-haiku-latest", Some((0.8, 4.0))),
        (Provider::OpenAi, "gpt-5-mini-2025-08-07", Some((0.25, 2.0))),
        (Provider::OpenAi, "gpt-5", Some((1.25, 10.0))),
        (Provider::Gemini, "models/gemini-2.5-flash", Some((0.3, 2.5))),
        // Its price is another one.
        (Provider::OpenAi, "gpt-5-pro", None),
        (Provider::OpenAi, "gpt-5-2025", None),
        (Provider::Anthropic, "claude-of-the-future", None),
        (Provider::Anthropic, "gpt-5", None),
        (Provider::Anthropic, "", None),
        (Provider::Anthropic, "-20250929", None),
        (Provider::Anthropic, "ä-2025-08-07", None),
        (Provider::Ollama, "qwen3", None),
        (Provider::OpenAiCompatible, "gpt-5", None),
        (Provider::Scripted, "scripted", None),
    ] {
        assert_eq!(price(provider, model), expected, "{model}");
    }
}
