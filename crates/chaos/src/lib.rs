//! Kills the engine, or the orchestrator, at random instants under load, and checks that no promise is broken.
//! The orchestrator's part is [`fleet`]; what follows is the engine's.
//!
//! A [`Campaign`] starts the real binary with a strict provider and drives several tasks: turns with
//! thinking, parallel tool calls, permissions, questions, steering, cancels, edits and retries, read by
//! clients that are cut at random bytes. Meanwhile the engine is killed, at random and right after chosen
//! moments, and started again on the same brain. At its end each task is judged by the rules in `judge`; what
//! is broken is a violation in the [`Counters`].
//!
//! Map of the crate: `mix` and `dice` decide what happens; `wire` and `heard` are what engine and
//! model speak, `script` and `calls` the model, `driver` and
//! `person` those who use the agent, `client` those who read; `trap`, `files` and `killer` end the engine,
//! `journal` says where that left its turns; `task` holds what was seen and promised, `judge` judges it;
//! `report` and `saboteurs` are for people and CI. `program`, `api`, `trap`, `ports`, `dice` and `tally` serve both
//! parts; `docker` and `postgres` are what the orchestrator's part starts beside it.

pub mod campaign;
pub mod counters;
pub mod docker;
pub mod fleet;
pub mod mutations;
pub mod postgres;
pub mod report;
pub mod workload;

mod api;
mod checker;
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
pub use fleet::FleetCampaign;
pub use report::{Report, unmet_coverage};
pub use wire::Wire;
pub use workload::{Feature, Workload};
