//! Which model the environment names.
//!
//! A configuration that cannot work does not stop an engine: it starts, says what to set, and its turns end in
//! an error that says the same. So what is wrong here is a reason, not a fault.

use std::path::PathBuf;
use std::sync::Arc;

use secrecy::SecretString;
use service::env::Env;

use super::anthropic::Anthropic;
use super::openai::OpenAi;
use super::scripted::{Script, Scripted};
use super::{ChatModel, ModelError, ModelErrorKind};

/// The providers by the names that `LLM_PROVIDER` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provider {
    Anthropic,
    OpenAi,
    OpenAiCompatible,
    Scripted,
}

const NAMES: &str = "anthropic, openai, openai-compatible or scripted";

impl Provider {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "anthropic" => Self::Anthropic,
            "openai" => Self::OpenAi,
            "openai-compatible" => Self::OpenAiCompatible,
            "scripted" => Self::Scripted,
            _ => return None,
        })
    }

    /// The variable that holds this provider's key, beside `LLM_API_KEY`.
    const fn key_variable(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("ANTHROPIC_API_KEY"),
            Self::OpenAi => Some("OPENAI_API_KEY"),
            Self::OpenAiCompatible => Some("OPENAI_COMPATIBLE_API_KEY"),
            Self::Scripted => None,
        }
    }

    /// The model where `LLM_MODEL` names none.
    const fn default_model(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("claude-sonnet-4-5"),
            Self::OpenAi => Some("gpt-5"),
            Self::OpenAiCompatible => None,
            Self::Scripted => Some("scripted"),
        }
    }

    /// The vendor's own address, as its SDKs take it.
    const fn default_base(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("https://api.anthropic.com"),
            Self::OpenAi => Some("https://api.openai.com/v1"),
            Self::OpenAiCompatible | Self::Scripted => None,
        }
    }
}

/// Why no model can be used, and what to set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotConfigured(String);

impl From<NotConfigured> for ModelError {
    fn from(reason: NotConfigured) -> Self {
        Self::new(ModelErrorKind::NotConfigured, reason.0)
    }
}

/// The model that `env` names.
///
/// # Errors
/// Why none can be used.
pub fn model(env: &dyn Env) -> Result<Arc<dyn ChatModel>, NotConfigured> {
    let get = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let provider = provider(&get)?;
    let missing = |name: &str, what: &str| {
        NotConfigured(format!("{name} is not set: it must be {what} (provider {})", name_of(provider)))
    };
    let model = get("LLM_MODEL")
        .or_else(|| provider.default_model().map(str::to_owned))
        .ok_or_else(|| missing("LLM_MODEL", "the model's name"))?;
    if provider == Provider::Scripted {
        let script = match get("LLM_SCRIPT_PATH") {
            Some(path) => {
                Script::load(&PathBuf::from(path)).map_err(|error| NotConfigured(error.to_string()))?
            }
            None => Script::built_in().map_err(|error| NotConfigured(error.to_string()))?,
        };
        return Ok(Arc::new(Scripted::new(model, script)));
    }
    let base = get("LLM_BASE_URL")
        .or_else(|| provider.default_base().map(str::to_owned))
        .ok_or_else(|| missing("LLM_BASE_URL", "the address of the provider, such as http://host:port/v1"))?;
    if !base.starts_with("http://") && !base.starts_with("https://") {
        return Err(NotConfigured(format!(
            "LLM_BASE_URL is `{base}`: it must begin with http:// or https://"
        )));
    }
    let own = provider.key_variable().unwrap_or("LLM_API_KEY");
    let key = get(own).or_else(|| get("LLM_API_KEY"));
    // Local servers take any key, so none need be set for them.
    let key = key.or_else(|| (provider == Provider::OpenAiCompatible).then(|| "none".to_owned()));
    let key = SecretString::from(key.ok_or_else(|| missing(own, "the provider's key"))?);
    Ok(match provider {
        Provider::Anthropic => Arc::new(Anthropic::new(&base, model, key)),
        Provider::OpenAi | Provider::OpenAiCompatible | Provider::Scripted => {
            Arc::new(OpenAi::new(&base, model, key))
        }
    })
}

/// `LLM_PROVIDER`, or the one provider whose key is set.
fn provider(get: &dyn Fn(&str) -> Option<String>) -> Result<Provider, NotConfigured> {
    if let Some(name) = get("LLM_PROVIDER") {
        return Provider::from_name(&name)
            .ok_or_else(|| NotConfigured(format!("LLM_PROVIDER is `{name}`: it must be {NAMES}")));
    }
    let has_key = |provider: &Provider| provider.key_variable().is_some_and(|name| get(name).is_some());
    let mut with_key = [Provider::Anthropic, Provider::OpenAi].into_iter().filter(has_key);
    match (with_key.next(), with_key.next()) {
        (Some(only), None) => Ok(only),
        (Some(_), Some(_)) => Err(NotConfigured(format!(
            "LLM_PROVIDER is not set and the keys of several providers are: it must be {NAMES}"
        ))),
        (None, _) => Err(NotConfigured(format!("LLM_PROVIDER is not set: it must be {NAMES}"))),
    }
}

const fn name_of(provider: Provider) -> &'static str {
    match provider {
        Provider::Anthropic => "anthropic",
        Provider::OpenAi => "openai",
        Provider::OpenAiCompatible => "openai-compatible",
        Provider::Scripted => "scripted",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn chosen(pairs: &[(&str, &str)]) -> Result<String, String> {
        let env: BTreeMap<String, String> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        model(&env).map(|model| model.name().to_owned()).map_err(|reason| reason.to_string())
    }

    #[test]
    fn a_complete_configuration_is_taken() {
        for (pairs, name) in [
            (&[("LLM_PROVIDER", "scripted")][..], "scripted"),
            (&[("LLM_PROVIDER", "anthropic"), ("LLM_API_KEY", "k"), ("LLM_MODEL", "m")], "m"),
            (&[("ANTHROPIC_API_KEY", "k")], "claude-sonnet-4-5"),
            (&[("OPENAI_API_KEY", "k"), ("LLM_MODEL", "m")], "m"),
            (
                &[("LLM_PROVIDER", "openai-compatible"), ("LLM_BASE_URL", "http://h/v1"), ("LLM_MODEL", "m")],
                "m",
            ),
        ] {
            assert_eq!(chosen(pairs), Ok(name.to_owned()));
        }
    }

    #[test]
    fn what_is_missing_is_named_and_no_key_is_shown() {
        for (pairs, named) in [
            (&[][..], "LLM_PROVIDER is not set"),
            (&[("LLM_PROVIDER", "clippy")], "LLM_PROVIDER is `clippy`"),
            (&[("LLM_PROVIDER", "anthropic")], "ANTHROPIC_API_KEY is not set"),
            (&[("LLM_PROVIDER", "openai")], "OPENAI_API_KEY is not set"),
            (&[("ANTHROPIC_API_KEY", "hunter2"), ("OPENAI_API_KEY", "k")], "several"),
            (&[("LLM_PROVIDER", "openai-compatible"), ("LLM_MODEL", "m")], "LLM_BASE_URL is not set"),
            (&[("LLM_PROVIDER", "openai-compatible"), ("LLM_BASE_URL", "http://h")], "LLM_MODEL is not set"),
            (&[("OPENAI_API_KEY", "hunter2"), ("LLM_BASE_URL", "ftp://h")], "LLM_BASE_URL is `ftp://h`"),
            (&[("LLM_PROVIDER", "scripted"), ("LLM_SCRIPT_PATH", "/nowhere.yaml")], "/nowhere.yaml"),
        ] {
            let reason = chosen(pairs).unwrap_err();
            assert!(reason.contains(named) && !reason.contains("hunter2"), "{reason}");
        }
    }
}
