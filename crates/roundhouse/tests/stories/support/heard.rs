//! The requests that a model has got, as a story about a terminal sees them.

use mock_llm::{CapturedRequest, MockProvider, Reply};
use serde_json::Value;

use super::{Fleet, RunningUp};

/// A fleet whose model answers every message with `reply`.
pub(crate) async fn fleet_that_answers(reply: Reply) -> (Fleet, RunningUp, MockProvider) {
    let provider = MockProvider::start().await.unwrap();
    provider.set_default_reply(reply);
    let fleet = Fleet::new().with_provider(&provider);
    let up = fleet.start_up().await;
    (fleet, up, provider)
}

/// The text of the newest message of the user in a request.
fn last_message(request: &CapturedRequest) -> String {
    let messages = request.body["messages"].as_array().unwrap_or_else(|| panic!("{request:?}"));
    let message = messages.last().unwrap_or_else(|| panic!("{request:?}"));
    let texts = match &message["content"] {
        Value::String(text) => vec![text.as_str()],
        blocks => blocks.as_array().unwrap().iter().filter_map(|block| block["text"].as_str()).collect(),
    };
    (*texts.last().unwrap_or_else(|| panic!("{message}"))).to_owned()
}

/// The requests to the model, counted from a point of the story.
pub(crate) struct Heard<'a> {
    provider: &'a MockProvider,
    before: usize,
}

impl<'a> Heard<'a> {
    pub(crate) fn from_now(provider: &'a MockProvider) -> Self {
        Self { provider, before: provider.requests().len() }
    }

    /// The text of the message of the request with this number.
    pub(crate) async fn message(&self, number: usize) -> String {
        last_message(&self.request(number).await)
    }

    /// The model that the request with this number names.
    pub(crate) async fn model(&self, number: usize) -> String {
        self.request(number).await.body["model"].as_str().unwrap().to_owned()
    }

    /// How many requests there were before.
    pub(crate) fn before(&self) -> usize {
        self.before
    }

    async fn request(&self, number: usize) -> CapturedRequest {
        let mut requests = self.provider.wait_for_requests(self.before + number).await;
        requests.swap_remove(self.before + number - 1)
    }
}
