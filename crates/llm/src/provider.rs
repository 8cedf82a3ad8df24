//! The providers by name, and the known properties of their models.

use super::gateway_file::OpenAiApi;
use super::profile::{Effort, Thinking};

/// A provider, as named by `LLM_PROVIDER` and by a model's `provider` field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provider {
    /// Anthropic.
    Anthropic,
    /// OpenAI.
    OpenAi,
    /// Google's Gemini API.
    Gemini,
    /// Ollama, with its own protocol.
    Ollama,
    /// Any server that speaks OpenAI's Chat Completions.
    OpenAiCompatible,
    /// The offline provider.
    Scripted,
}

/// The token limits of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModelLimits {
    /// The context window in tokens, including the answer.
    pub(super) context_window: u64,
    /// The output limit in tokens.
    pub(super) max_output: u64,
}

/// The default thinking budget of models that take one, in tokens. An assumption: half of what an answer may have.
const DEFAULT_THINKING_BUDGET_TOKENS: u64 = 16_000;

impl Provider {
    /// All providers, from which names, keys and vendors are derived. A variant that is missing here is never
    /// constructed, which the compiler reports.
    pub(super) const ALL: [Self; 6] =
        [Self::Anthropic, Self::OpenAi, Self::Gemini, Self::Ollama, Self::OpenAiCompatible, Self::Scripted];

    /// Returns the names of all providers, for error messages: `a, b or c`.
    pub(super) fn names() -> String {
        let [others @ .., last] = Self::ALL.map(Self::name);
        format!("{} or {last}", others.join(", "))
    }

    /// Returns the vendors whose servers need a key. If `LLM_PROVIDER` is not set, the vendor with the only key
    /// that is set is used.
    pub(super) fn vendors() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|provider| provider.requires_key())
    }

    /// Returns the provider with this name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.name() == name)
    }

    /// The name of the provider.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
            Self::OpenAiCompatible => "openai-compatible",
            Self::Scripted => "scripted",
        }
    }

    /// Returns what the semantic conventions for traces call it (`gen_ai.provider.name`). A server that speaks the protocol
    /// of OpenAI counts as that.
    pub(super) const fn name_in_traces(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi | Self::OpenAiCompatible => "openai",
            Self::Gemini => "gcp.gemini",
            Self::Ollama => "ollama",
            Self::Scripted => "scripted",
        }
    }

    /// The variable that holds the provider's key, beside `LLM_API_KEY`; `None` if it takes none.
    pub(super) const fn key_variable(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("ANTHROPIC_API_KEY"),
            Self::OpenAi => Some("OPENAI_API_KEY"),
            Self::Gemini => Some("GEMINI_API_KEY"),
            Self::Ollama => Some("OLLAMA_API_KEY"),
            Self::OpenAiCompatible => Some("OPENAI_COMPATIBLE_API_KEY"),
            Self::Scripted => None,
        }
    }

    /// Returns the provider whose key this variable holds.
    pub(super) fn from_key_variable(variable: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.key_variable() == Some(variable))
    }

    /// Whether the vendor's own servers need a key. Local servers need none.
    pub(super) const fn requires_key(self) -> bool {
        match self {
            Self::Anthropic | Self::OpenAi | Self::Gemini => true,
            Self::Ollama | Self::OpenAiCompatible | Self::Scripted => false,
        }
    }

    /// The default model if `LLM_MODEL` is not set.
    pub(super) const fn default_model(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("claude-sonnet-4-5"),
            Self::OpenAi => Some("gpt-5"),
            Self::Gemini => Some("gemini-2.5-pro"),
            Self::Scripted => Some("scripted"),
            Self::Ollama | Self::OpenAiCompatible => None,
        }
    }

    /// The vendor's own address, in the form that its SDKs take; for Ollama its default local address.
    pub(super) const fn default_base_url(self) -> Option<&'static str> {
        match self {
            Self::Anthropic => Some("https://api.anthropic.com"),
            Self::OpenAi => Some("https://api.openai.com/v1"),
            Self::Gemini => Some("https://generativelanguage.googleapis.com"),
            Self::Ollama => Some("http://localhost:11434"),
            Self::OpenAiCompatible | Self::Scripted => None,
        }
    }

    /// The vendor's own servers, to which its key may be sent and no other vendor's.
    pub(super) fn own_servers(self) -> impl Iterator<Item = &'static str> {
        // Ollama's models can also be hosted by the vendor itself.
        let hosted = (self == Self::Ollama).then_some("https://ollama.com");
        self.default_base_url().into_iter().chain(hosted)
    }

    /// The limits of a model with this name, from the vendors' lists of models:
    /// <https://platform.claude.com/docs/en/about-claude/models/overview>,
    /// <https://platform.openai.com/docs/models>, <https://ai.google.dev/gemini-api/docs/models>. The output is
    /// limited to 32,000 tokens even if a model supports more. For a name in no list, both are assumptions.
    /// Underestimating a window causes an early compaction; overestimating it causes refused calls.
    pub(super) fn limits(self, model: &str) -> ModelLimits {
        // As in the vendor's SDKs, the model's name may include its collection.
        let model = model.strip_prefix("models/").unwrap_or(model);
        let families: &[(&str, u64, u64)] = match self {
            Self::Anthropic => &[
                ("claude-3-5", 200_000, 8_192),
                ("claude-3-7", 200_000, 32_000),
                ("claude-3", 200_000, 4_096),
            ],
            Self::OpenAi => &[
                ("gpt-3.5", 16_385, 4_096),
                ("gpt-4.1", 1_047_576, 32_000),
                ("gpt-4o", 128_000, 16_384),
                ("gpt-4-turbo", 128_000, 4_096),
                ("gpt-4", 8_192, 4_096),
                ("gpt-5-chat", 128_000, 16_384),
                ("gpt-audio", 128_000, 16_384),
                ("gpt-5", 400_000, 32_000),
            ],
            Self::Gemini => &[
                ("gemini-1", 1_000_000, 8_192),
                ("gemini-2.0", 1_048_576, 8_192),
                ("gemini", 1_048_576, 32_000),
            ],
            // An assumption: the window is a setting of the server. It truncates a prompt that is longer than the
            // window in the request.
            Self::Ollama => &[("", 32_768, 8_192)],
            Self::OpenAiCompatible | Self::Scripted => &[],
        };
        let known = families.iter().find(|(family, _, _)| model.starts_with(family));
        let (context_window, max_output) =
            known.map_or((200_000, 32_000), |(_, window, output)| (*window, *output));
        ModelLimits { context_window, max_output }
    }

    /// How a model with this name is asked to think. An unknown name is treated as a newer model of the vendor.
    ///
    /// Anthropic's models from Opus 4.6 and Sonnet 4.6 on decide for themselves, and later ones accept no budget
    /// at all: <https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking>. Gemini 2.5 takes a
    /// budget, Gemini 3 a level: <https://ai.google.dev/gemini-api/docs/thinking>. OpenAI's reasoning models take
    /// an effort: <https://platform.openai.com/docs/guides/reasoning>.
    pub(super) fn thinking(self, model: &str) -> Thinking {
        let model = model.strip_prefix("models/").unwrap_or(model);
        let is = |families: &[&str]| families.iter().any(|family| model.starts_with(family));
        match self {
            Self::Anthropic
                if is(&[
                    "claude-2",
                    "claude-instant",
                    "claude-3-5",
                    "claude-3-haiku",
                    "claude-3-opus",
                    "claude-3-sonnet",
                ]) =>
            {
                Thinking::Off
            }
            Self::Anthropic
                if is(&[
                    "claude-3-7",
                    "claude-sonnet-4-0",
                    "claude-sonnet-4-2",
                    "claude-sonnet-4-5",
                    "claude-opus-4-0",
                    "claude-opus-4-1",
                    "claude-opus-4-2",
                    "claude-opus-4-5",
                    "claude-haiku-4-5",
                ]) =>
            {
                Thinking::Budget(DEFAULT_THINKING_BUDGET_TOKENS)
            }
            // A proxy's own name for a model: most models take a budget.
            Self::Anthropic if !is(&["claude"]) => Thinking::Budget(DEFAULT_THINKING_BUDGET_TOKENS),
            Self::Anthropic => Thinking::Adaptive(Effort::High),
            // All other models refuse the option: <https://docs.ollama.com/capabilities/thinking>.
            Self::Ollama if is(&["qwen3", "gpt-oss", "deepseek-r1", "deepseek-v3.1", "magistral"]) => {
                Thinking::Adaptive(Effort::High)
            }
            Self::OpenAi if is(&["gpt-3.5", "gpt-4", "chatgpt", "gpt-5-chat", "gpt-audio"]) => Thinking::Off,
            Self::Gemini if is(&["gemini-1", "gemini-2.0", "gemma"]) => Thinking::Off,
            Self::Gemini if is(&["gemini-2.5"]) => Thinking::Budget(DEFAULT_THINKING_BUDGET_TOKENS),
            Self::OpenAi | Self::Gemini => Thinking::Effort(Effort::High),
            // It is unknown what such a server accepts.
            Self::Ollama | Self::OpenAiCompatible | Self::Scripted => Thinking::Off,
        }
    }

    /// Whether the protocol has audio. Which models take it is another question.
    pub(super) fn has_audio(self, api: OpenAiApi) -> bool {
        match self {
            Self::OpenAi => api == OpenAiApi::Chat,
            Self::OpenAiCompatible | Self::Gemini => true,
            Self::Anthropic | Self::Ollama | Self::Scripted => false,
        }
    }

    /// Whether a model with this name takes audio: Gemini's own models do, and those of OpenAI whose name says so
    /// (<https://platform.openai.com/docs/models>). It is unknown what other servers' models take.
    pub(super) fn takes_audio(self, model: &str) -> bool {
        match self {
            Self::OpenAi => model.contains("audio"),
            Self::Gemini => !model.strip_prefix("models/").unwrap_or(model).starts_with("gemma"),
            Self::Anthropic | Self::Ollama | Self::OpenAiCompatible | Self::Scripted => false,
        }
    }
}

/// Whether a variable's name allows it to hold a provider's key. The value of no other variable is ever sent.
pub(super) fn is_key_variable(variable: &str) -> bool {
    let stem = variable.strip_suffix("_API_KEY").unwrap_or_default();
    let is_allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    !stem.is_empty() && stem.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_provider_has_one_name_and_its_key_one_owner() {
        assert_eq!(Provider::names(), "anthropic, openai, gemini, ollama, openai-compatible or scripted");
        for provider in Provider::ALL {
            assert_eq!(Provider::from_name(provider.name()), Some(provider));
            // A vendor that is chosen by its key alone must work without any other setting.
            if provider.requires_key() {
                assert!(provider.key_variable().is_some(), "{provider:?}");
                assert!(provider.default_model().is_some(), "{provider:?}");
                assert!(provider.default_base_url().is_some(), "{provider:?}");
            }
            if let Some(variable) = provider.key_variable() {
                assert_eq!(Provider::from_key_variable(variable), Some(provider));
            }
        }
        assert_eq!(Provider::from_key_variable("LLM_API_KEY"), None);
    }

    /// A page of the documentation.
    fn page(name: &str) -> String {
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)).unwrap()
    }

    /// A list of names as pages show it: `a`, `b` and `c`.
    fn listed(names: &[&str], and: &str) -> String {
        let [others @ .., last] = names else { panic!("{names:?}") };
        let others: Vec<String> = others.iter().map(|name| format!("`{name}`")).collect();
        format!("{}{and}`{last}`", others.join(", "))
    }

    #[test]
    fn the_documentation_names_each_provider_its_key_and_its_defaults() {
        let assert_names = |name: &str, words: &[Option<&str>]| {
            for word in words.iter().flatten() {
                assert!(page(name).contains(&format!("`{word}`")), "docs/{name} does not name `{word}`");
            }
        };
        for provider in Provider::ALL {
            let (name, key, model) = (provider.name(), provider.key_variable(), provider.default_model());
            for table in ["models.md", "turn-options.md"] {
                let has_row = page(table).lines().any(|line| line.starts_with(&format!("| `{name}` |")));
                assert!(has_row, "docs/{table} has no row for `{name}` in its table of providers");
            }
            assert_names("configuration.md", &[model, provider.default_base_url()]);
            if provider.requires_key() {
                assert_names("api-notes.md", &[Some(name), key, model]);
                assert_names("../README.md", &[key]);
            }
        }
    }

    #[test]
    fn the_configuration_lists_all_providers_and_keys() {
        let keys: Vec<&str> = Provider::ALL.into_iter().filter_map(Provider::key_variable).collect();
        let vendors: Vec<&str> = Provider::vendors().filter_map(Provider::key_variable).collect();
        for (text, places) in [
            (format!("| `LLM_PROVIDER` | {} |", listed(&Provider::ALL.map(Provider::name), " or ")), 1),
            (format!("if exactly one of {} is |", listed(&vendors, " and ")), 1),
            // What `roundhouse up` passes on, and what engines read.
            (listed(&keys, ", "), 2),
        ] {
            let found = page("configuration.md").matches(&text).count();
            assert_eq!(found, places, "docs/configuration.md is to say in {places} places: {text}");
        }
    }

    #[test]
    fn each_model_is_asked_to_think_in_its_own_way() {
        let (adaptive, effort) = (Thinking::Adaptive(Effort::High), Thinking::Effort(Effort::High));
        for (provider, model, thinking) in [
            (Provider::Anthropic, "claude-3-5-sonnet-20241022", Thinking::Off),
            (
                Provider::Anthropic,
                "claude-3-7-sonnet-20250219",
                Thinking::Budget(DEFAULT_THINKING_BUDGET_TOKENS),
            ),
            (
                Provider::Anthropic,
                "claude-sonnet-4-20250514",
                Thinking::Budget(DEFAULT_THINKING_BUDGET_TOKENS),
            ),
            (Provider::Anthropic, "claude-sonnet-4-5", Thinking::Budget(DEFAULT_THINKING_BUDGET_TOKENS)),
            (
                Provider::Anthropic,
                "claude-opus-4-1-20250805",
                Thinking::Budget(DEFAULT_THINKING_BUDGET_TOKENS),
            ),
            (
                Provider::Anthropic,
                "claude-haiku-4-5-20251001",
                Thinking::Budget(DEFAULT_THINKING_BUDGET_TOKENS),
            ),
            (Provider::Anthropic, "claude-sonnet-4-6", adaptive),
            (Provider::Anthropic, "claude-opus-4-7", adaptive),
            (Provider::Anthropic, "claude-of-the-future", adaptive),
            (Provider::Anthropic, "our-own-name", Thinking::Budget(DEFAULT_THINKING_BUDGET_TOKENS)),
            (Provider::OpenAi, "gpt-4o-mini", Thinking::Off),
            (Provider::OpenAi, "gpt-audio-mini", Thinking::Off),
            (Provider::OpenAi, "o3", effort),
            (Provider::OpenAi, "gpt-5", effort),
            (Provider::Gemini, "gemini-2.0-flash", Thinking::Off),
            (Provider::Gemini, "gemini-2.5-flash", Thinking::Budget(DEFAULT_THINKING_BUDGET_TOKENS)),
            (Provider::Gemini, "gemini-3-pro-preview", effort),
            (Provider::Ollama, "qwen3", adaptive),
            (Provider::Scripted, "scripted", Thinking::Off),
        ] {
            assert_eq!(provider.thinking(model), thinking, "{model}");
        }
    }

    #[test]
    fn the_name_of_a_model_says_whether_it_takes_audio() {
        for (provider, model, expected) in [
            (Provider::OpenAi, "gpt-4o-audio-preview-2025-06-03", true),
            (Provider::OpenAi, "gpt-audio-mini", true),
            (Provider::OpenAi, "gpt-4o", false),
            (Provider::Gemini, "gemini-2.5-pro", true),
            (Provider::Gemini, "models/gemini-flash-latest", true),
            (Provider::Gemini, "models/gemma-3-27b-it", false),
            (Provider::OpenAiCompatible, "qwen2-audio", false),
            (Provider::Anthropic, "claude-sonnet-4-5", false),
            (Provider::Ollama, "qwen3", false),
        ] {
            assert_eq!(provider.takes_audio(model), expected, "{model}");
        }
    }

    #[test]
    fn an_answer_fits_into_its_models_window() {
        for (provider, model, context_window, max_output) in [
            (Provider::Anthropic, "claude-sonnet-4-5", 200_000, 32_000),
            (Provider::Anthropic, "claude-3-haiku-20240307", 200_000, 4_096),
            (Provider::OpenAi, "gpt-5-mini", 400_000, 32_000),
            (Provider::OpenAi, "gpt-4", 8_192, 4_096),
            (Provider::OpenAi, "gpt-audio", 128_000, 16_384),
            (Provider::Gemini, "gemini-2.5-pro", 1_048_576, 32_000),
            (Provider::Ollama, "qwen3", 32_768, 8_192),
            (Provider::OpenAiCompatible, "any", 200_000, 32_000),
        ] {
            assert_eq!(provider.limits(model), ModelLimits { context_window, max_output }, "{model}");
        }
    }
}
