//! No key may be read anywhere: every file of the deployment is searched.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// The prefixes of keys.
const PREFIXES: [&[u8]; 2] = [b"sk-svc-", b"pk-svc-"];
/// How many characters of a key follow its prefix.
const BODY: usize = 43;

/// The files below `folder` in which a key is found, or one of `secrets`, with what was found.
pub(crate) fn leaks(folder: &Path, secrets: &[String]) -> std::io::Result<Vec<String>> {
    let bodies: HashSet<&[u8]> = secrets
        .iter()
        .map(String::as_bytes)
        .filter_map(|secret| secret.len().checked_sub(BODY).and_then(|begin| secret.get(begin..)))
        .collect();
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file()
                && let Some(what) = leak(&fs::read(entry.path())?, &bodies)
            {
                found.push(format!("{} holds {what}", entry.path().display()));
            }
        }
    }
    Ok(found)
}

fn leak(bytes: &[u8], bodies: &HashSet<&[u8]>) -> Option<&'static str> {
    let is_text = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    // A key is a run of such characters, or a part of one.
    for run in bytes.split(|byte| !is_text(byte)).filter(|run| run.len() >= BODY) {
        if run.windows(BODY).any(|window| bodies.contains(window)) {
            return Some("a secret of this deployment");
        }
        let is_key = |prefix: &[u8]| {
            run.windows(prefix.len())
                .position(|window| window == prefix)
                .is_some_and(|at| run.len() - at >= prefix.len() + BODY)
        };
        if PREFIXES.into_iter().any(is_key) {
            return Some("a key");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_in_any_file_and_a_hash_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let secret = "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0_-x".to_owned();
        assert_eq!(secret.len(), BODY);
        let deep = folder.path().join("engines/eng_1");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("engine.log"), format!("hash={} sk-svc-short", "0a".repeat(32))).unwrap();
        assert!(leaks(folder.path(), std::slice::from_ref(&secret)).unwrap().is_empty());
        fs::write(deep.join("engine.log"), format!("key={secret}.")).unwrap();
        assert_eq!(leaks(folder.path(), std::slice::from_ref(&secret)).unwrap().len(), 1);
        fs::write(deep.join("engine.log"), format!("\0pk-svc-{secret}\0")).unwrap();
        assert_eq!(leaks(folder.path(), &[]).unwrap().len(), 1);
    }
}
