//! The handle through which a test scripts and observes the provider.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::cache::CacheStats;
use crate::captured::{CapturedRequest, RefusedRequest, Wire};
use crate::protocol::{AcceptedKeys, Settings};
use crate::reply::Reply;
use crate::server;
use crate::shared::{Responder, Shared};

/// A running provider. Dropping it stops the server, and panics if there are refusals that the test has not taken
/// with [`Self::take_refusals`].
#[derive(Debug)]
pub struct MockProvider {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
    panics_on_refusals: bool,
}

/// Settings of a provider, see [`MockProvider::builder`].
#[derive(Debug)]
pub struct MockProviderBuilder {
    port: u16,
    settings: Settings,
    panics_on_refusals: bool,
}

impl MockProvider {
    /// Starts a provider on a free port of the loopback interface.
    pub async fn start() -> io::Result<Self> {
        Self::builder().start().await
    }

    /// Returns a builder with the default settings.
    pub fn builder() -> MockProviderBuilder {
        MockProviderBuilder { port: 0, settings: Settings::default(), panics_on_refusals: true }
    }

    /// The address without a path, `http://127.0.0.1:PORT`. It is the base URL for Anthropic's and Gemini's
    /// clients and the host for Ollama's.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The base URL for OpenAI's clients, for both of its wires: [`Self::base_url`] and `/v1`.
    pub fn openai_base_url(&self) -> String {
        format!("{}/v1", self.base_url())
    }

    /// The base URL for Gemini's clients, which append `/v1beta`.
    pub fn gemini_base_url(&self) -> String {
        self.base_url()
    }

    /// The host for Ollama's clients, which append `/api`.
    pub fn ollama_base_url(&self) -> String {
        self.base_url()
    }

    /// The base URL for a wire's clients.
    pub fn base_url_for(&self, wire: Wire) -> String {
        match wire {
            Wire::AnthropicMessages => self.base_url(),
            Wire::OpenAiChat | Wire::OpenAiResponses => self.openai_base_url(),
            Wire::Gemini => self.gemini_base_url(),
            Wire::Ollama => self.ollama_base_url(),
        }
    }

    /// Appends a reply to the script.
    pub fn enqueue(&self, reply: Reply) {
        self.shared.lock().queue.push_back(reply);
    }

    /// Appends replies to the script.
    pub fn enqueue_all(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.lock().queue.extend(replies);
    }

    /// Sets the reply for requests that find the script empty. The default is [`Reply::echo`].
    pub fn set_default_reply(&self, reply: Reply) {
        self.shared.lock().default_reply = reply;
    }

    /// Makes `respond` compute the reply to each request that finds the script empty, for tests in which the order
    /// of requests is not known in advance. It is called once for each valid request, without holding a lock: it
    /// may use this provider, and may run concurrently for several requests.
    ///
    /// ```no_run
    /// # use mock_llm::{Reply, MockProvider};
    /// # fn example(provider: &MockProvider) {
    /// provider.set_responder(|request| match request.body["messages"].as_array().map_or(0, Vec::len) {
    ///     1 => Reply::new().tool_use("list_files", serde_json::json!({"path": "."})),
    ///     _ => Reply::from_text("Done."),
    /// });
    /// # }
    /// ```
    pub fn set_responder(&self, respond: impl Fn(&CapturedRequest) -> Reply + Send + Sync + 'static) {
        self.shared.lock().responder = Some(Responder(Arc::new(respond)));
    }

    /// The number of scripted replies that have not been used yet.
    pub fn pending_replies(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// All requests in the order of arrival, including refused ones.
    pub fn requests(&self) -> Vec<CapturedRequest> {
        self.shared.lock().requests.clone()
    }

    /// Discards the recorded requests, for benchmarks whose requests would use too much memory.
    pub fn clear_requests(&self) {
        self.shared.lock().requests.clear();
    }

    /// Waits until this many requests have arrived since the start, then returns the recorded ones.
    pub async fn wait_for_requests(&self, count: usize) -> Vec<CapturedRequest> {
        self.shared.wait_for(|progress| progress.received >= count).await;
        self.requests()
    }

    /// Waits until no answer is in progress: each was read to its end, or its client has disconnected.
    pub async fn wait_until_idle(&self) {
        self.shared.wait_for(|progress| progress.running == 0).await;
    }

    /// The requests that violated a rule. Scripted refusals are not among them.
    pub fn refusals(&self) -> Vec<RefusedRequest> {
        self.shared.lock().refusals.clone()
    }

    /// Takes the refusals, for tests that expect them.
    pub fn take_refusals(&self) -> Vec<RefusedRequest> {
        std::mem::take(&mut self.shared.lock().refusals)
    }

    /// What the vendors' prompt caches would have done for the answered requests. Empty unless
    /// [`MockProviderBuilder::track_cache`] is on.
    pub fn cache_stats(&self) -> CacheStats {
        self.shared.lock().cache.stats.clone()
    }

    /// Asserts that no request violated a rule.
    ///
    /// # Panics
    ///
    /// If one did. The message contains the reasons.
    #[track_caller]
    #[expect(clippy::panic, reason = "an assertion for tests")]
    pub fn assert_no_refusals(&self) {
        let refusals = self.refusals();
        if !refusals.is_empty() {
            let reasons: Vec<String> =
                refusals.iter().map(|refusal| format!("{} {}", refusal.status, refusal.reason)).collect();
            panic!("the provider refused {} request(s):\n{}", reasons.len(), reasons.join("\n"));
        }
    }
}

impl Drop for MockProvider {
    fn drop(&mut self) {
        self.server.abort();
        // A second panic would abort the process and hide the first.
        if self.panics_on_refusals && !thread::panicking() {
            self.assert_no_refusals();
        }
    }
}

impl MockProviderBuilder {
    /// Listens on this port instead of any free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Accepts only this key instead of any non-empty one.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.settings.keys = AcceptedKeys::Only(key.into());
        self
    }

    /// Refuses an Anthropic thinking block if `system`, `tools` or the messages before it have changed since the
    /// block was issued. The newest models do so for accounts created since the end of August 2026
    /// (<https://platform.claude.com/docs/en/build-with-claude/preserved-thinking>).
    #[must_use]
    pub fn bind_thinking(mut self, enabled: bool) -> Self {
        self.settings.bind_thinking = enabled;
        self
    }

    /// Sends and accepts `reasoning_content` on the Chat Completions wire, as some compatible servers do. OpenAI
    /// itself has no such field.
    #[must_use]
    pub fn reasoning_content(mut self, enabled: bool) -> Self {
        self.settings.reasoning_content = enabled;
        self
    }

    /// Simulates the vendors' prompt caches: an answer whose script does not set input tokens reports what the
    /// vendor's cache would have read and written, at four bytes of JSON per token. Anthropic's cache follows its
    /// documentation (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>), except that nothing
    /// expires; the others read common prefixes of 1,024 tokens or more in steps of 128 tokens.
    #[must_use]
    pub fn track_cache(mut self, enabled: bool) -> Self {
        self.settings.track_cache = enabled;
        self
    }

    /// Restricts the Ollama wire to these models: others are reported as not pulled.
    #[must_use]
    pub fn ollama_models<M: Into<String>>(mut self, models: impl IntoIterator<Item = M>) -> Self {
        self.settings.ollama_models = Some(models.into_iter().map(Into::into).collect());
        self
    }

    /// Sets whether dropping the provider panics if there are refusals that were not taken. The default is `true`.
    #[must_use]
    pub fn panic_on_refusals(mut self, enabled: bool) -> Self {
        self.panics_on_refusals = enabled;
        self
    }

    /// Binds the port and starts the provider.
    pub async fn start(self) -> io::Result<MockProvider> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(self.settings));
        let server = tokio::spawn(server::run(listener, Arc::clone(&shared)));
        Ok(MockProvider { address, shared, server, panics_on_refusals: self.panics_on_refusals })
    }
}
