//! A language model provider for tests: the vendors' documented wire protocols over
//! loopback HTTP, streaming and not, scripted by the test and strict about requests.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use mock_llm::{Reply, MockProvider};
//! let provider = MockProvider::start().await?;
//! provider.enqueue(Reply::new().thinking("Sums.").tool_use("add", serde_json::json!({"a": 1, "b": 2})));
//! let url = provider.base_url(); // hand it to the client under test
//! # Ok(()) }
//! ```
//!
//! A request that the vendor would refuse is refused with the vendor's status and body, is kept in
//! [`MockProvider::refusals`], and fails the test when the provider is dropped: a client that
//! breaks the protocol cannot pass by luck. A reply can also break on request, see [`Fault`],
//! and be held in the middle, see [`Gate`], so that no test sleeps.
//!
//! Map of the crate: [`reply`](Reply), [`fault`](Fault) and [`gate`](Gate) are the script;
//! `anthropic`, `openai`, `responses`, `gemini` and `ollama` are the wires, each with its strict rules, its errors
//! and its rendering behind the `protocol::Protocol` trait; `exchange` runs one request through a wire; `cache`
//! counts what the vendors' prompt caches would do; `plan` decides the bytes, pauses and breaks of an answer and
//! `play` performs them.

mod anthropic;
mod cache;
mod captured;
mod control;
mod fault;
mod gate;
mod gemini;
mod handler;
mod issued;
mod ollama;
mod openai;
mod plan;
mod playback;
mod protocol;
mod provider;
mod reply;
mod responses;
mod server;
mod shared;
mod split;
mod transcript;

pub use cache::{CacheStats, RequestCacheStats};
pub use captured::{CapturedRequest, RefusedRequest, Wire};
pub use fault::{Fault, Refusal};
pub use gate::Gate;
pub use provider::{MockProvider, MockProviderBuilder};
pub use reply::{Block, Chunking, Reply, Stop, Usage};
