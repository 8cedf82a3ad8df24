//! Materialises the user's own skills as folders for programs that run their scripts. The folders are beside the
//! brain, and sandboxed programs can read and execute their files but change nothing.
//!
//! Only the brain defines a skill. A folder is created when a program is about to use it, and created anew after a
//! start of the engine: folders of an earlier run are not trusted. A folder stays unchanged while a program uses
//! it, and is removed with its last use if the skill has changed or was deleted meanwhile.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use store::{Brain, CustomSkill};
use tokio::runtime::Handle;

use super::skill_format::{SkillFile, skill_files};

/// The suffix of the root folder's name, after the name of the brain's file. Thus no two engines share a root, and
/// it is unlikely to be a folder that somebody else created.
const DIR_SUFFIX: &str = ".skills";
/// The folder in which a skill is written before it is renamed to its final place.
const STAGING_DIR: &str = ".unfinished";
/// The number of bytes of the hash in a folder's name, which has two hexadecimal digits for each.
const HASH_BYTES: usize = 16;

/// The materialised skills of one brain.
pub struct SkillDirs {
    root: PathBuf,
    /// `None` before the first use.
    state: Mutex<Option<DirState>>,
}

/// The materialised folders. Each is named by a hash and holds one version of a skill.
#[derive(Default)]
struct DirState {
    /// The folder of the version of each skill that was last requested, by the skill's name.
    current: BTreeMap<String, String>,
    /// The number of leases of each folder that has any.
    lease_counts: BTreeMap<String, usize>,
}

/// A materialised skill.
#[derive(Debug)]
pub struct LeasedSkill {
    /// The skill as materialised.
    pub skill: CustomSkill,
    /// Its folder.
    pub folder: PathBuf,
    /// Keeps the folder in place.
    pub lease: DirLease,
}

/// A lease on a skill's folder: the folder stays unchanged while it is held.
pub struct DirLease {
    dirs: Arc<SkillDirs>,
    hash: String,
}

/// Why a skill could not be materialised.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// The brain could not be read.
    #[error("skills cannot be read: {0}")]
    ReadSkill(store::StoreError),
    /// The folder could not be created.
    #[error("the skill's scripts cannot be written to a folder: {0}")]
    WriteFiles(io::Error),
}

impl SkillDirs {
    /// Returns the skill folders for this brain. Their root is beside it and is created at first use.
    pub fn for_brain(brain: &Path) -> Self {
        let mut folder = brain.as_os_str().to_owned();
        folder.push(DIR_SUFFIX);
        // Programs start in the workspace, where a relative path would lead elsewhere.
        let folder = std::path::absolute(&folder).unwrap_or_else(|_| folder.into());
        Self { root: folder, state: Mutex::default() }
    }

    /// Returns the folder that programs must be able to read.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Materialises the current version of the user's skill `name`; `None` if there is no such skill. A folder of
    /// an earlier version is removed, unless it is leased. Blocks.
    pub fn acquire(self: &Arc<Self>, brain: &Brain, name: &str) -> Result<Option<LeasedSkill>, AcquireError> {
        let mut state = self.state.lock();
        let state = self.initialized(&mut state).map_err(AcquireError::WriteFiles)?;
        // Read under the lock: a version read before could stay here although it was changed or deleted since.
        let Some(skill) = brain.custom_skill(name).map_err(AcquireError::ReadSkill)? else {
            self.retire_current(state, name);
            return Ok(None);
        };
        let files = skill_files(&skill);
        let hash = content_hash(name, &files);
        let dir = self.root.join(&hash);
        if state.current.get(name) != Some(&hash) {
            if !state.lease_counts.contains_key(&hash) {
                self.write_dir(&dir, name, &files).map_err(AcquireError::WriteFiles)?;
            }
            self.retire_current(state, name);
            state.current.insert(name.to_owned(), hash.clone());
        }
        *state.lease_counts.entry(hash.clone()).or_default() += 1;
        let lease = DirLease { dirs: Arc::clone(self), hash };
        Ok(Some(LeasedSkill { skill, folder: dir.join(name), lease }))
    }

    /// Records that the skill `name` was changed or deleted: removes its folder, or leaves that to the last lease.
    /// Blocks.
    pub fn invalidate(&self, name: &str) {
        let mut state = self.state.lock();
        match self.initialized(&mut state) {
            Ok(state) => self.retire_current(state, name),
            Err(error) => {
                tracing::warn!(%error, "The skill folders of an earlier run could not be removed.");
            }
        }
    }

    /// Releases one lease of a folder. Blocks.
    fn release(&self, hash: &str) {
        let mut state = self.state.lock();
        let Some(state) = state.as_mut() else { return };
        match state.lease_counts.get_mut(hash) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                state.lease_counts.remove(hash);
                if !state.current.values().any(|current| current == hash) {
                    self.remove_dir(hash);
                }
            }
        }
    }

    /// Returns the state, after removing what an earlier run left behind.
    fn initialized<'a>(&self, state: &'a mut Option<DirState>) -> io::Result<&'a mut DirState> {
        match state {
            Some(state) => Ok(state),
            none => {
                remove_stale_dirs(&self.root)?;
                Ok(none.insert(DirState::default()))
            }
        }
    }

    fn write_dir(&self, dir: &Path, name: &str, files: &[SkillFile]) -> io::Result<()> {
        let unfinished = self.root.join(STAGING_DIR);
        remove_dir_if_present(&unfinished)?;
        write_files(&unfinished.join(name), files)?;
        remove_dir_if_present(dir)?;
        fs::rename(&unfinished, dir)
    }

    /// Marks the skill's current folder as outdated.
    fn retire_current(&self, state: &mut DirState, name: &str) {
        if let Some(hash) = state.current.remove(name).filter(|hash| !state.lease_counts.contains_key(hash)) {
            self.remove_dir(&hash);
        }
    }

    /// Removes an unused folder. What cannot be removed goes at the next start of the engine.
    fn remove_dir(&self, hash: &str) {
        if let Err(error) = remove_dir_if_present(&self.root.join(hash)) {
            tracing::warn!(%error, "A skill folder could not be removed; the next start of the engine retries.");
        }
    }
}

impl Drop for DirLease {
    fn drop(&mut self) {
        let (dirs, hash) = (Arc::clone(&self.dirs), std::mem::take(&mut self.hash));
        let release = move || dirs.release(&hash);
        // A runtime that is shutting down may not run this any more; then the next start of the engine does it.
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(release)),
            Err(_) => release(),
        }
    }
}

impl std::fmt::Debug for DirLease {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("DirLease").field(&self.hash).finish()
    }
}

fn write_files(folder: &Path, files: &[SkillFile]) -> io::Result<()> {
    for file in files {
        let path = folder.join(&file.path);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, &file.content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode()))?;
    }
    Ok(())
}

/// Removes the folders of an earlier run, and nothing else that may be there.
fn remove_stale_dirs(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if is_managed_dir_name(&entry.file_name()) && entry.file_type()?.is_dir() {
            remove_dir_if_present(&entry.path())?;
        }
    }
    Ok(())
}

/// Whether a folder's name is one that is given here.
fn is_managed_dir_name(name: &OsStr) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let name = name.as_encoded_bytes();
    name == STAGING_DIR.as_bytes() || (name.len() == 2 * HASH_BYTES && name.iter().all(is_digit))
}

/// Removes a folder with its content, if it exists.
fn remove_dir_if_present(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns a hash that distinguishes this version of a skill from every other skill and version.
fn content_hash(name: &str, files: &[SkillFile]) -> String {
    let mut hash = Sha256::new();
    let parts = files.iter().flat_map(|file| [file.path.as_bytes(), file.content.as_slice()]);
    for part in std::iter::once(name.as_bytes()).chain(parts) {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    let mut hash = hex::encode(hash.finalize());
    hash.truncate(2 * HASH_BYTES);
    hash
}

#[cfg(test)]
#[path = "../../tests/unit/skills/skill_dirs.rs"]
mod tests;
