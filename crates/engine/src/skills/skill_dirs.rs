//! Where the user's own skills lie as folders, for programs that run their scripts: beside the brain, where programs on
//! the leash can read and run them but change nothing.
//!
//! The brain alone says what a skill is. A folder is made when a program is about to use it, and made anew after a start
//! of the engine: what lies there from an earlier run is not trusted. It stays as it is for as long as a program uses
//! it, and goes with the last one where the skill has changed meanwhile, or is gone.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;

use super::skill_format::{SkillFile, skill_files};
use crate::store::{Brain, CustomSkill};

/// What the shelf's name ends with; before it stands that of the brain's file. So no two engines share one, nor is it
/// a folder that somebody else may have made there.
const DIR_SUFFIX: &str = ".skills";
/// Where a folder is made before it gets its place.
const STAGING_DIR: &str = ".unfinished";
/// How many bytes of a hash a place is called by. Its name has two hexadecimal digits for each.
const HASH_BYTES: usize = 16;

/// See the module.
pub(crate) struct SkillDirs {
    root: PathBuf,
    /// None before the first use.
    state: Mutex<Option<DirState>>,
}

/// What lies on a shelf. Each place is called by a hash, and holds a skill as it was at one time.
#[derive(Default)]
struct DirState {
    /// The places of skills as they were when last asked for, by the skills' names.
    current: BTreeMap<String, String>,
    /// How many leases of each place there are; at least one.
    lease_counts: BTreeMap<String, usize>,
}

/// A skill that lies on the shelf.
#[derive(Debug)]
pub(crate) struct LeasedSkill {
    /// The skill as it lies there.
    pub(crate) skill: CustomSkill,
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// Keeps it there.
    pub(crate) lease: DirLease,
}

/// As long as this is held, a skill's folder stays as it is.
pub(crate) struct DirLease {
    dirs: Arc<SkillDirs>,
    hash: String,
}

/// Why a skill could not be laid out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcquireError {
    /// The brain did not tell what it is.
    #[error("skills cannot be read: {0}")]
    ReadSkill(rusqlite::Error),
    /// Its folder could not be made.
    #[error("the skill's scripts cannot be laid out: {0}")]
    WriteFiles(io::Error),
}

impl SkillDirs {
    /// The shelf of the engine that has this brain, in a folder beside it, which is made when it is first needed.
    pub(crate) fn for_brain(brain: &Path) -> Self {
        let mut folder = brain.as_os_str().to_owned();
        folder.push(DIR_SUFFIX);
        // Programs begin in the workspace, where a relative path leads to something else.
        let folder = std::path::absolute(&folder).unwrap_or_else(|_| folder.into());
        Self { root: folder, state: Mutex::default() }
    }

    /// What programs must be able to read.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Lays the user's skill called `name` out as it is now; none where there is no such skill. A folder that it had
    /// before goes, unless there is a lease of it. Blocks.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        brain: &Brain,
        name: &str,
    ) -> Result<Option<LeasedSkill>, AcquireError> {
        let mut laid = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let laid = self.initialized(&mut laid).map_err(AcquireError::WriteFiles)?;
        // Read under the lock: what was read before could lie here for good although it was changed or deleted since.
        let Some(skill) = brain.custom_skill(name).map_err(AcquireError::ReadSkill)? else {
            self.retire_current(laid, name);
            return Ok(None);
        };
        let files = skill_files(&skill);
        let hash = content_hash(name, &files);
        let place = self.root.join(&hash);
        if laid.current.get(name) != Some(&hash) {
            if !laid.lease_counts.contains_key(&hash) {
                self.write_dir(&place, name, &files).map_err(AcquireError::WriteFiles)?;
            }
            self.retire_current(laid, name);
            laid.current.insert(name.to_owned(), hash.clone());
        }
        *laid.lease_counts.entry(hash.clone()).or_default() += 1;
        let lease = DirLease { dirs: Arc::clone(self), hash };
        Ok(Some(LeasedSkill { skill, folder: place.join(name), lease }))
    }

    /// The skill called `name` is gone, or is not what it was: takes its folder away, or leaves that to the last lease
    /// of it. Blocks.
    pub(crate) fn invalidate(&self, name: &str) {
        let mut laid = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.initialized(&mut laid) {
            Ok(laid) => self.retire_current(laid, name),
            Err(error) => {
                tracing::warn!(%error, "What an earlier run left of skills cannot be taken away.");
            }
        }
    }

    /// One lease of a place less. Blocks.
    fn release(&self, hash: &str) {
        let mut laid = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(laid) = laid.as_mut() else { return };
        match laid.lease_counts.get_mut(hash) {
            Some(lease_counts) if *lease_counts > 1 => *lease_counts -= 1,
            _ => {
                laid.lease_counts.remove(hash);
                if !laid.current.values().any(|current| current == hash) {
                    self.remove_dir(hash);
                }
            }
        }
    }

    /// What lies here, once what an earlier run left is gone.
    fn initialized<'a>(&self, laid: &'a mut Option<DirState>) -> io::Result<&'a mut DirState> {
        match laid {
            Some(laid) => Ok(laid),
            none => {
                remove_stale_dirs(&self.root)?;
                Ok(none.insert(DirState::default()))
            }
        }
    }

    fn write_dir(&self, place: &Path, name: &str, files: &[SkillFile]) -> io::Result<()> {
        let unfinished = self.root.join(STAGING_DIR);
        remove_dir_if_present(&unfinished)?;
        write_files(&unfinished.join(name), files)?;
        remove_dir_if_present(place)?;
        fs::rename(&unfinished, place)
    }

    /// From now on no folder is that of the skill as it is.
    fn retire_current(&self, laid: &mut DirState, name: &str) {
        if let Some(hash) = laid.current.remove(name).filter(|hash| !laid.lease_counts.contains_key(hash)) {
            self.remove_dir(&hash);
        }
    }

    /// Takes a place away that nothing uses. What is left of it goes at the next start of the engine.
    fn remove_dir(&self, hash: &str) {
        if let Err(error) = remove_dir_if_present(&self.root.join(hash)) {
            tracing::warn!(%error, "A folder of a skill could not be taken away.");
        }
    }
}

impl Drop for DirLease {
    fn drop(&mut self) {
        let (place, hash) = (Arc::clone(&self.dirs), std::mem::take(&mut self.hash));
        let release = move || place.release(&hash);
        // A runtime that is shutting down may not do it any more; then the next start of the engine does.
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

/// Takes away what a shelf left in its folder, and nothing else that may be there.
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

/// Whether a shelf calls its folders so.
fn is_managed_dir_name(name: &OsStr) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let name = name.as_encoded_bytes();
    name == STAGING_DIR.as_bytes() || (name.len() == 2 * HASH_BYTES && name.iter().all(is_digit))
}

/// Takes a folder away with all that is in it, if it is there.
fn remove_dir_if_present(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What tells a skill from every other one, and from what it was before.
fn content_hash(name: &str, files: &[SkillFile]) -> String {
    let mut hash = Sha256::new();
    let parts = files.iter().flat_map(|file| [file.path.as_bytes(), file.content.as_slice()]);
    for part in std::iter::once(name.as_bytes()).chain(parts) {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    let start = hash.finalize().into_iter().take(HASH_BYTES);
    start.map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

#[cfg(test)]
#[path = "skill_dirs_tests.rs"]
mod tests;
