//! Story 41: the agent's tools and their permissions.

mod approvals;
mod catalog;
mod misbehaving_tools;
mod outputs;
mod permissions;
mod rpc;
mod web;

use crate::support::{EngineFixture, skip};

/// Whether programs are confined on this machine; otherwise logs that the test is skipped.
pub(crate) async fn is_confined(fixture: &EngineFixture) -> bool {
    let level = fixture.engine.activity().await["confinement"].as_str().unwrap().to_owned();
    let confined = level.contains("landlock");
    if !confined {
        skip(&format!("a kernel that confines programs: {level}"));
    }
    confined
}
