//! A fingerprint of the catalog's folder: an engine reads the catalog when it starts, so a warm engine that was booted
//! before a change of it differs from one that is booted now.
//!
//! It is of names, sizes and times of change, so that a provision can compare it: no file is read.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// The most entries that are looked at. A catalog has far fewer.
const MAX_ENTRIES: usize = 20_000;
/// The deepest folder that is looked at. Links may lead in circles.
const MAX_DEPTH: usize = 16;

/// Returns the fingerprint of the folder at `path`. Blocks.
pub(super) fn fingerprint(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut entries = 0;
    add_folder(path, 0, &mut entries, &mut hash)?;
    Ok(hex::encode(hash.finalize()))
}

fn add_folder(path: &Path, depth: usize, entries: &mut usize, hash: &mut Sha256) -> io::Result<()> {
    let mut names = fs::read_dir(path)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        *entries += 1;
        if *entries > MAX_ENTRIES || depth > MAX_DEPTH {
            return Err(io::Error::other("the catalog has too many files or folders"));
        }
        let path = path.join(&name);
        let metadata = match fs::metadata(&path) {
            // It was just removed, or is a link that leads nowhere.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        hash.update(name.as_encoded_bytes());
        hash.update([0, u8::from(metadata.is_dir())]);
        if metadata.is_dir() {
            add_folder(&path, depth + 1, entries, hash)?;
        } else {
            for number in [metadata.ino(), metadata.size()] {
                hash.update(number.to_le_bytes());
            }
            for number in [metadata.mtime(), metadata.mtime_nsec()] {
                hash.update(number.to_le_bytes());
            }
        }
        // The end of a folder is part of it: the same names at another depth are another catalog.
        hash.update([1]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_of_a_file_or_a_name_changes_it_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let print = || fingerprint(folder.path()).unwrap();
        let mut seen = vec![print()];
        let mut changed = |what: &str| {
            let now = print();
            assert!(!seen.contains(&now), "{what}");
            assert_eq!(now, print());
            seen.push(now);
        };
        fs::write(folder.path().join("soul.md"), "Kind.").unwrap();
        changed("a new file");
        fs::write(folder.path().join("soul.md"), "Kinder.").unwrap();
        changed("another content");
        fs::create_dir(folder.path().join("skills")).unwrap();
        changed("a new folder");
        fs::write(folder.path().join("skills/a.md"), "").unwrap();
        changed("a file in a folder");
        fs::rename(folder.path().join("skills/a.md"), folder.path().join("skills/b.md")).unwrap();
        changed("another name");
    }

    #[test]
    fn a_folder_that_leads_into_itself_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("again")).unwrap();
        assert!(fingerprint(folder.path()).is_err());
        assert!(fingerprint(&folder.path().join("missing")).is_err());
    }
}
