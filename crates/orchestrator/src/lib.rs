//! Registers products and keeps one engine per user: provisions, wakes, monitors, stops and deletes it.
//!
//! [`Orchestrator::open`] locks and opens the registry; [`Orchestrator::serve`] answers over HTTP. Inside, `http`
//! calls `fleet` (the rules), which calls `registry` (persistent state) and the crate `backend` (where engines
//! run); `domain` has the types that they share. No layer depends on one above it.

pub mod config;
pub mod doctor;
mod domain;
mod fleet;
mod host;
mod http;
mod keys;
mod metrics;
mod orchestrator;
mod preflight;
mod registry;
pub mod registry_restore;
#[cfg(test)]
#[path = "../tests/unit/regressions/mod.rs"]
mod regressions;
pub mod rekey;
#[cfg(test)]
#[path = "../tests/unit/testing/mod.rs"]
mod testing;

pub use backend::kubernetes::{COPY_ARG, copy_main};
pub use config::Config;
pub use fleet::{BackupSettings, Fleet, FleetError};
pub use http::MetricsAddressError;
pub use keys::{KeyError, MasterKey};
pub use orchestrator::{OpenError, Orchestrator};
pub use preflight::{Preflight, PreflightError, preflight};
pub use registry::{ChainBreak, RestoredRows, VerifiedProduct, VerifyError, verify};
