//! Doubles for tests: a backend whose faults a test scripts, and a whole orchestrator in this process.

mod app;
mod backend;

pub(crate) use app::{ADMIN_KEY, Caller, TestApp, short};
pub(crate) use backend::{Call, Fault, FaultBackend, Health};
