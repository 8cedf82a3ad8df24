//! Test doubles: a backend with scripted faults, and a complete orchestrator in the test's process.

mod api_operations;
mod app;
mod backend;
pub(crate) mod cluster;
pub(crate) mod database;
pub(crate) mod proxy;
mod response_recorder;

pub(crate) use self::backend::{
    BackendCall, Fault, FaultBackend, SimulatedHealth, addressing, also_with_own_addresses, use_own_addresses,
};
pub(crate) use api_operations::{ApiOperation, api_operations};
pub(crate) use app::{ADMIN_KEY, ProductClient, TestApp, TestResponse, summarize};
pub(crate) use database::{TestDatabase, on_postgres, skip_unless_sqlite};
pub(crate) use response_recorder::{RecordedResponse, ResponseRecorder};
