//! Where the user's own skills lie as folders, for programs that run their scripts: beside the brain, where programs on
//! the leash can read and run them but change nothing.
//!
//! The brain alone says what a skill is. A folder is made when it is first needed, and made anew after a start of the
//! engine: what lies there from an earlier run is not trusted.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

use super::folder::{SkillFile, files};
use crate::brain::CustomSkill;

/// Where a folder is made before it gets its place.
const UNFINISHED: &str = ".unfinished";

/// See the module.
pub(crate) struct Shelf {
    folder: PathBuf,
    /// The skills whose folders were made, each with the hash that its place is called by; none before the first.
    made: Mutex<Option<BTreeMap<String, String>>>,
}

impl Shelf {
    /// A shelf in `folder`, which is made when it is first needed.
    pub(crate) fn new(folder: &Path) -> Self {
        // Programs begin in the workspace, where a relative path leads to something else.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        Self { folder, made: Mutex::default() }
    }

    /// What programs must be able to read.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a skill as it is now. One that it had before is gone. Blocks.
    pub(crate) fn place(&self, skill: &CustomSkill) -> io::Result<PathBuf> {
        let files = files(skill);
        let name = skill.name.as_str();
        let hash = hash(name, &files);
        let place = self.folder.join(&hash);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let made = self.begun(&mut made)?;
        if made.get(name) != Some(&hash) {
            let unfinished = self.folder.join(UNFINISHED);
            clear(&unfinished)?;
            write(&unfinished.join(name), &files)?;
            clear(&place)?;
            fs::rename(&unfinished, &place)?;
            if let Some(before) = made.insert(name.to_owned(), hash) {
                clear(&self.folder.join(before))?;
            }
        }
        Ok(place.join(name))
    }

    /// Takes the folder of a skill that is gone away, if there is one. Blocks.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match self.begun(&mut made)?.remove(name) {
            Some(hash) => clear(&self.folder.join(hash)),
            None => Ok(()),
        }
    }

    /// What was made, once what an earlier run left is gone.
    fn begun<'a>(
        &self,
        made: &'a mut Option<BTreeMap<String, String>>,
    ) -> io::Result<&'a mut BTreeMap<String, String>> {
        match made {
            Some(made) => Ok(made),
            none => {
                clear(&self.folder)?;
                Ok(none.insert(BTreeMap::new()))
            }
        }
    }
}

fn write(folder: &Path, files: &[SkillFile]) -> io::Result<()> {
    for file in files {
        let path = folder.join(&file.path);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, &file.content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode()))?;
    }
    Ok(())
}

/// Takes a folder away with all that is in it, if it is there.
fn clear(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What tells a skill from every other one, and from what it was before.
fn hash(name: &str, files: &[SkillFile]) -> String {
    let mut hash = Sha256::new();
    let parts = files.iter().flat_map(|file| [file.path.as_bytes(), file.content.as_slice()]);
    for part in std::iter::once(name.as_bytes()).chain(parts) {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    let half = hash.finalize().into_iter().take(16);
    half.map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use contract::skills::SkillDefinition;
    use contract::{SkillName, Timestamp};

    use super::*;

    fn skill(name: &str, script: &str) -> CustomSkill {
        let scripts = BTreeMap::from([("run.sh".to_owned(), script.to_owned())]);
        let at = Timestamp::from_unix_ms(0);
        CustomSkill {
            name: SkillName::new(name).unwrap(),
            definition: SkillDefinition { scripts, ..SkillDefinition::default() },
            created_at: at,
            updated_at: at,
        }
    }

    fn places(folder: &Path) -> usize {
        fs::read_dir(folder).map_or(0, Iterator::count)
    }

    #[test]
    fn a_folder_is_as_the_skill_is_now() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("skills");
        let shelf = Shelf::new(&folder);
        assert!(!folder.exists());
        let first = shelf.place(&skill("greet", "#!/bin/sh\necho 1")).unwrap();
        assert!(first.ends_with("greet") && first.starts_with(&folder));
        let script = first.join("scripts/run.sh");
        assert_eq!(fs::read_to_string(&script).unwrap(), "#!/bin/sh\necho 1");
        assert_eq!(fs::metadata(&script).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(shelf.place(&skill("greet", "#!/bin/sh\necho 1")).unwrap(), first);
        let second = shelf.place(&skill("greet", "echo 2")).unwrap();
        assert_eq!(fs::read_to_string(second.join("scripts/run.sh")).unwrap(), "echo 2");
        assert!(!first.exists());
        // Another skill of the same scripts has a folder of its own name.
        let other = shelf.place(&skill("other", "echo 2")).unwrap();
        assert!(other.ends_with("other") && second.exists());
        shelf.remove("greet").unwrap();
        shelf.remove("greet").unwrap();
        assert!(!second.exists() && other.exists());
        assert_eq!(places(&folder), 1);
    }

    #[test]
    fn what_an_earlier_run_left_is_not_trusted() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("skills");
        let place = Shelf::new(&folder).place(&skill("greet", "echo 1")).unwrap();
        fs::write(place.join("scripts/run.sh"), "echo forged").unwrap();
        fs::write(place.join("scripts/more.sh"), "echo more").unwrap();
        fs::create_dir_all(folder.join(UNFINISHED).join("half")).unwrap();
        let again = Shelf::new(&folder).place(&skill("greet", "echo 1")).unwrap();
        assert_eq!(again, place);
        assert_eq!(fs::read_to_string(place.join("scripts/run.sh")).unwrap(), "echo 1");
        assert!(!place.join("scripts/more.sh").exists() && places(&folder) == 1);
        // Nor does it outlive its skill.
        Shelf::new(&folder).remove("greet").unwrap();
        assert_eq!(places(&folder), 0);
    }
}
