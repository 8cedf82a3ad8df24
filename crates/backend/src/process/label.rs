//! The label of a process: its command line names the deployment, the engine and the generation.
//!
//! A search of `/proc` for labels finds the engines that other orchestrators of this deployment launched.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use api::EngineId;

use super::identity::{ProcessIdentity, is_gone, is_session_leader, parent_of};

/// The name of engines in process listings.
pub(super) const PROCESS_NAME: &str = "roundhouse";

/// The flags of the label. Later versions find earlier versions' engines by them, so they never change.
const DEPLOYMENT_FLAG: &str = "--deployment";
const ENGINE_ID_FLAG: &str = "--engine-id";
const GENERATION_FLAG: &str = "--generation";

/// How often, and at which interval, a process is checked that may be a child of an engine just before its `exec`.
const EXEC_POLL_ATTEMPTS: u32 = 50;
const EXEC_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The deployment, engine and generation that a process belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) deployment_id: String,
    pub(super) engine_id: EngineId,
    /// The generation of the engine's row for which it was launched; 0 if absent, as in the first engines of
    /// version 0.1.
    pub(super) generation: i64,
}

/// A process of this deployment that a search has found.
#[derive(Clone, Debug)]
pub(super) struct FoundProcess {
    pub(super) engine_id: EngineId,
    pub(super) generation: i64,
    pub(super) identity: ProcessIdentity,
}

impl Label {
    /// Returns the arguments after the process name.
    pub(super) fn arguments(&self) -> [OsString; 7] {
        let (engine_id, generation) = (self.engine_id.to_string(), self.generation.to_string());
        let deployment_id = &self.deployment_id;
        ["engine", DEPLOYMENT_FLAG, deployment_id, ENGINE_ID_FLAG, &engine_id, GENERATION_FLAG, &generation]
            .map(OsString::from)
    }

    /// Parses a command line in the form of `/proc/<pid>/cmdline`, in which a NUL terminates each argument.
    /// Only the exact form counts: a shell or an editor with such words among its arguments is not an engine.
    fn parse(command_line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(command_line).ok()?;
        let mut arguments = text.split_terminator('\0');
        let mut next = || arguments.next();
        if (next()?, next()?, next()?) != (PROCESS_NAME, "engine", DEPLOYMENT_FLAG) {
            return None;
        }
        let deployment_id = next()?.to_owned();
        if next()? != ENGINE_ID_FLAG {
            return None;
        }
        let engine_id = next()?.parse().ok()?;
        let generation = match (next(), next()) {
            (Some(GENERATION_FLAG), Some(generation)) => generation.parse().ok()?,
            _ => 0,
        };
        Some(Self { deployment_id, engine_id, generation })
    }
}

/// Finds all processes of this user with the label of `deployment_id`, except those whose pids are `known`.
/// Other users' processes are ignored: they could not be signalled, and anyone may choose a command line.
pub(super) fn find_processes(deployment_id: &str, known: &HashSet<i32>) -> io::Result<Vec<FoundProcess>> {
    let user = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if known.contains(&pid) {
            continue;
        }
        match inspect(pid, user, deployment_id) {
            Ok(Some((label, identity))) => {
                found.push(FoundProcess {
                    engine_id: label.engine_id,
                    generation: label.generation,
                    identity,
                });
            }
            Ok(None) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Returns the label and identity of `pid` if it is an engine of this deployment that `user` runs.
fn inspect(pid: i32, user: u32, deployment_id: &str) -> io::Result<Option<(Label, ProcessIdentity)>> {
    if fs::metadata(format!("/proc/{pid}"))?.uid() != user {
        return Ok(None);
    }
    let is_ours = |label: &Label| label.deployment_id == deployment_id;
    // Checked first, because the checks below may wait.
    let Some(label) = label_of(pid)?.filter(is_ours) else { return Ok(None) };
    if !is_session_leader(pid)? {
        // Either an engine that has not created its session yet, or an engine's child, which has the engine's
        // label until its `exec`.
        if has_labelled_parent(pid, &label) || !keeps_label(pid, &label)? {
            return Ok(None);
        }
    }
    // The pid may have been reused since: the label counts only if it is the same after the identity was read.
    let identity = ProcessIdentity::of_running(pid)?;
    let is_same = label_of(pid)?.as_ref() == Some(&label);
    Ok(identity.filter(|_| is_same).map(|identity| (label, identity)))
}

/// Whether `pid` keeps the label until it leads its session, or for longer than a child needs until its `exec`.
#[expect(clippy::disallowed_methods, reason = "the search runs on a thread that may block")]
fn keeps_label(pid: i32, label: &Label) -> io::Result<bool> {
    for _ in 0..EXEC_POLL_ATTEMPTS {
        std::thread::sleep(EXEC_POLL_INTERVAL);
        if label_of(pid)?.as_ref() != Some(label) {
            return Ok(false);
        }
        if is_session_leader(pid)? {
            break;
        }
    }
    Ok(true)
}

/// Returns the label of a process; `None` if it has none.
fn label_of(pid: i32) -> io::Result<Option<Label>> {
    Ok(Label::parse(&fs::read(format!("/proc/{pid}/cmdline"))?))
}

/// Whether the parent of `pid` has the same label. A parent that is gone or cannot be read is not an engine
/// of this user.
fn has_labelled_parent(pid: i32, label: &Label) -> bool {
    let parent = parent_of(pid).ok().flatten();
    parent.is_some_and(|parent| label_of(parent).is_ok_and(|found| found.as_ref() == Some(label)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_reads_back_from_a_command_line() {
        let label = Label { deployment_id: "d1".into(), engine_id: EngineId::new(), generation: 7 };
        let words: Vec<String> = label.arguments().iter().map(|word| word.to_str().unwrap().into()).collect();
        let line = format!("{PROCESS_NAME}\0{}\0", words.join("\0"));
        assert_eq!(Label::parse(line.as_bytes()), Some(label.clone()));
        // The command line of the first engines of version 0.1.
        let earlier = line.split("--generation").next().unwrap();
        assert_eq!(Label::parse(earlier.as_bytes()), Some(Label { generation: 0, ..label }));
        for other in [
            String::new(),
            format!("sh\0-c\0{PROCESS_NAME} engine --deployment d1\0"),
            format!("sh\0{line}"),
            line.replace("eng_", "eng-"),
            line.replace("--deployment", "--data"),
            line.replace("\x007\0", "\0seven\0"),
        ] {
            assert_eq!(Label::parse(other.as_bytes()), None, "{other:?}");
        }
    }
}
