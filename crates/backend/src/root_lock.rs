//! The lock on the root of the engines' data: of two orchestrators with different registries, only one may use it.
//!
//! A registry may have been copied to another database, for example for a trial on the same host. The copy
//! has the same deployment id, so its orchestrator would adopt, put to sleep and kill the engines of the
//! original. Orchestrators of the same registry are excluded by the registry's leader lock instead: a frozen
//! orchestrator keeps the root's lock, and its successor proceeds without it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

/// The extended attribute of the root that names the registry whose orchestrator acquired the lock last. It
/// is an attribute because the root contains nothing but engines' folders.
const HOLDER_ATTRIBUTE: &str = "user.roundhouse.registry";

/// The longest registry name that is read; every registry's name is shorter.
const MAX_NAME_BYTES: usize = 256;

/// One orchestrator's lock on the root.
#[derive(Debug)]
pub(super) struct RootLock {
    /// The unique name of the orchestrator's registry.
    registry: String,
    /// The open root while it is locked.
    locked_root: Option<File>,
}

impl RootLock {
    pub(super) const fn new(registry: String) -> Self {
        Self { registry, locked_root: None }
    }

    /// Acquires the lock on `root`. Returns the name of another registry if its orchestrator holds the lock.
    /// Blocks.
    pub(super) fn acquire(&mut self, root: &Path) -> io::Result<Option<String>> {
        let current = fs::metadata(root)?;
        if let Some(held) = &self.locked_root {
            let held = held.metadata()?;
            // Another disk may have been mounted since.
            if (held.dev(), held.ino()) == (current.dev(), current.ino()) {
                return Ok(None);
            }
            self.locked_root = None;
        }
        let folder = File::open(root)?;
        match folder.try_lock() {
            Ok(()) => {
                match setxattr(root, HOLDER_ATTRIBUTE, self.registry.as_bytes(), XattrFlags::empty()) {
                    // Without the attribute nobody is refused: the lock alone does not show whose registry it is.
                    Ok(()) | Err(Errno::NOTSUP | Errno::PERM | Errno::NOSPC) => {}
                    Err(error) => return Err(error.into()),
                }
                self.locked_root = Some(folder);
                Ok(None)
            }
            Err(TryLockError::WouldBlock) => Ok(read_holder(root)?.filter(|holder| *holder != self.registry)),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Returns the registry whose orchestrator acquired the lock last; `None` if that is not recorded.
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
    fn regression_o27_a_second_registry_is_refused_for_as_long_as_the_first_is_at_work() {
        let root = tempfile::tempdir().unwrap();
        let mut first = RootLock::new("first".to_owned());
        let mut copy = RootLock::new("copy".to_owned());
        let mut successor = RootLock::new("first".to_owned());
        for _ in 0..2 {
            assert_eq!(first.acquire(root.path()).unwrap(), None);
            assert_eq!(copy.acquire(root.path()).unwrap().as_deref(), Some("first"));
            // An orchestrator of the same registry, which has replaced a frozen one.
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
