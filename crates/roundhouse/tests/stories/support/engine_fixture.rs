//! An engine with a mock provider, whose answers the stories script and whose requests they inspect.

use std::time::Duration;

use mock_llm::{CapturedRequest, Gate, MockProvider, Reply};
use rustix::process::Signal;
use serde_json::json;

use super::{Engine, Fleet, Program, RunningUp, StandaloneEngine, processes, with_deadline};

/// The provider protocols that stories run with.
pub(crate) const WIRES: [&str; 2] = ["anthropic", "openai"];

/// A picture of one pixel, a PNG in base64.
pub(crate) const PNG_BASE64: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

/// A running engine and its mock provider.
pub(crate) struct EngineFixture {
    pub(crate) provider: MockProvider,
    pub(crate) setup: StandaloneEngine,
    pub(crate) program: Program,
    pub(crate) engine: Engine,
}

/// An engine of a fleet, as a product reaches it through the orchestrator.
pub(crate) struct ProxiedEngine {
    pub(crate) provider: MockProvider,
    /// The engine itself.
    pub(crate) engine: Engine,
    /// The address of the engine at the orchestrator.
    pub(crate) url: String,
    /// The product's key.
    pub(crate) key: String,
    _fleet: Fleet,
    _up: RunningUp,
}

impl ProxiedEngine {
    pub(crate) async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let provider = mock_provider().await;
        provider.enqueue_all(replies);
        let fleet = Fleet::new().with_provider(&provider);
        let up = fleet.start_up().await;
        let product = up.product();
        let engine = product.engine("ada").await;
        let url = format!("{}/engines/ada/proxy", product.base);
        Self { provider, engine, url, key: product.key, _fleet: fleet, _up: up }
    }
}

/// A provider that refuses what its vendor would refuse, including thinking blocks in the wrong position.
async fn mock_provider() -> MockProvider {
    MockProvider::builder().bind_thinking(true).start().await.unwrap()
}

impl EngineFixture {
    /// An engine that uses Anthropic's protocol.
    pub(crate) async fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::for_wire("anthropic", replies).await
    }

    /// An engine that uses the protocol `wire`.
    pub(crate) async fn for_wire(wire: &str, replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::with_setup(wire, replies, |setup| setup).await
    }

    /// An engine whose setup is changed by `configure` before the start.
    pub(crate) async fn with_setup(
        wire: &str,
        replies: impl IntoIterator<Item = Reply>,
        configure: impl FnOnce(StandaloneEngine) -> StandaloneEngine,
    ) -> Self {
        let provider = mock_provider().await;
        provider.enqueue_all(replies);
        let setup = configure(StandaloneEngine::new().with_provider(wire, &provider));
        let (program, engine) = setup.start().await;
        Self { provider, setup, program, engine }
    }

    /// An engine with these models, one of each wire and of each form of a wire; the first one is the default.
    pub(crate) async fn with_models(
        names: &[&str],
        replies: impl IntoIterator<Item = Reply>,
        configure: impl FnOnce(StandaloneEngine) -> StandaloneEngine,
    ) -> Self {
        let provider = mock_provider().await;
        provider.enqueue_all(replies);
        let mut gateway = json!({"models": {}, "default": names[0]});
        for &name in names {
            let (vendor, base, model) = match name {
                "anthropic" => (name, provider.base_url(), "claude-sonnet-4-5"),
                "openai" => (name, provider.openai_base_url(), "gpt-4o"),
                "openai-audio" => ("openai", provider.openai_base_url(), "gpt-audio"),
                "responses" => ("openai", provider.openai_base_url(), "gpt-5-mini"),
                "gemini" => (name, provider.gemini_base_url(), "gemini-3-pro"),
                "gemini-2" => ("gemini", provider.gemini_base_url(), "gemini-2.5-flash"),
                "ollama" => (name, provider.ollama_base_url(), "qwen3"),
                "compatible" | "compatible-audio" => {
                    ("openai-compatible", provider.openai_base_url(), "local")
                }
                _ => panic!("no model has the name {name:?}"),
            };
            gateway["models"][name] =
                json!({"provider": vendor, "model": model, "base_url": base, "context_window": 200_000});
            match name {
                "responses" => gateway["models"][name]["api"] = "responses".into(),
                "compatible-audio" => gateway["models"][name]["audio"] = true.into(),
                _ => {}
            }
        }
        let keys = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"];
        let setup = StandaloneEngine::new().with_catalog_file("gateway.json", &gateway.to_string());
        let setup = keys.into_iter().fold(setup, |setup, key| setup.with_env(key, format!("of {key}")));
        let setup = configure(setup);
        let (program, engine) = setup.start().await;
        Self { provider, setup, program, engine }
    }

    /// Ends the engine with SIGKILL and starts it again.
    pub(crate) async fn kill_and_start(self) -> Self {
        let Self { provider, setup, program, .. } = self;
        program.signal_and_wait(Signal::KILL).await;
        let (program, engine) = setup.start().await;
        Self { provider, setup, program, engine }
    }

    /// Sends a request, ends the engine with SIGKILL `delay` later and starts it again. Returns whether a success was
    /// answered before.
    pub(crate) async fn kill_during(self, request: reqwest::RequestBuilder, delay: Duration) -> (Self, bool) {
        let Self { provider, setup, program, .. } = self;
        let pid = program.pid();
        let kill = tokio::task::spawn_blocking(move || {
            #[expect(
                clippy::disallowed_methods,
                reason = "a timer of the runtime is coarser than many a request"
            )]
            std::thread::sleep(delay);
            processes::signal(pid, Signal::KILL);
        });
        let answer = with_deadline("the request ends", request.send()).await;
        kill.await.unwrap();
        assert_eq!(program.wait().await.code, None);
        let (program, engine) = setup.start().await;
        let is_acknowledged = answer.is_ok_and(|answer| answer.status().is_success());
        (Self { provider, setup, program, engine }, is_acknowledged)
    }

    /// Stops the engine as an orchestrator does and starts it again.
    pub(crate) async fn stop_and_start(self) -> Self {
        let Self { provider, setup, program, .. } = self;
        program.signal_and_wait(Signal::TERM).await.assert_success();
        let (program, engine) = setup.start().await;
        Self { provider, setup, program, engine }
    }

    /// The number of model calls.
    pub(crate) fn model_calls(&self) -> usize {
        self.provider.requests().len()
    }

    /// The messages of the last model call.
    pub(crate) fn last_messages(&self) -> ModelMessages {
        ModelMessages::from_request(self.provider.requests().last().expect("the model was called"))
    }

    /// The messages of all model calls.
    pub(crate) fn all_messages(&self) -> Vec<ModelMessages> {
        self.provider.requests().iter().map(ModelMessages::from_request).collect()
    }
}

/// The messages of a request to the model, as JSON text.
#[derive(Debug)]
pub(crate) struct ModelMessages(pub(crate) String);

impl ModelMessages {
    fn from_request(request: &CapturedRequest) -> Self {
        let mut named = ["messages", "contents", "input"].iter().filter_map(|name| request.body.get(name));
        let messages =
            named.next().unwrap_or_else(|| panic!("which member has the messages of {request:?}?"));
        Self(messages.to_string())
    }

    /// Asserts that they contain all of `words`, in this order.
    #[track_caller]
    pub(crate) fn assert_contains(&self, words: &[&str]) -> &Self {
        let mut rest = self.0.as_str();
        for word in words {
            let found = rest.find(word);
            let at = found
                .unwrap_or_else(|| panic!("{word:?} of {words:?} is missing or out of order: {}", self.0));
            rest = &rest[at + word.len()..];
        }
        self
    }

    /// Asserts that they contain none of `words`.
    #[track_caller]
    pub(crate) fn assert_lacks(&self, words: &[&str]) -> &Self {
        for word in words {
            assert!(!self.0.contains(word), "{word:?} is in: {}", self.0);
        }
        self
    }
}

/// Tool calls that a model can add to the end of an answer.
pub(crate) trait ReplyExt: Sized {
    /// Sets a value in working memory.
    fn memory_set(self, key: &str, value: &str) -> Self;
    /// Writes a file, which needs approval.
    fn write_file(self, path: &str) -> Self;
    /// Asks the user.
    fn ask_user(self, question: &str) -> Self;
}

impl ReplyExt for Reply {
    fn memory_set(self, key: &str, value: &str) -> Self {
        self.tool_use("working_memory_set", json!({"key": key, "value": value}))
    }

    fn write_file(self, path: &str) -> Self {
        self.tool_use("write_file", json!({"path": path, "content": format!("This is {path}.")}))
    }

    fn ask_user(self, question: &str) -> Self {
        self.tool_use("ask_user", json!({"question": question}))
    }
}

/// The model sets a value in working memory.
pub(crate) fn memory_set_reply(key: &str, value: &str) -> Reply {
    Reply::new().memory_set(key, value)
}

/// The model writes a file, which needs approval.
pub(crate) fn write_file_reply(path: &str) -> Reply {
    Reply::new().write_file(path)
}

/// The model asks the user.
pub(crate) fn ask_user_reply(text: &str) -> Reply {
    Reply::new().ask_user(text)
}

/// Waits until an answer of the model has reached the gate.
pub(crate) async fn wait_gate_reached(gate: &Gate) {
    with_deadline("the model's answer is held", gate.reached()).await;
}

/// Waits until no client reads an answer of the model any more.
pub(crate) async fn wait_provider_idle(provider: &MockProvider) {
    with_deadline("no client reads from the model", provider.wait_until_idle()).await;
}
