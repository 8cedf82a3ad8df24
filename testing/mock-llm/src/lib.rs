//! A mock LLM provider for tests. It serves the vendors' documented wire protocols over loopback HTTP, streaming
//! and not. Tests script its replies, and it validates requests as strictly as the vendors do.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use mock_llm::{Reply, MockProvider};
//! let provider = MockProvider::start().await?;
//! provider.enqueue(Reply::new().thinking("Sums.").tool_use("add", serde_json::json!({"a": 1, "b": 2})));
//! let url = provider.base_url(); // for the client under test
//! # Ok(()) }
//! ```
//!
//! A request that the vendor would refuse is refused with the vendor's status and body, is recorded in
//! [`MockProvider::refusals`], and fails the test when the provider is dropped, so that a client that violates the
//! protocol cannot pass by luck. A reply can also fail as scripted, see [`Fault`], or pause in the middle until
//! the test releases it, see [`Gate`], so that tests need not sleep.
//!
//! Structure: [`reply`](Reply), [`fault`](Fault) and [`gate`](Gate) are the script. Each wire protocol ([`Wire`]) is
//! a module with its rules, errors and rendering behind the `protocol::Protocol` trait. `handler` runs one request
//! through a wire. `cache` simulates the vendors' prompt caches. `plan` decides the bytes, pauses and faults of an
//! answer, and `playback` performs them.

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
