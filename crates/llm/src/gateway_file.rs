//! Parses and validates the gateway's configuration as people write it, in `gateway.json` and for `set_config`,
//! and reports all errors at once. It does not depend on the environment.

use std::collections::BTreeMap;
use std::time::Duration;

use http_service::env::EnvReader;
use resources::text::{first_chars, shorten_to_chars};
use serde_json::{Map, Value};

use super::base_url::BaseUrl;
use super::profile::{Effort, Thinking};
use super::provider::{Provider, is_key_variable};
use super::{Budgets, Prices, RetryPolicy, UsageLimits, price_list};

/// The maximum configurable number of attempts.
const MAX_RETRY_ATTEMPTS: u64 = 100;
/// The maximum configurable time for retries, in seconds.
const MAX_RETRY_SECONDS: f64 = 3_600.0;
/// The smallest thinking budget that Anthropic's models accept, in tokens:
/// <https://platform.claude.com/docs/en/build-with-claude/extended-thinking>.
const MIN_THINKING_TOKENS: u64 = 1_024;

/// A configuration whose syntax is valid.
#[derive(Debug, PartialEq)]
pub(super) struct GatewayFile {
    /// The models by name.
    pub(super) models: BTreeMap<String, ModelConfig>,
    /// The name of the primary model.
    pub(super) default: String,
    /// The name of the planner.
    pub(super) planner: Option<String>,
    /// The name of the model that makes titles.
    pub(super) titles: Option<String>,
    /// The names of the fallback models, in order.
    pub(super) fallbacks: Vec<String>,
    pub(super) retry: RetryPolicy,
    pub(super) budgets: Budgets,
    pub(super) caps: UsageLimits,
}

/// A model entry. What it omits follows from the provider and the model's name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModelConfig {
    pub(super) provider: Provider,
    pub(super) model: String,
    pub(super) base_url: Option<BaseUrl>,
    pub(super) key: KeySource,
    pub(super) api: OpenAiApi,
    pub(super) context_window: u64,
    pub(super) max_output: u64,
    pub(super) thinking: Thinking,
    pub(super) takes_audio: bool,
    pub(super) prices: Option<Prices>,
}

/// Which key is sent to the model's server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    /// The key of the model's provider.
    Default,
    /// The key in the variable of this name.
    Variable(String),
    /// No key.
    None,
}

/// The OpenAI protocol that a model speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenAiApi {
    /// Chat Completions.
    Chat,
    /// Responses.
    Responses,
}

/// Parses a configuration; `None` if an error was reported. `root` prefixes the path of each error.
pub(super) fn parse(root: &str, value: &Value, reader: &mut EnvReader<'_>) -> Option<GatewayFile> {
    const FIELDS: [&str; 8] =
        ["models", "default", "planner", "titles", "fallbacks", "retry", "budgets", "caps"];
    let config = ConfigObject::parse(reader, root.to_owned(), value)?;
    config.reject_unknown_fields(reader, &FIELDS);
    let models = parse_models(&config, reader);
    let names: Vec<String> =
        config.child_object(reader, "models", false).map(|models| models.field_names()).unwrap_or_default();
    let default =
        config.required(reader, "default", &one_of(&names), |value| known_model_name(value, &names));
    let planner =
        config.optional(reader, "planner", &one_of(&names), |value| known_model_name(value, &names));
    let titles = config.optional(reader, "titles", &one_of(&names), |value| known_model_name(value, &names));
    let fallbacks = parse_fallbacks(&config, reader, &names);
    let retry = parse_retry(&config, reader);
    let budgets = parse_budgets(&config, reader);
    let caps = parse_caps(&config, reader);
    Some(GatewayFile { models: models?, default: default?, planner, titles, fallbacks, retry, budgets, caps })
}

fn one_of(names: &[String]) -> String {
    // Every unknown name's error repeats this text, so it must not grow with the number of models.
    const MAX_NAMES_CHARS: usize = 200;
    let all = names.join(", ");
    let shown = shorten_to_chars(&all, MAX_NAMES_CHARS);
    format!("the name of one of `models` ({shown})")
}

fn known_model_name(value: &Value, names: &[String]) -> Option<String> {
    value.as_str().map(str::to_owned).filter(|name| names.contains(name))
}

fn parse_models(
    config: &ConfigObject<'_>,
    reader: &mut EnvReader<'_>,
) -> Option<BTreeMap<String, ModelConfig>> {
    let models = config.child_object(reader, "models", true)?;
    if models.fields.is_empty() {
        reader.add_error(&models.path, Some("{}".into()), "an object with at least one model, keyed by name");
    }
    let entries = models.fields.iter().filter_map(|(name, value)| {
        let model = ConfigObject::parse(reader, models.path_of(name), value)?;
        Some((name.clone(), parse_model(&model, reader)?))
    });
    Some(entries.collect())
}

fn parse_model(model: &ConfigObject<'_>, reader: &mut EnvReader<'_>) -> Option<ModelConfig> {
    const FIELDS: [&str; 10] = [
        "provider",
        "model",
        "base_url",
        "api_key_env",
        "api",
        "context_window",
        "max_output",
        "thinking",
        "audio",
        "prices",
    ];
    model.reject_unknown_fields(reader, &FIELDS);
    let provider =
        model.required(reader, "provider", &Provider::names(), |value| Provider::from_name(value.as_str()?));
    let name = model.required(reader, "model", "the vendor's name of the model", non_blank_text);
    // The name becomes part of the URL, and must not lead to another address than the one that the key is for.
    let name = match provider {
        Some(Provider::Gemini) if name.as_deref().is_some_and(|name| !is_relative_path(name)) => model
            .required(reader, "model", "letters, digits, `.`, `_`, `-`, and `/` between them", |_| {
                None::<String>
            }),
        _ => name,
    };
    let window = model.required(reader, "context_window", "a whole number of tokens above zero", parse_count);
    let base = parse_base_url(model, reader, provider);
    let key = model.optional_secret(
        reader,
        "api_key_env",
        "`none`, or the name of a variable that ends in _API_KEY",
        parse_key,
    );
    if provider == Some(Provider::Scripted) {
        model.reject_field(reader, "base_url", "absent: the offline provider has no address");
        model.reject_field(reader, "api_key_env", "absent: the offline provider takes no key");
    }
    let api = parse_api(model, reader, provider);
    let audio = parse_audio(model, reader, provider, api);
    let listed = provider.zip(name.as_deref()).and_then(|(provider, name)| price_list::find(provider, name));
    let prices = parse_prices(model, reader, listed);
    let (provider, name, context_window) = (provider?, name?, window?);
    let max_output = parse_max_output(model, reader, provider.limits(&name).max_output, context_window);
    let thinking = parse_thinking(model, reader, provider, max_output)
        .unwrap_or_else(|| clamp_thinking(provider.thinking(&name), max_output));
    let key = key.unwrap_or(KeySource::Default);
    let takes_audio = audio.unwrap_or_else(|| provider.takes_audio(&name));
    Some(ModelConfig {
        provider,
        model: name,
        base_url: base,
        key,
        api,
        context_window,
        max_output,
        thinking,
        takes_audio,
        prices,
    })
}

fn parse_base_url(
    model: &ConfigObject<'_>,
    reader: &mut EnvReader<'_>,
    provider: Option<Provider>,
) -> Option<BaseUrl> {
    let base =
        model.optional_secret(reader, "base_url", BaseUrl::EXPECTED, |value| BaseUrl::parse(value.as_str()?));
    if provider == Some(Provider::OpenAiCompatible) && model.get("base_url").is_none() {
        reader.add_error(&model.path_of("base_url"), None, BaseUrl::EXPECTED);
    }
    base
}

fn parse_key(value: &Value) -> Option<KeySource> {
    match value.as_str()? {
        "none" => Some(KeySource::None),
        name => is_key_variable(name).then(|| KeySource::Variable(name.to_owned())),
    }
}

fn parse_api(model: &ConfigObject<'_>, reader: &mut EnvReader<'_>, provider: Option<Provider>) -> OpenAiApi {
    let api = model.optional(reader, "api", "chat or responses", |value| match value.as_str()? {
        "chat" => Some(OpenAiApi::Chat),
        "responses" => Some(OpenAiApi::Responses),
        _ => None,
    });
    if provider.is_some_and(|provider| provider != Provider::OpenAi) {
        model.reject_field(reader, "api", "absent: only the provider openai has more than one API");
    }
    api.unwrap_or(OpenAiApi::Chat)
}

/// Whether the model takes audio, if the configuration says so.
fn parse_audio(
    model: &ConfigObject<'_>,
    reader: &mut EnvReader<'_>,
    provider: Option<Provider>,
    api: OpenAiApi,
) -> Option<bool> {
    let has_audio = provider?.has_audio(api);
    let audio = model.optional(reader, "audio", "true or false", Value::as_bool);
    if !has_audio && audio == Some(true) {
        model.reject_field(
            reader,
            "audio",
            "false or absent: only gemini, openai-compatible, and openai with the api chat have audio",
        );
    }
    audio
}

/// The maximum number of output tokens. The default leaves at least half of the window to the prompt.
fn parse_max_output(model: &ConfigObject<'_>, reader: &mut EnvReader<'_>, default: u64, window: u64) -> u64 {
    let must_be = "a whole number of tokens above zero, less than `context_window`";
    let configured = model.optional(reader, "max_output", must_be, |value| {
        parse_count(value).filter(|tokens| *tokens < window)
    });
    configured.unwrap_or_else(|| default.min(window / 2).max(1))
}

fn parse_thinking(
    model: &ConfigObject<'_>,
    reader: &mut EnvReader<'_>,
    provider: Provider,
    max_output: u64,
) -> Option<Thinking> {
    let must_be = format!(
        "off, adaptive, effort, {{\"adaptive\": EFFORT}}, {{\"effort\": EFFORT}} or {{\"budget_tokens\": NUMBER}}: EFFORT is \
         low, medium, high, xhigh or max, NUMBER from {MIN_THINKING_TOKENS} to less than `max_output`"
    );
    if provider == Provider::Scripted {
        model.reject_field(
            reader,
            "thinking",
            "absent: the script decides whether the offline provider thinks",
        );
    }
    model.optional(reader, "thinking", &must_be, |value| match value {
        Value::String(name) => match name.as_str() {
            "off" => Some(Thinking::Off),
            "adaptive" => Some(Thinking::Adaptive(Effort::High)),
            "effort" => Some(Thinking::Effort(Effort::High)),
            _ => None,
        },
        Value::Object(fields) if fields.len() == 1 => {
            let effort = |value: &Value| serde_json::from_value(value.clone()).ok();
            let budget = |tokens: &u64| (MIN_THINKING_TOKENS..max_output).contains(tokens);
            match fields.iter().next()? {
                (field, value) if field == "adaptive" => effort(value).map(Thinking::Adaptive),
                (field, value) if field == "effort" => effort(value).map(Thinking::Effort),
                (field, value) if field == "budget_tokens" => {
                    parse_count(value).filter(budget).map(Thinking::Budget)
                }
                _ => None,
            }
        }
        _ => None,
    })
}

/// A thinking budget is part of the output tokens, so it must be smaller than their limit.
fn clamp_thinking(default: Thinking, max_output: u64) -> Thinking {
    match default {
        Thinking::Budget(tokens) if tokens < max_output => default,
        Thinking::Budget(_) if max_output / 2 >= MIN_THINKING_TOKENS => Thinking::Budget(max_output / 2),
        Thinking::Budget(_) => Thinking::Off,
        Thinking::Off | Thinking::Adaptive(_) | Thinking::Effort(_) => default,
    }
}

/// The JSON form of `thinking` that [`parse`] reads as this value.
pub(super) fn thinking_to_json(thinking: Thinking) -> Value {
    match thinking {
        Thinking::Off => Value::from("off"),
        Thinking::Budget(tokens) => serde_json::json!({"budget_tokens": tokens}),
        Thinking::Adaptive(effort) => serde_json::json!({"adaptive": effort}),
        Thinking::Effort(effort) => serde_json::json!({"effort": effort}),
    }
}

/// The prices of a model, `listed` if it is to have those of the price list. Tokens without a price cost nothing;
/// cached tokens without a price of their own cost as much as other prompt tokens.
fn parse_prices(
    model: &ConfigObject<'_>,
    reader: &mut EnvReader<'_>,
    listed: Option<Prices>,
) -> Option<Prices> {
    const LISTED: &str = "list";
    if model.get("prices").is_some_and(|value| value == LISTED) {
        let must_be = "an object with prices, because the price list does not have the model";
        return model.optional(reader, "prices", must_be, |_| listed);
    }
    let prices = model.child_object(reader, "prices", false)?;
    prices.reject_unknown_fields(reader, &["input", "output", "cache_read", "cache_write"]);
    let mut price = |field: &str| {
        let must_be = "a price in US dollars per million tokens, 0 or more";
        prices.optional(reader, field, must_be, |value| value.as_f64().filter(|price| *price >= 0.0))
    };
    let input = price("input").unwrap_or(0.0);
    Some(Prices {
        input,
        output: price("output").unwrap_or(0.0),
        cache_read: price("cache_read").unwrap_or(input),
        cache_write: price("cache_write").unwrap_or(input),
    })
}

fn parse_fallbacks(config: &ConfigObject<'_>, reader: &mut EnvReader<'_>, names: &[String]) -> Vec<String> {
    let must_be = "a list of names from `models`";
    let list = config.optional(reader, "fallbacks", must_be, |value| value.as_array().cloned());
    let mut fallbacks = Vec::new();
    for (index, value) in list.unwrap_or_default().iter().enumerate() {
        let fallback = known_model_name(value, names);
        if fallback.is_none() {
            let path = format!("{}[{index}]", config.path_of("fallbacks"));
            reader.add_error(&path, Some(display_value(value)), &one_of(names));
        }
        fallbacks.extend(fallback);
    }
    fallbacks
}

fn parse_retry(config: &ConfigObject<'_>, reader: &mut EnvReader<'_>) -> RetryPolicy {
    let default = RetryPolicy::default();
    let Some(retry) = config.child_object(reader, "retry", false) else { return default };
    retry.reject_unknown_fields(reader, &["max_attempts", "max_seconds"]);
    let attempts = retry.optional(reader, "max_attempts", "a whole number from 1 to 100", |value| {
        parse_count(value)
            .filter(|attempts| *attempts <= MAX_RETRY_ATTEMPTS)
            .and_then(|attempts| attempts.try_into().ok())
    });
    let elapsed = retry.optional(reader, "max_seconds", "a number of seconds from 0 to 3600", |value| {
        value
            .as_f64()
            .filter(|seconds| (0.0..=MAX_RETRY_SECONDS).contains(seconds))
            .map(Duration::from_secs_f64)
    });
    RetryPolicy {
        max_attempts: attempts.unwrap_or(default.max_attempts),
        max_elapsed: elapsed.unwrap_or(default.max_elapsed),
    }
}

fn parse_budgets(config: &ConfigObject<'_>, reader: &mut EnvReader<'_>) -> Budgets {
    let Some(budgets) = config.child_object(reader, "budgets", false) else { return Budgets::default() };
    budgets.reject_unknown_fields(reader, &["tokens_per_turn", "tokens_per_hour", "tokens_per_day"]);
    let mut budget = |field: &str| {
        budgets.optional(
            reader,
            field,
            "a whole number of tokens above zero, or absent for no limit",
            parse_count,
        )
    };
    Budgets {
        tokens_per_turn: budget("tokens_per_turn"),
        tokens_per_hour: budget("tokens_per_hour"),
        tokens_per_day: budget("tokens_per_day"),
    }
}

fn parse_caps(config: &ConfigObject<'_>, reader: &mut EnvReader<'_>) -> UsageLimits {
    const FIELDS: [&str; 4] = ["tokens_per_day", "tokens_per_task", "usd_per_day", "usd_per_task"];
    let Some(caps) = config.child_object(reader, "caps", false) else { return UsageLimits::default() };
    caps.reject_unknown_fields(reader, &FIELDS);
    let mut tokens = |field: &str| {
        let parse = |value: &Value| value.as_u64().filter(UsageLimits::is_valid_tokens);
        caps.optional(reader, field, UsageLimits::EXPECTED_TOKENS, parse)
    };
    let (tokens_per_day, tokens_per_task) = (tokens("tokens_per_day"), tokens("tokens_per_task"));
    let mut usd = |field: &str| {
        let parse = |value: &Value| value.as_f64().filter(UsageLimits::is_valid_usd);
        caps.optional(reader, field, UsageLimits::EXPECTED_USD, parse)
    };
    UsageLimits {
        tokens_per_day,
        tokens_per_task,
        usd_per_day: usd("usd_per_day"),
        usd_per_task: usd("usd_per_task"),
    }
}

/// The largest integer that every JSON reader, and SQLite, represents exactly.
const MAX_COUNT: u64 = 1 << 53;

fn parse_count(value: &Value) -> Option<u64> {
    value.as_u64().filter(|count| (1..=MAX_COUNT).contains(count))
}

/// Whether a text is a plain relative path.
fn is_relative_path(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_allowed))
}

fn non_blank_text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned)
}

/// An object of the configuration, with its path.
struct ConfigObject<'v> {
    path: String,
    fields: &'v Map<String, Value>,
}

impl<'v> ConfigObject<'v> {
    fn parse(reader: &mut EnvReader<'_>, path: String, value: &'v Value) -> Option<Self> {
        if let Value::Object(fields) = value {
            return Some(Self { path, fields });
        }
        reader.add_error(&path, Some(display_value(value)), "an object");
        None
    }

    /// The path of a field.
    fn path_of(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    fn field_names(&self) -> Vec<String> {
        self.fields.keys().cloned().collect()
    }

    /// The value of a field; `null` counts as absent.
    fn get(&self, field: &str) -> Option<&'v Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// Reports an error for each unknown field. The value is not shown: it may be a key in the wrong place.
    fn reject_unknown_fields(&self, reader: &mut EnvReader<'_>, known: &[&str]) {
        for field in self.fields.keys().filter(|field| !known.contains(&field.as_str())) {
            let must_be = format!("one of {}", known.join(", "));
            reader.add_error(&self.path_of(field), Some("not a field".into()), &must_be);
        }
    }

    fn reject_field(&self, reader: &mut EnvReader<'_>, field: &str, must_be: &str) {
        if self.get(field).is_some() {
            reader.add_error(&self.path_of(field), Some("set".into()), must_be);
        }
    }

    fn child_object(&self, reader: &mut EnvReader<'_>, field: &str, required: bool) -> Option<Self> {
        let value = self.get(field);
        if required && value.is_none() {
            reader.add_error(&self.path_of(field), None, "an object");
        }
        ConfigObject::parse(reader, self.path_of(field), value?)
    }

    fn optional<T>(
        &self,
        reader: &mut EnvReader<'_>,
        field: &str,
        must_be: &str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.get(field)?;
        let parsed = parse(value);
        if parsed.is_none() {
            reader.add_error(&self.path_of(field), Some(display_value(value)), must_be);
        }
        parsed
    }

    /// Like [`ConfigObject::optional`], for fields that may contain a secret by mistake.
    fn optional_secret<T>(
        &self,
        reader: &mut EnvReader<'_>,
        field: &str,
        must_be: &str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let parsed = parse(self.get(field)?);
        if parsed.is_none() {
            reader.add_error(&self.path_of(field), Some("***".into()), must_be);
        }
        parsed
    }

    fn required<T>(
        &self,
        reader: &mut EnvReader<'_>,
        field: &str,
        must_be: &str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        if self.get(field).is_none() {
            reader.add_error(&self.path_of(field), None, must_be);
        }
        self.optional(reader, field, must_be, parse)
    }
}

/// Formats a value for an error message.
fn display_value(value: &Value) -> String {
    const MAX_VALUE_CHARS: usize = 80;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    first_chars(&text, MAX_VALUE_CHARS).to_owned()
}

#[cfg(test)]
#[path = "../tests/unit/gateway_file.rs"]
mod tests;
