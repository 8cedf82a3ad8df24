//! The lock on the root of the engines' data: of two orchestrators that mean the same data by different registries, the
//! second one refuses.
//!
//! Such is a registry that was copied to another database, for a trial on the same host say. It has the deployment's id,
//! so its orchestrator would adopt, put to sleep and end the engines of the first one. Orchestrators of one registry are
//! kept apart by the registry itself: one that is frozen keeps the root's lock, and its successor works all the same.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::fault_injection::{self, Mutation};

/// Which registry's orchestrator took the lock last: an extended attribute of the root, which holds nothing but engines'
/// folders.
const HOLDER_ATTRIBUTE: &str = "user.roundhouse.registry";

/// Longer than the name of any registry.
const MAX_NAME_BYTES: usize = 256;

/// The lock of one orchestrator.
#[derive(Debug)]
pub(super) struct RootLock {
    /// What no two registries share.
    registry: String,
    /// The root while it is locked.
    locked_root: Option<File>,
}

impl RootLock {
    pub(super) const fn new(registry: String) -> Self {
        Self { registry, locked_root: None }
    }

    /// Takes the lock on `root`. Returns the other registry if that of another one is at work there. Blocks.
    pub(super) fn acquire(&mut self, root: &Path) -> io::Result<Option<String>> {
        let there = fs::metadata(root)?;
        if let Some(held) = &self.locked_root {
            let held = held.metadata()?;
            // Another disk may have been mounted since.
            if (held.dev(), held.ino()) == (there.dev(), there.ino()) {
                return Ok(None);
            }
            self.locked_root = None;
        }
        let folder = File::open(root)?;
        match folder.try_lock() {
            Ok(()) => {
                match setxattr(root, HOLDER_ATTRIBUTE, self.registry.as_bytes(), XattrFlags::empty()) {
                    // Without the name nobody is refused: a lock alone does not tell two registries from one.
                    Ok(()) | Err(Errno::NOTSUP | Errno::PERM | Errno::NOSPC) => {}
                    Err(error) => return Err(error.into()),
                }
                self.locked_root = Some(folder);
                Ok(None)
            }
            Err(TryLockError::WouldBlock) if fault_injection::active(Mutation::ShareRoot) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(read_holder(root)?.filter(|holder| *holder != self.registry)),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Whose orchestrator took the lock last, as far as that is known.
fn read_holder(root: &Path) -> io::Result<Option<String>> {
    let mut name = [0; MAX_NAME_BYTES];
    match getxattr(root, HOLDER_ATTRIBUTE, &mut name[..]) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(name.get(..length).unwrap_or_default()).into_owned())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lesson_o27_a_second_registry_is_refused_for_as_long_as_the_first_is_at_work() {
        let root = tempfile::tempdir().unwrap();
        let mut first = RootLock::new("first".to_owned());
        let mut copy = RootLock::new("copy".to_owned());
        let mut successor = RootLock::new("first".to_owned());
        for _ in 0..2 {
            assert_eq!(first.acquire(root.path()).unwrap(), None);
            assert_eq!(copy.acquire(root.path()).unwrap().as_deref(), Some("first"));
            // One of the same registry, which has taken it over from a frozen one.
            assert_eq!(successor.acquire(root.path()).unwrap(), None);
        }
        drop(first);
        assert_eq!(copy.acquire(root.path()).unwrap(), None);
        assert_eq!(successor.acquire(root.path()).unwrap().as_deref(), Some("copy"));
    }

    #[test]
    fn another_disk_in_the_roots_place_is_locked_anew() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("engines");
        fs::create_dir(&root).unwrap();
        let mut lock = RootLock::new("first".to_owned());
        assert_eq!(lock.acquire(&root).unwrap(), None);
        fs::rename(&root, folder.path().join("aside")).unwrap();
        fs::create_dir(&root).unwrap();
        assert_eq!(lock.acquire(&root).unwrap(), None);
        assert_eq!(RootLock::new("copy".to_owned()).acquire(&root).unwrap().as_deref(), Some("first"));
    }
}
