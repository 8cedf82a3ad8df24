//! The wire protocols between engine and provider.

use mock_llm::MockProvider;
use serde_json::{Value, json};

/// A provider's wire protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions.
    Openai,
    /// OpenAI Responses.
    Responses,
    /// Gemini.
    Gemini,
    /// Ollama's native chat API.
    Ollama,
}

impl Wire {
    /// All protocols, as many as the provider speaks.
    pub const ALL: [Self; mock_llm::Wire::COUNT] =
        [Self::Anthropic, Self::Openai, Self::Responses, Self::Gemini, Self::Ollama];

    /// Returns the protocol's name on the command line and in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::Openai => "openai",
            Self::Responses => "responses",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
        }
    }

    /// Returns the name of the counter for kills in an open turn.
    pub(crate) fn kills_in_open_turns(self) -> String {
        format!("kills in an open turn, {}", self.name())
    }

    /// Returns the configured model name.
    const fn model_name(self) -> &'static str {
        match self {
            Self::Anthropic => "claude-sonnet-4-5",
            Self::Openai | Self::Responses => "gpt-5",
            // The provider accepts requests with older models even if signatures are missing.
            Self::Gemini => "gemini-3-pro",
            Self::Ollama => "qwen3",
        }
    }

    /// Returns the engine's environment variables for `provider`.
    pub(crate) fn env_vars(self, provider: &MockProvider) -> [(&'static str, String); 4] {
        let (vendor, base) = match self {
            Self::Openai | Self::Responses => ("openai", provider.openai_base_url()),
            Self::Anthropic => (self.name(), provider.base_url()),
            Self::Gemini => (self.name(), provider.gemini_base_url()),
            Self::Ollama => (self.name(), provider.ollama_base_url()),
        };
        [
            ("LLM_PROVIDER", vendor.to_owned()),
            ("LLM_MODEL", self.model_name().to_owned()),
            ("LLM_BASE_URL", base),
            ("LLM_API_KEY", "provider-key".to_owned()),
        ]
    }

    /// Returns the content of `gateway.json`, if environment variables cannot select this protocol.
    pub(crate) fn gateway_config(self) -> Option<Value> {
        let model = json!({
            "provider": "openai", "api": "responses", "model": self.model_name(), "context_window": 400_000,
        });
        (self == Self::Responses).then(|| json!({"models": {"main": model}, "default": "main"}))
    }
}
