//! Story 41: what the agent does with its tools, and what it may.

mod asked;
mod catalog;
mod outputs;
mod permissions;
mod rpc;
mod trouble;
mod web;

use crate::support::{Rig, skip};

/// Whether programs are confined here; says that a story is skipped where they are not.
pub(crate) async fn is_confined(rig: &Rig) -> bool {
    let level = rig.engine.activity().await["confinement"].as_str().unwrap().to_owned();
    let confined = level.contains("landlock");
    if !confined {
        skip(&format!("a kernel that confines programs: {level}"));
    }
    confined
}
