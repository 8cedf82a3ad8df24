//! Story 41: what the agent does with its tools, and what it may.

mod approvals;
mod catalog;
mod misbehaving_tools;
mod outputs;
mod permissions;
mod rpc;
mod web;

use crate::support::{EngineFixture, skip};

/// Whether programs are confined here; says that a story is skipped where they are not.
pub(crate) async fn is_confined(rig: &EngineFixture) -> bool {
    let level = rig.engine.activity().await["confinement"].as_str().unwrap().to_owned();
    let confined = level.contains("landlock");
    if !confined {
        skip(&format!("a kernel that confines programs: {level}"));
    }
    confined
}
