//! A test fixture: a workspace on the real file system, with guarded files outside it.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use api::memory::Source;
use api::{CallId, MemoryId, SkillName, Timestamp};
use catalog::{Catalog, Environment};
use rustix::fs::{CWD, FileType, Mode};
use serde_json::Value;
use store::{Brain, CustomSkill, KnowledgeDraft, NewKnowledge};
use tempfile::TempDir;
use testkit::{test_sandbox, with_deadline};

use super::files::Workspace;
use super::process::{ProcessPermits, ProcessRunner};
use super::{Invocation, SpillDir, Tool, ToolError, ToolStep};
use crate::skills::{SkillDirs, Skills};

/// A brain with knowledge, each record of which is saved a second after the one before it.
pub(super) struct MemoryFixture {
    pub(super) brain: Brain,
    saved: std::sync::atomic::AtomicI64,
    _folder: TempDir,
}

impl MemoryFixture {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        Self { brain, saved: 0.into(), _folder: folder }
    }

    /// Saves a record.
    pub(super) async fn save(&self, content: &str, source: Source, supersedes: Option<MemoryId>) -> MemoryId {
        let draft = KnowledgeDraft { content: content.to_owned(), tags: Vec::new(), supersedes };
        let record = NewKnowledge { id: MemoryId::new(), draft, source };
        let id = record.id;
        let seconds = self.saved.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let at = Timestamp::from_unix_ms(seconds * 1_000);
        with_deadline(self.brain.write(move |rows| rows.save_knowledge(&record, None, at)))
            .await
            .unwrap()
            .unwrap();
        id
    }
}

/// A workspace, and its surroundings that must not change.
pub(super) struct WorkspaceFixture {
    pub(super) workspace: Workspace,
    folder: TempDir,
}

impl WorkspaceFixture {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("workspace")).unwrap();
        std::fs::write(folder.path().join("secret"), "outside").unwrap();
        Self { workspace: Workspace::new(&folder.path().join("workspace")), folder }
    }

    /// Returns the absolute path of `path` in the workspace.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("workspace").join(path)
    }

    /// Returns a folder beside the workspace that programs may read.
    pub(super) fn catalog_folder(&self) -> PathBuf {
        let catalog = self.folder.path().join("catalog");
        std::fs::create_dir_all(&catalog).unwrap();
        catalog
    }

    /// Returns a runner of programs in the workspace.
    pub(super) fn runner(&self) -> ProcessRunner {
        let readable = [self.catalog_folder(), self.skill_dirs().root().to_owned()];
        let readable = readable.each_ref().map(PathBuf::as_path);
        ProcessRunner::new(
            test_sandbox(&self.path(""), &readable),
            self.spill_dir(),
            ProcessPermits::default(),
        )
    }

    /// Returns the skills of the catalog's folder and of an empty brain.
    pub(super) fn skills(&self) -> Skills {
        let catalog = Catalog::load(&self.catalog_folder(), Environment::default());
        assert_eq!(catalog.warnings, [""; 0]);
        Skills::new(catalog.skills, Brain::open(&self.brain_file()).unwrap())
    }

    fn brain_file(&self) -> PathBuf {
        self.folder.path().join("brain/brain.sqlite")
    }

    /// Adds a skill of the user.
    pub(super) async fn create_skill(&self, skills: &Skills, name: &str, definition: Value) {
        let at = Timestamp::from_unix_ms(0);
        let definition = serde_json::from_value(definition).unwrap();
        let name = SkillName::new(name).unwrap();
        let skill = CustomSkill { name, definition, created_at: at, updated_at: at };
        with_deadline(skills.brain().write(move |rows| rows.create_skill(&skill))).await.unwrap().unwrap();
    }

    /// Deletes a skill of the user.
    pub(super) async fn delete_skill(&self, skills: &Skills, name: &str) {
        let name = name.to_owned();
        assert!(with_deadline(skills.brain().write(move |rows| rows.delete_skill(&name))).await.unwrap());
    }

    /// Returns the folders of the user's materialised skills.
    pub(super) fn skill_dirs(&self) -> Arc<SkillDirs> {
        Arc::new(SkillDirs::for_brain(&self.brain_file()))
    }

    /// Returns the spill folder in the workspace.
    pub(super) fn spill_dir(&self) -> SpillDir {
        SpillDir::new(&self.path(""))
    }

    /// Waits until a program has written this file of the workspace.
    pub(super) async fn wait_for_file(&self, path: &str) -> String {
        with_deadline(async {
            loop {
                match std::fs::read_to_string(self.path(path)) {
                    Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                    _ => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
                }
            }
        })
        .await
    }

    /// Writes a file into the workspace.
    pub(super) fn write_file(&self, path: &str, content: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        std::fs::write(self.path(path), content).unwrap();
    }

    pub(super) fn create_fifo(&self, path: &str) {
        rustix::fs::mknodat(CWD, self.path(path), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }

    pub(super) fn create_symlink(&self, path: &str, target: &str) {
        symlink(target, self.path(path)).unwrap();
    }

    pub(super) fn read_file(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap()
    }

    /// Returns paths through which the file `secret`, beside the workspace, could be reached.
    pub(super) fn escape_paths(&self) -> Vec<String> {
        let outside = self.folder.path().to_str().unwrap();
        std::fs::create_dir(self.path("sub")).unwrap();
        self.create_symlink("sub/up", "../..");
        self.create_symlink("absolute", outside);
        self.create_symlink("root", "/proc/self/root");
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
    pub(super) fn assert_outside_unchanged(&self) {
        let mut names: Vec<_> =
            std::fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["secret", "workspace"]);
        assert_eq!(std::fs::read_to_string(self.folder.path().join("secret")).unwrap(), "outside");
    }

    /// Returns all names in a folder of the workspace, including hidden ones.
    pub(super) fn list_names(&self, path: &str) -> Vec<String> {
        let names = std::fs::read_dir(self.path(path)).unwrap();
        let mut names: Vec<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }
}

/// Runs a tool to its end.
pub(super) async fn run_tool(tool: &dyn Tool, input: Value) -> Result<String, ToolError> {
    match tool
        .run(Invocation {
            call_id: CallId::new(),
            at: api::Timestamp::from_unix_ms(0),
            task: None,
            input,
            answers: Vec::new(),
        })
        .await?
    {
        ToolStep::Done(output) => Ok(output.text),
        ToolStep::Ask(question) => panic!("it asks {question:?}"),
    }
}
