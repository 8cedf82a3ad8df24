//! `read_file` and `list_files`: what is in the workspace.

use std::fs::File;
use std::io::{self, Read as _};

use futures::future::BoxFuture;
use rustix::fs::{Dir, FileType, OFlags};
use serde::Deserialize;
use serde_json::{Value, json};

use super::files::{Workspace, cannot_read, is_temporary, not_a_file};
use super::{Invocation, Permission, Tool, ToolError, ToolStep, parse};
use crate::models::ToolSpec;

/// How much of a file the model is given.
const MAX_BYTES: u64 = 64 * 1024;
/// How many entries of a folder the model is given.
const MAX_ENTRIES: usize = 1_000;

#[derive(Deserialize)]
struct PathInput {
    path: String,
}

fn path_schema(what: &str) -> Value {
    json!({
        "type": "object",
        "properties": {"path": {"type": "string", "description": what}},
        "required": ["path"],
    })
}

/// See the module.
pub(super) struct ReadFile(pub(super) Workspace);

impl Tool for ReadFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "read_file".into(),
            description: "Reads a text file of the workspace.".into(),
            input_schema: path_schema("The file, relative to the workspace."),
        }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let PathInput { path } = parse(invocation.input)?;
            self.0.blocking(move |workspace| read(&workspace, &path)).await
        })
    }
}

fn read(workspace: &Workspace, path: &str) -> Result<String, ToolError> {
    let failed = |error: io::Error| cannot_read(path, &error);
    let file = File::from(workspace.open(path, OFlags::empty())?);
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(not_a_file(path));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if metadata.len() > MAX_BYTES {
        let cut = format!("\n[cut: the first {MAX_BYTES} of {} bytes]", metadata.len());
        text.push_str(&cut);
    }
    Ok(text)
}

/// See the module.
pub(super) struct ListFiles(pub(super) Workspace);

impl Tool for ListFiles {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "list_files".into(),
            description: "Lists a folder of the workspace; names of folders end with a slash.".into(),
            input_schema: path_schema("The folder, relative to the workspace; `.` for the workspace itself."),
        }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let PathInput { path } = parse(invocation.input)?;
            self.0.blocking(move |workspace| list(&workspace, &path)).await
        })
    }
}

fn list(workspace: &Workspace, path: &str) -> Result<String, ToolError> {
    let failed = |error: rustix::io::Errno| {
        ToolError(format!("`{path}` cannot be listed: {}", io::Error::from(error)))
    };
    let folder = workspace.open(path, OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    let mut more = false;
    for entry in Dir::read_from(&folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let mut name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." || is_temporary(&name) {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            name.push('/');
        }
        more = names.len() == MAX_ENTRIES;
        if more {
            break;
        }
        names.push(name);
    }
    names.sort_unstable();
    if more {
        names.push(format!("[cut: the folder has more than {MAX_ENTRIES} entries]"));
    }
    if names.is_empty() { Ok("(empty)".into()) } else { Ok(names.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::rig::Rig;

    #[test]
    fn reads_and_lists_what_is_inside() {
        let rig = Rig::new();
        assert_eq!(list(&rig.workspace, "."), Ok("(empty)".into()));
        rig.put("sub/notes.txt", "green");
        rig.put("a", "");
        rig.put(".writing-1.tmp", "left by a crash");
        assert_eq!(list(&rig.workspace, "."), Ok("a\nsub/".into()));
        assert_eq!(read(&rig.workspace, "sub/../sub/notes.txt"), Ok("green".into()));
    }

    #[test]
    fn nothing_leads_outside() {
        let rig = Rig::new();
        for path in rig.ways_out() {
            let refused = read(&rig.workspace, &path).unwrap_err();
            assert!(refused.0.contains("leads out of the workspace"), "{path}: {refused}");
            assert!(list(&rig.workspace, &path).is_err(), "{path}");
        }
    }

    #[test]
    fn folders_pipes_and_missing_files_are_told_apart() {
        let rig = Rig::new();
        assert!(read(&rig.workspace, ".").unwrap_err().0.contains("is not a file"));
        assert!(read(&rig.workspace, "nothing").unwrap_err().0.contains("no such file"));
        rig.put_pipe("pipe");
        assert!(read(&rig.workspace, "pipe").unwrap_err().0.contains("is not a file"));
    }

    #[test]
    fn a_large_file_is_cut_and_says_so() {
        let rig = Rig::new();
        rig.put("large", "x".repeat(100_000));
        let text = read(&rig.workspace, "large").unwrap();
        assert!(text.ends_with("[cut: the first 65536 of 100000 bytes]") && text.len() < 70_000);
    }
}
