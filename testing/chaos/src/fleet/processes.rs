//! The engines of a deployment as processes, found by the label on their command line and signalled by pidfd.

use std::fs;
use std::io;
use std::net::Ipv4Addr;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::engine_host::EngineInstance;

/// Returns the processes labelled with `deployment_id`. Children of an engine lead no session and are not
/// included.
pub(crate) fn find_by_label(deployment_id: &str) -> io::Result<Vec<EngineInstance>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
        found.extend(pid.and_then(|pid| inspect(pid, deployment_id)));
    }
    Ok(found)
}

fn inspect(pid: Pid, deployment_id: &str) -> Option<EngineInstance> {
    let engine_id = engine_id_of(pid, deployment_id)?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let port: Option<u16> = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| std::str::from_utf8(variable.strip_prefix(b"ENGINE_PORT=")?).ok()?.parse().ok());
    // The process id may have been reused before the pidfd was opened.
    let is_same = engine_id_of(pid, deployment_id).as_ref() == Some(&engine_id);
    (is_same && leads_session(pid)).then(|| EngineInstance {
        engine_id,
        instance: pid.to_string(),
        address: port.map(|port| (Ipv4Addr::LOCALHOST, port).into()),
        is_alive: true,
        pidfd: Some(handle),
    })
}

/// Returns whether a process leads a session. It is read from `/proc`, because `getsid` of `rustix` panics if the
/// session was started outside the PID namespace, whose id is 0, as is that of an engine before its own `setsid`.
fn leads_session(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program ends at the last parenthesis; state, parent, process group and session follow.
    let session = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(3));
    session.and_then(|session| session.parse().ok()) == Some(pid.as_raw_nonzero().get())
}

/// Returns the engine id on the command line of a process; `None` for a zombie, whose command line is empty.
fn engine_id_of(pid: Pid, deployment_id: &str) -> Option<String> {
    let line = String::from_utf8(fs::read(format!("/proc/{pid}/cmdline")).ok()?).ok()?;
    let label = line.strip_prefix("roundhouse\0engine\0--deployment\0")?;
    let engine_id = label.strip_prefix(deployment_id)?.strip_prefix("\0--engine-id\0")?;
    engine_id.split('\0').next().map(str::to_owned)
}
