//! The process of an engine that runs in a Pod, found on this machine, which the nodes of the test cluster share.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How the command line of an engine in a container begins.
const COMMAND_LINE: &[u8] = b"/usr/local/bin/roundhouse\0engine\0";

/// Returns the processes of engines in Pods of this name, of which there is at most one.
pub(crate) fn find(pod: &str) -> std::io::Result<Vec<OwnedFd>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
        found.extend(pid.and_then(|pid| open(pid, pod)));
    }
    Ok(found)
}

fn open(pid: Pid, pod: &str) -> Option<OwnedFd> {
    is_engine(pid, pod)?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // The process id may have been reused before the pidfd was opened.
    is_engine(pid, pod).map(|()| handle)
}

/// Whether this is the engine of that Pod. The command line and the environment of a zombie are empty.
fn is_engine(pid: Pid, pod: &str) -> Option<()> {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).ok();
    let is_engine = read("cmdline")?.starts_with(COMMAND_LINE) && has_host_name(&read("environ")?, pod);
    is_engine.then_some(())
}

fn has_host_name(environment: &[u8], name: &str) -> bool {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| variable.strip_prefix(b"HOSTNAME=") == Some(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_known_by_its_whole_name() {
        let environment = b"PATH=/bin\0HOSTNAME=roundhouse-eng-1\0HOME=/data\0";
        assert!(has_host_name(environment, "roundhouse-eng-1"));
        assert!(!has_host_name(environment, "roundhouse-eng"));
        assert!(!has_host_name(environment, "roundhouse-eng-1-copy"));
    }
}
