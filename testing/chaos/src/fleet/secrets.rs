//! Searches every file of the deployment for keys: no key may be readable anywhere.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// The prefixes of keys.
const KEY_PREFIXES: [&[u8]; 2] = [b"sk-svc-", b"pk-svc-"];
/// How many characters of a key follow its prefix.
const KEY_BODY_LEN: usize = 43;

/// The secrets that must not be found anywhere.
#[derive(Clone, Debug)]
pub(crate) struct Secrets(HashSet<Vec<u8>>);

impl Secrets {
    /// Keeps the ends of `secrets`, which are as long as a key's.
    pub(crate) fn new<'a>(secrets: impl IntoIterator<Item = &'a String>) -> Self {
        let end = |secret: &String| {
            secret.as_bytes().get(secret.len().checked_sub(KEY_BODY_LEN)?..).map(<[u8]>::to_vec)
        };
        Self(secrets.into_iter().filter_map(end).collect())
    }

    /// The files below `folder` in which a key is found, or one of these, with what was found.
    pub(crate) fn scan_files(&self, folder: &Path) -> std::io::Result<Vec<String>> {
        let mut found = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in ignore_not_found(fs::read_dir(folder))?.into_iter().flatten() {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file()
                    && let Some(bytes) = ignore_not_found(fs::read(entry.path()))?
                    && let Some(what) = self.find(&bytes)
                {
                    found.push(format!("{} contains {what}", entry.path().display()));
                }
            }
        }
        Ok(found)
    }

    /// What of them, or which other key, is in `bytes`.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<&'static str> {
        let is_text = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        // A key is a run of such characters, or a part of one.
        for run in bytes.split(|byte| !is_text(byte)).filter(|run| run.len() >= KEY_BODY_LEN) {
            if run.windows(KEY_BODY_LEN).any(|window| self.0.contains(window)) {
                return Some("a secret of this deployment");
            }
            let is_key = |prefix: &[u8]| {
                run.windows(prefix.len())
                    .position(|window| window == prefix)
                    .is_some_and(|at| run.len() - at >= prefix.len() + KEY_BODY_LEN)
            };
            if KEY_PREFIXES.into_iter().any(is_key) {
                return Some("a key");
            }
        }
        None
    }
}

/// Ignores files that disappeared meanwhile, as files of PostgreSQL and of ending engines do.
fn ignore_not_found<T>(read: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_any_file_and_a_hash_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let secret = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0_-x".to_owned();
        assert_eq!(secret.len(), KEY_BODY_LEN);
        let deep = folder.path().join("engines/eng_1");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("engine.log"), format!("hash={} sk-svc-short", "0a".repeat(32))).unwrap();
        let secrets = Secrets::new([&secret]);
        assert!(secrets.scan_files(folder.path()).unwrap().is_empty());
        fs::write(deep.join("engine.log"), format!("key={secret}.")).unwrap();
        assert_eq!(secrets.scan_files(folder.path()).unwrap().len(), 1);
        fs::write(deep.join("engine.log"), format!("\0pk-svc-{secret}\0")).unwrap();
        assert_eq!(Secrets::new([]).scan_files(folder.path()).unwrap().len(), 1);
    }
}
