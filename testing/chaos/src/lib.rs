//! Kills the engine or the orchestrator at random instants under load, and checks the guarantees afterwards. The
//! orchestrator's part is [`fleet`]; the rest is the engine's.
//!
//! A [`Campaign`] starts the real binary with a mock provider and drives several tasks: turns with thinking,
//! parallel tool calls, permissions, questions, steering, cancels, edits and retries, read by clients that are
//! disconnected at random bytes. Meanwhile the engine is killed, at random and right after chosen events, and
//! restarted on the same brain. At its end each task is checked by the rules in `checker`; each broken rule is a
//! violation in the [`Counters`].
//!
//! Map of the crate: `workload` and `rng` decide what happens; `wire` and `prompt` are the protocols of engine and
//! model, `model_script` and `tool_calls` the model, `driver` and `user` the users of the agent, `stream_reader`
//! the readers; `trigger`, `file_watcher` and `supervisor` kill the engine, `journal` reads where that left its
//! turns; `task` holds what was seen and acknowledged, `checker` checks it; `report` and `mutants` are for
//! people and CI. `service_process`, `client`, `trigger`, `ports`, `rng` and `counters` serve both parts; `docker`
//! and `postgres` are what the orchestrator's part starts beside it.

pub mod campaign;
pub mod counters;
pub mod docker;
pub mod fleet;
pub mod mutants;
pub mod postgres;
pub mod report;
pub mod unix_http;
pub mod workload;

mod checker;
mod client;
mod context;
mod driver;
mod file_watcher;
mod journal;
mod model_script;
mod ports;
mod prompt;
mod rng;
mod service_process;
mod sse;
mod stream_reader;
mod supervisor;
mod task;
#[cfg(test)]
mod testing;
mod tool_calls;
mod trigger;
mod user;
mod wire;

pub use campaign::Campaign;
pub use counters::Counters;
pub use fleet::{FleetCampaign, kubernetes};
pub use postgres::PostgresServer;
pub use report::{Report, unmet_coverage};
pub use wire::Wire;
pub use workload::{Feature, Workload};
