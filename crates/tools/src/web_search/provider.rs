//! Asks one provider, and again after a failure that may pass.

use std::sync::Arc;

use catalog::SearchProvider;
use fetch::{ApiRequest, ApiServer};
use resources::memory_budget::MemoryBudget;
use resources::threads::run_blocking;

use super::answer::{self, SearchResult};
use super::error::SearchError;
use super::request::{self, SearchQuery};

/// The maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// A provider that can be asked.
pub(super) struct Provider {
    config: Arc<SearchProvider>,
    server: ApiServer,
}

impl Provider {
    /// Creates a client for the provider. Only an address that the operator wrote may be a private one.
    ///
    /// # Errors
    /// The reason why its address cannot be called.
    pub(super) fn new(config: Arc<SearchProvider>, memory: MemoryBudget) -> Result<Self, String> {
        let server = ApiServer::new(&config.call.url, config.is_own_address, MAX_ANSWER_BYTES, memory);
        Ok(Self { server: server.map_err(|error| error.to_string())?, config })
    }

    pub(super) fn name(&self) -> &'static str {
        self.config.api.name()
    }

    /// Searches.
    pub(super) async fn search(&self, query: &SearchQuery) -> Result<Vec<SearchResult>, SearchError> {
        let request = request::build(&self.config, query);
        let mut attempts = 1;
        let body = loop {
            match self.send(request.clone()).await {
                Ok(body) => break body,
                Err(error) => match error.retry_delay(attempts) {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => return Err(error),
                },
            }
            attempts += 1;
        };
        // A large answer takes a while to read.
        let (config, count) = (Arc::clone(&self.config), query.count);
        let results = run_blocking(move || answer::parse(&config.api, &body, count)).await;
        results.unwrap_or_else(|| Err(SearchError::Malformed("it could not be read".into())))
    }

    async fn send(&self, request: ApiRequest) -> Result<Vec<u8>, SearchError> {
        let response = self.server.call(request).await.map_err(SearchError::Unreachable)?;
        match SearchError::of_status(response.status.as_u16(), response.retry_after) {
            Some(error) => Err(error),
            None => response.body.ok_or(SearchError::TooLong(MAX_ANSWER_BYTES)),
        }
    }
}
