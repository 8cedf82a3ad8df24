//! Which model the environment names.
//!
//! A configuration that cannot work does not stop an engine: it starts, says what to set, and its turns end in
//! an error that says the same. So what is wrong here is a reason, not a fault.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use secrecy::SecretString;
use service::env::{Env, Faults, Reader};

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
    const fn key_variable(self) -> &'static str {
        match self {
            Self::Anthropic => "ANTHROPIC_API_KEY",
            Self::OpenAi => "OPENAI_API_KEY",
            Self::OpenAiCompatible => "OPENAI_COMPATIBLE_API_KEY",
            // It needs none.
            Self::Scripted => "LLM_API_KEY",
        }
    }

    /// The model where `LLM_MODEL` names none.
    const fn default_model(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("claude-sonnet-4-5"),
            Self::OpenAi => Some("gpt-5"),
            Self::OpenAiCompatible | Self::Scripted => None,
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

/// Why no model can be used, and what to set: all of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NotConfigured(Faults);

impl NotConfigured {
    /// Each fault.
    pub const fn faults(&self) -> &Faults {
        &self.0
    }
}

impl fmt::Display for NotConfigured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&faults.join("; "))
    }
}

impl From<NotConfigured> for ModelError {
    fn from(reason: NotConfigured) -> Self {
        Self::new(ModelErrorKind::NotConfigured, reason.to_string())
    }
}

/// The model that `env` names.
///
/// # Errors
/// Why none can be used.
pub fn model(env: &dyn Env) -> Result<Arc<dyn ChatModel>, NotConfigured> {
    let mut reader = Reader::new(env);
    let model = match provider(&mut reader) {
        Some(Provider::Scripted) => scripted(&mut reader),
        Some(provider) => remote(&mut reader, provider),
        None => None,
    };
    reader.finish(model).map_err(NotConfigured)
}

fn scripted(reader: &mut Reader<'_>) -> Option<Arc<dyn ChatModel>> {
    let name = reader.text("LLM_MODEL").unwrap_or_else(|| "scripted".to_owned());
    let path = reader.text("LLM_SCRIPT_PATH");
    let script = match &path {
        Some(path) => Script::load(Path::new(path)),
        None => Script::built_in(),
    };
    match script {
        Ok(script) => Some(Arc::new(Scripted::new(name, script))),
        Err(error) => {
            reader.fault("LLM_SCRIPT_PATH", path, &format!("a script of rules, but {error}"));
            None
        }
    }
}

fn remote(reader: &mut Reader<'_>, provider: Provider) -> Option<Arc<dyn ChatModel>> {
    let name = match (reader.text("LLM_MODEL"), provider.default_model()) {
        (None, Some(default)) => Some(default.to_owned()),
        _ => reader.required("LLM_MODEL", "the model's name", |text| Some(text.to_owned())),
    };
    let address = |text: &str| {
        let known = text.starts_with("http://") || text.starts_with("https://");
        known.then(|| text.to_owned())
    };
    let must_be = "the provider's address, which begins with http:// or https://";
    let base = match (reader.text("LLM_BASE_URL"), provider.default_base()) {
        (None, Some(default)) => Some(default.to_owned()),
        _ => reader.required("LLM_BASE_URL", must_be, address),
    };
    let own = provider.key_variable();
    let key = match reader.text(own).or_else(|| reader.text("LLM_API_KEY")) {
        Some(key) => Some(key),
        // Local servers take any key, so none need be set for them.
        None if provider == Provider::OpenAiCompatible => Some("none".to_owned()),
        None => reader.required_secret(own, "the provider's key (or LLM_API_KEY is)", |_| None),
    };
    let (name, base, key) = (name?, base?, SecretString::from(key?));
    Some(match provider {
        Provider::Anthropic => Arc::new(Anthropic::new(&base, name, key)),
        Provider::OpenAi | Provider::OpenAiCompatible | Provider::Scripted => {
            Arc::new(OpenAi::new(&base, name, key))
        }
    })
}

/// `LLM_PROVIDER`, or the one provider whose key is set.
fn provider(reader: &mut Reader<'_>) -> Option<Provider> {
    const NAMES: &str = "anthropic, openai, openai-compatible or scripted";
    if reader.text("LLM_PROVIDER").is_some() {
        return reader.required("LLM_PROVIDER", NAMES, Provider::from_name);
    }
    let vendors = [Provider::Anthropic, Provider::OpenAi];
    let with_key: Vec<Provider> =
        vendors.into_iter().filter(|vendor| reader.text(vendor.key_variable()).is_some()).collect();
    let must_be = match *with_key {
        [only] => return Some(only),
        [] => NAMES.to_owned(),
        _ => {
            let keys: Vec<&str> = with_key.iter().map(|vendor| vendor.key_variable()).collect();
            format!("{NAMES}, since {} are set", keys.join(" and "))
        }
    };
    reader.fault("LLM_PROVIDER", None, &must_be);
    None
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
            (
                &[("ANTHROPIC_API_KEY", "hunter2"), ("OPENAI_API_KEY", "k")],
                "ANTHROPIC_API_KEY and OPENAI_API_KEY",
            ),
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
