//! The mock model provider, on a runtime of its own, and the protocols that it speaks.

use anyhow::{Context as _, bail};
use mock_llm::{CapturedRequest, MockProvider, Reply};
use tokio::runtime::{Builder, Runtime};

/// A vendor protocol that the engine speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Anthropic,
    OpenAi,
    Responses,
    Gemini,
    Ollama,
}

/// The model name in the configuration of every engine.
pub(crate) const MODEL_NAME: &str = "gemini-3-bench";

impl Wire {
    /// All protocols, as many as the provider speaks.
    pub(crate) const ALL: [Self; mock_llm::Wire::COUNT] =
        [Self::Anthropic, Self::OpenAi, Self::Responses, Self::Gemini, Self::Ollama];

    /// Returns the protocol's name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::Responses => "openai responses",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
        }
    }

    /// Returns the value of `LLM_PROVIDER` that selects this protocol.
    pub(crate) const fn provider_name(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi | Self::Responses => "openai",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
        }
    }

    /// Returns the path and query of a request.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Anthropic => "/v1/messages",
            Self::OpenAi => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Gemini => "/v1beta/models/gemini-3-bench:streamGenerateContent?alt=sse",
            Self::Ollama => "/api/chat",
        }
    }
}

/// A running mock provider that gives one reply to every request.
pub(crate) struct FixedReplyProvider {
    provider: MockProvider,
    runtime: Option<Runtime>,
}

impl FixedReplyProvider {
    /// Starts the provider on a thread that nothing else uses.
    pub(crate) async fn start(reply: Reply) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let started = runtime.spawn(MockProvider::builder().panic_on_refusals(false).start()).await;
        let provider =
            started.context("the provider's thread panicked")?.context("the provider cannot be started")?;
        provider.set_default_reply(reply);
        Ok(Self { provider, runtime: Some(runtime) })
    }

    /// Returns the provider's address, `http://HOST:PORT`.
    pub(crate) fn base_url(&self) -> String {
        self.provider.base_url()
    }

    /// Returns the value of `LLM_BASE_URL` for `wire`.
    pub(crate) fn llm_base_url(&self, wire: Wire) -> String {
        match wire {
            Wire::Anthropic => self.provider.base_url(),
            Wire::OpenAi | Wire::Responses => self.provider.openai_base_url(),
            Wire::Gemini => self.provider.gemini_base_url(),
            Wire::Ollama => self.provider.ollama_base_url(),
        }
    }

    /// Queues replies for the next requests; after them, requests get the default reply again.
    pub(crate) fn enqueue_all(&self, replies: Vec<Reply>) {
        self.provider.enqueue_all(replies);
    }

    /// Returns the newest recorded request.
    pub(crate) fn last_request(&self) -> anyhow::Result<CapturedRequest> {
        self.provider.requests().pop().context("no request has reached the provider")
    }

    /// Clears the recorded requests.
    ///
    /// # Errors
    /// The provider refused one of them because it violated the protocol.
    pub(crate) fn check_and_clear(&self) -> anyhow::Result<()> {
        self.provider.clear_requests();
        match self.provider.take_refusals().first() {
            None => Ok(()),
            Some(refusal) => bail!("the provider refused a request: {} {}", refusal.status, refusal.reason),
        }
    }
}

impl Drop for FixedReplyProvider {
    fn drop(&mut self) {
        // Dropping a runtime blocks on its tasks, which panics inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
