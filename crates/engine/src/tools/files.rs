//! `read_file` and `list_files`: the agent's workspace, and nothing outside it.
//!
//! Paths are resolved by the kernel with `RESOLVE_BENEATH`: neither `..`, nor an absolute path, nor a symbolic
//! link, nor one swapped in at the last moment leads out of the workspace.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Invocation, Permission, Tool, ToolError, ToolOutput, ToolStep, parse};
use crate::models::ToolSpec;

/// How much of a file the model is given.
const MAX_BYTES: u64 = 64 * 1024;
/// How many entries of a folder the model is given.
const MAX_ENTRIES: usize = 1_000;

#[derive(Deserialize)]
struct PathInput {
    path: String,
}

/// The folder that the file tools work in.
#[derive(Clone)]
struct Workspace(PathBuf);

impl Workspace {
    /// Opens `path` beneath the workspace.
    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, ToolError> {
        let refuse = |error: rustix::io::Errno| {
            let why = match error {
                rustix::io::Errno::NOENT => "there is no such file or folder".to_owned(),
                rustix::io::Errno::XDEV | rustix::io::Errno::LOOP => {
                    "it leads out of the workspace".to_owned()
                }
                other => io::Error::from(other).to_string(),
            };
            ToolError(format!("`{path}` cannot be opened: {why}"))
        };
        std::fs::create_dir_all(&self.0)
            .map_err(|error| ToolError(format!("the workspace cannot be used: {error}")))?;
        let folder = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH;
        let root = rustix::fs::open(&self.0, folder, Mode::empty()).map_err(refuse)?;
        // NONBLOCK: a pipe without a writer would be waited for.
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(root, path, flags, Mode::empty(), beneath).map_err(refuse)
    }

    fn read(&self, path: &str) -> Result<String, ToolError> {
        let failed = |error: io::Error| ToolError(format!("`{path}` cannot be read: {error}"));
        let file = File::from(self.open(path, OFlags::empty())?);
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(ToolError(format!("`{path}` is not a file")));
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

    fn list(&self, path: &str) -> Result<String, ToolError> {
        let failed = |error: rustix::io::Errno| {
            ToolError(format!("`{path}` cannot be listed: {}", io::Error::from(error)))
        };
        let folder = self.open(path, OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        let mut more = false;
        for entry in Dir::read_from(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let mut name = entry.file_name().to_string_lossy().into_owned();
            if name == "." || name == ".." {
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

    /// Runs `work` where it may block.
    async fn blocking(
        &self,
        work: impl FnOnce(Self) -> Result<String, ToolError> + Send + 'static,
    ) -> Result<ToolStep, ToolError> {
        let workspace = self.clone();
        let text = tokio::task::spawn_blocking(move || work(workspace))
            .await
            .map_err(|error| ToolError(format!("the tool failed: {error}")))??;
        Ok(ToolStep::Done(ToolOutput { text, working_memory: Vec::new() }))
    }
}

fn path_schema(what: &str) -> Value {
    json!({
        "type": "object",
        "properties": {"path": {"type": "string", "description": what}},
        "required": ["path"],
    })
}

/// See the module.
pub(super) struct ReadFile(Workspace);

impl ReadFile {
    pub(super) fn within(workspace: &Path) -> Self {
        Self(Workspace(workspace.to_owned()))
    }
}

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
            self.0.blocking(move |workspace| workspace.read(&path)).await
        })
    }
}

/// See the module.
pub(super) struct ListFiles(Workspace);

impl ListFiles {
    pub(super) fn within(workspace: &Path) -> Self {
        Self(Workspace(workspace.to_owned()))
    }
}

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
            self.0.blocking(move |workspace| workspace.list(&path)).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> (tempfile::TempDir, Workspace) {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("workspace");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(folder.path().join("secret"), "outside").unwrap();
        (folder, Workspace(inside))
    }

    #[test]
    fn reads_and_lists_what_is_inside() {
        let (_folder, workspace) = workspace();
        assert_eq!(workspace.list("."), Ok("(empty)".into()));
        std::fs::create_dir(workspace.0.join("sub")).unwrap();
        std::fs::write(workspace.0.join("sub/notes.txt"), "green").unwrap();
        std::fs::write(workspace.0.join("a"), "").unwrap();
        assert_eq!(workspace.list("."), Ok("a\nsub/".into()));
        assert_eq!(workspace.read("sub/../sub/notes.txt"), Ok("green".into()));
    }

    #[test]
    fn nothing_leads_outside() {
        let (folder, workspace) = workspace();
        std::os::unix::fs::symlink("../secret", workspace.0.join("link")).unwrap();
        std::os::unix::fs::symlink(folder.path(), workspace.0.join("up")).unwrap();
        let absolute = folder.path().join("secret");
        for path in ["../secret", "link", "up/secret", absolute.to_str().unwrap(), "/etc/passwd"] {
            let refused = workspace.read(path).unwrap_err();
            assert!(refused.0.contains("leads out of the workspace"), "{path}: {refused}");
            assert!(workspace.list(path).is_err(), "{path}");
        }
    }

    #[test]
    fn folders_pipes_and_missing_files_are_told_apart() {
        let (_folder, workspace) = workspace();
        assert!(workspace.read(".").unwrap_err().0.contains("is not a file"));
        assert!(workspace.read("nothing").unwrap_err().0.contains("no such file"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            workspace.0.join("pipe"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(workspace.read("pipe").unwrap_err().0.contains("is not a file"));
    }

    #[test]
    fn a_large_file_is_cut_and_says_so() {
        let (_folder, workspace) = workspace();
        std::fs::write(workspace.0.join("large"), "x".repeat(100_000)).unwrap();
        let text = workspace.read("large").unwrap();
        assert!(text.ends_with("[cut: the first 65536 of 100000 bytes]") && text.len() < 70_000);
    }
}
