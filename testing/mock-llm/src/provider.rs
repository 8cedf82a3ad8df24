//! The handle that a test holds.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::cache::CacheStats;
use crate::captured::{CapturedRequest, RefusedRequest};
use crate::protocol::{AcceptedKeys, Settings};
use crate::reply::Reply;
use crate::server;
use crate::shared::{Responder, Shared};

/// A running provider. It stops when it is dropped, and the drop panics when a request was refused
/// that the test has not taken with [`Self::take_refusals`].
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

    /// A provider with other settings.
    pub fn builder() -> MockProviderBuilder {
        MockProviderBuilder { port: 0, settings: Settings::default(), panics_on_refusals: true }
    }

    /// The address without a path, `http://127.0.0.1:PORT`: the base URL of Anthropic's and Gemini's clients and the
    /// host of Ollama's.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The base URL of OpenAI's clients for both of its wires, [`Self::base_url`] and `/v1`.
    pub fn openai_base_url(&self) -> String {
        format!("{}/v1", self.base_url())
    }

    /// The base URL of Gemini's clients; they put `/v1beta` behind it.
    pub fn gemini_base_url(&self) -> String {
        self.base_url()
    }

    /// The host of Ollama's clients; they put `/api` behind it.
    pub fn ollama_base_url(&self) -> String {
        self.base_url()
    }

    /// Adds a reply at the end of the script.
    pub fn enqueue(&self, reply: Reply) {
        self.shared.lock().queue.push_back(reply);
    }

    /// Adds replies at the end of the script.
    pub fn enqueue_all(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.lock().queue.extend(replies);
    }

    /// Sets the reply for requests that find the script empty; by default the echo.
    pub fn set_default_reply(&self, reply: Reply) {
        self.shared.lock().default_reply = reply;
    }

    /// Lets `respond` make the reply for each request that finds the script empty, for a test whose order of
    /// requests nobody knows beforehand. It sees only requests that broke no rule, is called once for each,
    /// and not under a lock: it may use this handle's shared state, and calls for other requests run beside
    /// it.
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

    /// The number of scripted replies that no request has asked for yet.
    pub fn pending_replies(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// All requests in the order in which they came, refused ones too.
    pub fn requests(&self) -> Vec<CapturedRequest> {
        self.shared.lock().requests.clone()
    }

    /// Forgets the requests so far, for a measurement that sends more than memory should hold.
    pub fn clear_requests(&self) {
        self.shared.lock().requests.clear();
    }

    /// Waits until this many requests have come since the start, then gives those that are kept.
    pub async fn wait_for_requests(&self, count: usize) -> Vec<CapturedRequest> {
        self.shared.wait_for(|progress| progress.received >= count).await;
        self.requests()
    }

    /// Waits until no answer is under way: each was read to its end or its client has left.
    pub async fn wait_until_idle(&self) {
        self.shared.wait_for(|progress| progress.running == 0).await;
    }

    /// The requests that broke a rule. Faults of the script are not among them.
    pub fn refusals(&self) -> Vec<RefusedRequest> {
        self.shared.lock().refusals.clone()
    }

    /// Takes the refusals, for a test that provoked them.
    pub fn take_refusals(&self) -> Vec<RefusedRequest> {
        std::mem::take(&mut self.shared.lock().refusals)
    }

    /// What the vendors' prompt caches did for the requests that were answered, for a provider that was told to
    /// account for them with [`MockProviderBuilder::track_cache`].
    pub fn cache_stats(&self) -> CacheStats {
        self.shared.lock().cache.stats.clone()
    }

    /// Asserts that no request broke a rule.
    ///
    /// # Panics
    ///
    /// With the reasons, when one did.
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
    /// Listens on this port instead of a free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Accepts only this key instead of any that is not empty.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.settings.keys = AcceptedKeys::Only(key.into());
        self
    }

    /// Refuses an Anthropic thinking block when `system`, `tools` or the messages before it are not
    /// what they were when the block was made. The newest models do so for accounts created since
    /// the end of August 2026
    /// (<https://platform.claude.com/docs/en/build-with-claude/preserved-thinking>).
    #[must_use]
    pub fn bind_thinking(mut self, binds: bool) -> Self {
        self.settings.bind_thinking = binds;
        self
    }

    /// Sends and accepts `reasoning_content` on the OpenAI wire, as some compatible servers do.
    /// OpenAI itself has no such field.
    #[must_use]
    pub fn reasoning_content(mut self, enabled: bool) -> Self {
        self.settings.reasoning_content = enabled;
        self
    }

    /// Accounts for the vendors' prompt caches: an answer whose script sets no input tokens reports what its
    /// vendor's cache would have read and written, with four bytes of JSON for a token. Anthropic's is as its
    /// documentation has it (<https://platform.claude.com/docs/en/build-with-claude/prompt-caching>), except that
    /// nothing expires; the others read common prefixes in steps of 128 tokens from 1,024 on.
    #[must_use]
    pub fn track_cache(mut self, accounts: bool) -> Self {
        self.settings.track_cache = accounts;
        self
    }

    /// Lets Ollama have only these models: any other has not been pulled.
    #[must_use]
    pub fn ollama_models<M: Into<String>>(mut self, models: impl IntoIterator<Item = M>) -> Self {
        self.settings.ollama_models = Some(models.into_iter().map(Into::into).collect());
        self
    }

    /// Whether dropping the provider panics on refusals that were not taken; by default it does.
    #[must_use]
    pub fn panic_on_refusals(mut self, guards: bool) -> Self {
        self.panics_on_refusals = guards;
        self
    }

    /// Starts the provider.
    pub async fn start(self) -> io::Result<MockProvider> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(self.settings));
        let server = tokio::spawn(server::run(listener, Arc::clone(&shared)));
        Ok(MockProvider { address, shared, server, panics_on_refusals: self.panics_on_refusals })
    }
}
