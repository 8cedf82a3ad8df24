//! Reads the files of the workspace and writes those of its copy.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

/// The contents of files by their paths.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Reads what belongs to the workspace: all files that Git tracks, and the new ones that it does not ignore.
pub(crate) fn read(root: &Path) -> anyhow::Result<Files> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root).output().context("cannot run git")?;
    ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8(output.stdout)?;
    let mut files = Files::new();
    for path in list.split_terminator('\0') {
        match fs::read(root.join(path)) {
            Ok(content) => _ = files.insert(path.to_owned(), content),
            // Deleted, which Git has not been told yet.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(format!("cannot read {path}")),
        }
    }
    Ok(files)
}

/// Writes the files to `root`, of which `folder` then contains nothing else. A file that is the same already
/// stays untouched, so that Cargo compiles only what has changed.
pub(crate) fn write(files: &Files, root: &Path, folder: &str) -> anyhow::Result<()> {
    fs::create_dir_all(root.join(folder))?;
    remove_others(files, root, folder)?;
    for (path, content) in files {
        let path = root.join(path);
        if fs::read(&path).ok().as_ref() != Some(content) {
            fs::create_dir_all(path.parent().unwrap_or(root))?;
            fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

/// Removes from a folder what is not among the files.
fn remove_others(files: &Files, root: &Path, folder: &str) -> anyhow::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            remove_others(files, root, &path)?;
            // Fails, as it should, unless nothing is left in it.
            let _ = fs::remove_dir(entry.path());
        } else if !files.contains_key(&path) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "../tests/unit/files.rs"]
mod tests;
