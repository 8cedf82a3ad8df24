//! The label on a process: its command line says which deployment it is of, and which engine.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use api::EngineId;

use super::identity::{ProcessIdentity, is_gone, is_session_leader, parent_of};
use crate::fault_injection::{self, Mutation};

/// The name under which engines show in process listings.
pub(super) const PROCESS_NAME: &str = "roundhouse";

const DEPLOYMENT_FLAG: &str = "--deployment";

/// Later versions find by this what earlier ones started: it never changes.
fn engine_id_flag() -> &'static str {
    if fault_injection::active(Mutation::ForgetLabel) { "--engine" } else { "--engine-id" }
}

const GENERATION_FLAG: &str = "--generation";

/// So often, and with such pauses, a process is looked at that may be becoming another program.
const EXEC_POLL_ATTEMPTS: u32 = 50;
const EXEC_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Whose process it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) deployment_id: String,
    pub(super) engine_id: EngineId,
    /// The change of the engine's row that it was launched for. Version 0.1 began without it, which reads as 0.
    pub(super) generation: i64,
}

/// An engine's process among all processes.
#[derive(Clone, Debug)]
pub(super) struct FoundProcess {
    pub(super) engine_id: EngineId,
    pub(super) generation: i64,
    pub(super) identity: ProcessIdentity,
}

impl Label {
    /// The arguments behind the name.
    pub(super) fn arguments(&self) -> [OsString; 7] {
        let (engine_id, generation) = (self.engine_id.to_string(), self.generation.to_string());
        let deployment_id = &self.deployment_id;
        ["engine", DEPLOYMENT_FLAG, deployment_id, engine_id_flag(), &engine_id, GENERATION_FLAG, &generation]
            .map(OsString::from)
    }

    /// Reads a command line as `/proc` has it: each argument ends with a NUL. Only the exact form counts: a
    /// shell or an editor that has such words among its own arguments is no engine.
    fn parse(command_line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(command_line).ok()?;
        let mut arguments = text.split_terminator('\0');
        let mut next = || arguments.next();
        if (next()?, next()?, next()?) != (PROCESS_NAME, "engine", DEPLOYMENT_FLAG) {
            return None;
        }
        let deployment_id = next()?.to_owned();
        if next()? != engine_id_flag() {
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

/// All processes of this user that carry the label of `deployment_id`, but those whose numbers are `known`. Those of
/// other users could not be signalled, and anyone may choose their command line.
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

fn inspect(pid: i32, user: u32, deployment_id: &str) -> io::Result<Option<(Label, ProcessIdentity)>> {
    if fs::metadata(format!("/proc/{pid}"))?.uid() != user {
        return Ok(None);
    }
    let is_ours = |label: &Label| {
        label.deployment_id == deployment_id || fault_injection::active(Mutation::TakeStrangers)
    };
    // Before anything is waited for.
    let Some(label) = label_of(pid)?.filter(is_ours) else { return Ok(None) };
    if !is_session_leader(pid)? {
        // An engine that has not come so far as to give itself a session; or the child of one, which bears its label until
        // it has become another program.
        if has_labelled_parent(pid, &label) || !keeps_label(pid, &label)? {
            return Ok(None);
        }
    }
    // The number may have changed hands since: the label counts only if it is there after the identity as well.
    let identity = ProcessIdentity::of_running(pid)?;
    let still = label_of(pid)?.as_ref() == Some(&label);
    Ok(identity.filter(|_| still).map(|identity| (label, identity)))
}

/// Whether `pid` bears the label until it leads its session, or for longer than a child takes to become another program.
#[expect(clippy::disallowed_methods, reason = "processes are looked for on threads that may block")]
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

/// The label on a process; none if there is none on it.
fn label_of(pid: i32) -> io::Result<Option<Label>> {
    Ok(Label::parse(&fs::read(format!("/proc/{pid}/cmdline"))?))
}

/// Whether the parent of `pid` bears the same label. One that is gone, or that may not be looked at, is no engine of this
/// user's.
fn has_labelled_parent(pid: i32, label: &Label) -> bool {
    let parent = parent_of(pid).ok().flatten();
    parent.is_some_and(|parent| label_of(parent).is_ok_and(|above| above.as_ref() == Some(label)))
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
        // As the first engines of version 0.1 have it.
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
