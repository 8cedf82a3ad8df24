//! Cassettes in files.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use api::cassettes::MAX_CASSETTE_BYTES;
use serde_json::value::RawValue;

use crate::error::Failure;

/// The most files of a set.
const MAX_FILES: usize = 10_000;

/// A file with a cassette.
pub(super) struct CassetteFile {
    path: PathBuf,
    /// Its name, for people.
    pub(super) name: String,
}

impl CassetteFile {
    pub(super) fn new(path: PathBuf) -> Self {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Self { path, name }
    }

    /// Reads it. The error says what is wrong and where.
    pub(super) fn read(&self) -> Result<Box<RawValue>, String> {
        let failed = |reason: &dyn std::fmt::Display| format!("{}: {reason}", self.path.display());
        let file = fs::File::open(&self.path).map_err(|error| failed(&error))?;
        let mut text = String::new();
        let limit = u64::try_from(MAX_CASSETTE_BYTES).unwrap_or(u64::MAX).saturating_add(1);
        file.take(limit).read_to_string(&mut text).map_err(|error| failed(&error))?;
        if text.len() > MAX_CASSETTE_BYTES {
            return Err(failed(&format_args!("a cassette has at most {MAX_CASSETTE_BYTES} bytes")));
        }
        serde_json::from_str(&text).map_err(|error| failed(&format_args!("it is no JSON: {error}")))
    }
}

/// The files `*.json` of a folder, by name.
pub(super) fn list(folder: &Path) -> Result<Vec<CassetteFile>, Failure> {
    let failed = |error| Failure::usage(format!("{}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "json") && path.is_file() {
            files.push(CassetteFile::new(path));
        }
    }
    if files.is_empty() || files.len() > MAX_FILES {
        let count = files.len();
        return Err(Failure::usage(format!(
            "{}: a set has 1 to {MAX_FILES} files `*.json`; there are {count}",
            folder.display()
        )));
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

/// Saves a cassette in a new file, which only its owner can read: it holds a conversation.
pub(super) fn save(path: &Path, cassette: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("--save {}: {error}", path.display()));
    let mut options = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(cassette.as_bytes()).and_then(|()| file.write_all(b"\n")).map_err(failed)
}
