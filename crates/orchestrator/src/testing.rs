//! Doubles for tests: a backend whose faults a test scripts, and a whole orchestrator in this process.

mod app;
mod backend;
pub(crate) mod cluster;
pub(crate) mod database;
mod documented;
pub(crate) mod proxy;
mod seen;

pub(crate) use app::{ADMIN_KEY, Caller, TestApp, short};
pub(crate) use backend::{Call, Fault, FaultBackend, Health};
pub(crate) use database::{TestDatabase, is_about_sqlite, on_postgres};
pub(crate) use documented::{Operation, operations};
pub(crate) use seen::{Answered, Seen};
