//! A workspace on the real file system, with something outside it to guard.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use contract::{CallId, SkillName, Timestamp};
use rustix::fs::{CWD, FileType, Mode};
use serde_json::Value;
use tempfile::TempDir;

use super::files::Workspace;
use super::program::{Places, Programs};
use super::{Invocation, Outputs, Tool, ToolError, ToolStep};
use crate::brain::{Brain, CustomSkill};
use crate::catalog::{Catalog, Environment};
use crate::skills::{Shelf, Skills};
use crate::testing::{leash, within};

/// See the module.
pub(super) struct Rig {
    pub(super) workspace: Workspace,
    folder: TempDir,
}

impl Rig {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("workspace")).unwrap();
        std::fs::write(folder.path().join("secret"), "outside").unwrap();
        Self { workspace: Workspace::new(&folder.path().join("workspace")), folder }
    }

    /// Where `path` of the workspace really is.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("workspace").join(path)
    }

    /// A folder beside the workspace that programs may read.
    pub(super) fn catalog(&self) -> PathBuf {
        let catalog = self.folder.path().join("catalog");
        std::fs::create_dir_all(&catalog).unwrap();
        catalog
    }

    /// What runs programs in the workspace.
    pub(super) fn programs(&self) -> Programs {
        let readable = [self.catalog(), self.shelf().folder().to_owned()];
        let readable = readable.each_ref().map(PathBuf::as_path);
        Programs::new(leash(&self.path(""), &readable), self.outputs(), Places::default())
    }

    /// The skills of the catalog's folder, and those of a brain that has none.
    pub(super) fn skills(&self) -> Skills {
        let catalog = Catalog::read(&self.catalog(), Environment::default());
        assert_eq!(catalog.warnings, [""; 0]);
        Skills::new(catalog.skills, Brain::open(&self.brain()).unwrap())
    }

    fn brain(&self) -> PathBuf {
        self.folder.path().join("brain/brain.sqlite")
    }

    /// Adds a skill of the user's own.
    pub(super) async fn create(&self, skills: &Skills, name: &str, definition: Value) {
        let at = Timestamp::from_unix_ms(0);
        let definition = serde_json::from_value(definition).unwrap();
        let name = SkillName::new(name).unwrap();
        let skill = CustomSkill { name, definition, created_at: at, updated_at: at };
        within(skills.brain().write(move |rows| rows.create_skill(&skill))).await.unwrap().unwrap();
    }

    /// Takes a skill of the user's own away.
    pub(super) async fn delete(&self, skills: &Skills, name: &str) {
        let name = name.to_owned();
        assert!(within(skills.brain().write(move |rows| rows.delete_skill(&name))).await.unwrap());
    }

    /// Where the user's own skills are laid out.
    pub(super) fn shelf(&self) -> Arc<Shelf> {
        Arc::new(Shelf::beside(&self.brain()))
    }

    /// Where long output goes: into the workspace.
    pub(super) fn outputs(&self) -> Outputs {
        Outputs::new(&self.path(""))
    }

    /// Waits until a program has written this file of the workspace.
    pub(super) async fn written(&self, path: &str) -> String {
        within(async {
            loop {
                match std::fs::read_to_string(self.path(path)) {
                    Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                    _ => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
                }
            }
        })
        .await
    }

    /// Puts a file into the workspace.
    pub(super) fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        std::fs::write(self.path(path), content).unwrap();
    }

    pub(super) fn put_pipe(&self, path: &str) {
        rustix::fs::mknodat(CWD, self.path(path), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }

    pub(super) fn put_link(&self, path: &str, target: &str) {
        symlink(target, self.path(path)).unwrap();
    }

    pub(super) fn content(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    /// Paths by which the file `secret`, beside the workspace, could be reached.
    pub(super) fn ways_out(&self) -> Vec<String> {
        let outside = self.folder.path().to_str().unwrap();
        std::fs::create_dir(self.path("sub")).unwrap();
        self.put_link("sub/up", "../..");
        self.put_link("absolute", outside);
        self.put_link("root", "/proc/self/root");
        vec![
            "../secret".into(),
            "sub/../../secret".into(),
            "./../secret".into(),
            "sub/up/secret".into(),
            "absolute/secret".into(),
            format!("{outside}/secret"),
            format!("//{outside}/secret"),
            format!("root{outside}/secret"),
            "/secret".into(),
        ]
    }

    /// Panics if anything outside the workspace has changed.
    pub(super) fn check_outside(&self) {
        let mut names: Vec<_> =
            std::fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["secret", "workspace"]);
        assert_eq!(std::fs::read_to_string(self.folder.path().join("secret")).unwrap(), "outside");
    }

    /// All names in a folder of the workspace, the hidden ones too.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let names = std::fs::read_dir(self.path(path)).unwrap();
        let mut names: Vec<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }
}

/// Runs a tool to its end.
pub(super) async fn run(tool: &dyn Tool, input: Value) -> Result<String, ToolError> {
    match tool.run(Invocation { call_id: CallId::new(), task: None, input, answers: Vec::new() }).await? {
        ToolStep::Done(output) => Ok(output.text),
        ToolStep::Ask(question) => panic!("it asks {question:?}"),
    }
}

/// Waits until there is no process of this id any more.
pub(crate) async fn gone(pid: &str) {
    within(async {
        // One that has ended, but that nobody has waited for yet, is gone too.
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|state| !state.is_empty() && !state.starts_with('Z'))
        };
        while runs() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}
