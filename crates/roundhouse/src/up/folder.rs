//! The folder of a `roundhouse up`: its keys, registry, engines and catalog.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use api::Timestamp;
use http_service::lock::{FileLock, LockError, LockHolder};
use rustix::fs::Access;

/// The file with the `demo` product's key.
pub(crate) const PLATFORM_KEY_FILE: &str = "platform.key";
/// The file with the `demo` product's key as a header, as `curl -H @FILE` reads it: other users of the machine can
/// read what is on command lines.
pub(super) const PLATFORM_HEADER_FILE: &str = "platform.header";
/// The file with the operator's key.
pub(crate) const ADMIN_KEY_FILE: &str = "admin.key";
/// The file with the orchestrator's address.
pub(crate) const ADDRESS_FILE: &str = "address";
/// The registry's file.
pub(super) const REGISTRY_FILE: &str = "registry.sqlite";
/// The engines' folder.
pub(crate) const ENGINES_FOLDER: &str = "engines";
/// The catalog's folder.
pub(super) const CATALOG_FOLDER: &str = "catalog";
const LOCK_FILE: &str = "lock";

/// Why a folder cannot be used, as shown to its owner.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FolderError {
    /// No folder was named, and there is no home directory for the default.
    #[error("neither HOME nor XDG_DATA_HOME is set: name a folder with --dir")]
    NoHome,
    /// The folder or a file in it cannot be used.
    #[error(
        "{path} cannot be used ({reason}): it must be a folder that you can write to; --dir names another"
    )]
    Unusable {
        /// The folder or file that cannot be used.
        path: PathBuf,
        /// The error that the system returned.
        reason: io::Error,
    },
    /// Another `up` is using the folder.
    #[error(
        "another `roundhouse up` ({holder}) uses {path}: end that one first, or name another folder with --dir"
    )]
    InUse {
        /// The folder in use.
        path: PathBuf,
        /// The process that holds the lock.
        holder: LockHolder,
    },
    /// A key is missing or damaged, but the data that it protects exists.
    #[error(
        "{path} {what}, and the registry beside it cannot be read without it: restore the key from a backup, or \
         move the folder away to start afresh (its engines are then lost)"
    )]
    BrokenKey {
        /// The key's file.
        path: PathBuf,
        /// The fault, worded to follow the path in the message.
        what: &'static str,
    },
}

/// The folder of a `roundhouse up`, not locked yet.
#[derive(Debug)]
pub(crate) struct UpFolder {
    path: PathBuf,
}

impl UpFolder {
    /// Resolves to `dir`, or to the default folder. Touches nothing on disk.
    pub(crate) fn resolve(dir: Option<&Path>) -> Result<Self, FolderError> {
        if let Some(dir) = dir {
            let path = std::path::absolute(dir)
                .map_err(|reason| FolderError::Unusable { path: dir.to_owned(), reason })?;
            return Ok(Self { path });
        }
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
        Ok(Self { path: data.ok_or(FolderError::NoHome)?.join("roundhouse") })
    }

    /// The folder's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the folder can be used, as far as that can be seen without changing anything.
    pub(super) fn check(&self) -> Result<(), FolderError> {
        let usable = || match fs::metadata(&self.path) {
            Ok(metadata) if !metadata.is_dir() => Err(io::ErrorKind::NotADirectory.into()),
            Ok(_) => Ok(rustix::fs::access(&self.path, Access::WRITE_OK | Access::EXEC_OK)?),
            // It can be created; if not, `lock` reports why.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        usable().map_err(|reason| FolderError::Unusable { path: self.path.clone(), reason })
    }

    /// Creates the folder if it is missing, and locks it for this process.
    pub(super) fn lock(&self, now: Timestamp) -> Result<LockedFolder<'_>, FolderError> {
        let unusable = |reason| FolderError::Unusable { path: self.path.clone(), reason };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path).map_err(unusable)?;
        let lock = FileLock::acquire(&self.path.join(LOCK_FILE), now).map_err(|error| match error {
            LockError::Held(holder) => FolderError::InUse { path: self.path.clone(), holder },
            LockError::Io { file, source } => FolderError::Unusable { path: file, reason: source },
        })?;
        Ok(LockedFolder { folder: self, _lock: lock })
    }
}

/// A folder locked by this process.
pub(super) struct LockedFolder<'a> {
    folder: &'a UpFolder,
    _lock: FileLock,
}

impl LockedFolder<'_> {
    /// The path of `name` in the folder.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.folder.path.join(name)
    }

    /// Reads the key in the file `name`, or creates it with `make` at the first start. Once there is a registry, a
    /// missing key is an error: a new key could not open the registry's secrets.
    pub(super) fn load_or_create_key<E>(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<String, E>,
        valid: impl FnOnce(&str) -> bool,
    ) -> Result<String, KeyError<E>> {
        let path = self.join(name);
        match fs::read_to_string(&path) {
            Ok(text) if valid(text.trim()) => Ok(text.trim().to_owned()),
            Ok(_) => Err(FolderError::BrokenKey { path, what: "does not hold a key" }.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.join(REGISTRY_FILE).exists() {
                    return Err(FolderError::BrokenKey { path, what: "is missing" }.into());
                }
                let key = make().map_err(KeyError::Make)?;
                self.write_secret(name, &key)?;
                Ok(key)
            }
            Err(reason) => Err(FolderError::Unusable { path, reason }.into()),
        }
    }

    /// Writes `name` atomically, readable only by its owner.
    pub(super) fn write_secret(&self, name: &str, text: &str) -> Result<(), FolderError> {
        let path = self.join(name);
        let draft = self.join(&format!("{name}.new"));
        let write = || {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            writeln!(file, "{text}")?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            File::open(&self.folder.path)?.sync_all()
        };
        write().map_err(|reason| FolderError::Unusable { path: path.clone(), reason })
    }
}

/// Why a key could not be loaded or created.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError<E> {
    /// The folder or the key's file cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// `make` failed.
    #[error("a key could not be generated")]
    Make(#[source] E),
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_ms(0);
    const MAKE: fn() -> io::Result<String> = || Ok("a-key".into());

    #[test]
    fn keys_are_made_once_and_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = UpFolder::resolve(Some(&dir.path().join("up"))).unwrap();
        let locked = folder.lock(NOW).unwrap();
        assert_eq!(locked.load_or_create_key("a.key", MAKE, |_| true).unwrap(), "a-key");
        assert_eq!(locked.load_or_create_key("a.key", || Err("made twice"), |_| true).unwrap(), "a-key");
        let mode = |name: &str| fs::metadata(locked.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("a.key"), 0o600);
        assert_eq!(fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_registry_without_its_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = UpFolder::resolve(Some(dir.path())).unwrap();
        let locked = folder.lock(NOW).unwrap();
        fs::write(locked.join(REGISTRY_FILE), "").unwrap();
        let missing = locked.load_or_create_key("a.key", MAKE, |_| true).unwrap_err().to_string();
        assert!(missing.contains("a.key is missing"), "{missing}");
        fs::write(locked.join("a.key"), "damaged").unwrap();
        let damaged = locked.load_or_create_key("a.key", MAKE, |_| false).unwrap_err().to_string();
        assert!(damaged.contains("does not hold a key"), "{damaged}");
    }

    #[test]
    fn a_folder_is_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let folder = UpFolder::resolve(Some(dir.path())).unwrap();
        let locked = folder.lock(NOW).unwrap();
        let second = folder.lock(NOW).err().unwrap().to_string();
        assert!(second.contains(&format!("process {}", std::process::id())), "{second}");
        drop(locked);
        assert!(folder.lock(NOW).is_ok());
    }

    #[test]
    fn what_cannot_be_a_folder_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let folder = UpFolder::resolve(Some(&file.path().join("up"))).unwrap();
        let refused = folder.lock(NOW).err().unwrap().to_string();
        assert!(refused.contains(file.path().to_str().unwrap()) && refused.contains("--dir"), "{refused}");
        for path in [file.path(), folder.path()] {
            let refused = UpFolder::resolve(Some(path)).unwrap().check().unwrap_err().to_string();
            assert!(refused.contains("Not a directory") || refused.contains("not a directory"), "{refused}");
        }
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("new/folder")] {
            UpFolder::resolve(Some(&path)).unwrap().check().unwrap();
            assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is touched");
        }
    }
}
