//! Turns the files of the workspace into those of its mutated copy.
//!
//! The copy is built in the workspace's target directory, so that dependencies are compiled once. Cargo tells
//! packages apart by their paths in the workspace, so in the copy they are at other paths: everything but the
//! workspace's manifest and lock file is in [`FOLDER`].

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};

use crate::definitions::Mutant;
use crate::edits;
use crate::files::Files;

/// The folder of the copy that all files are in but those that make it a workspace.
pub(crate) const FOLDER: &str = "mutated";

/// Returns the files of the mutated copy, given those of the workspace.
///
/// # Errors All edits that do not fit.
pub(crate) fn mutate(mut files: Files, mutants: &[Mutant]) -> anyhow::Result<Files> {
    let edited: BTreeSet<&str> =
        mutants.iter().flat_map(|mutant| &mutant.edits).map(|edit| &*edit.file).collect();
    let mut problems = Vec::new();
    for file in &edited {
        let Some(content) = files.get_mut(*file) else {
            problems.push(format!("{file}, which a mutant edits, does not exist"));
            continue;
        };
        match edits::apply(file, &text(file, content)?, mutants) {
            Ok(mutated) => *content = mutated.into(),
            Err(found) => problems.extend(found),
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n\n"));
    }

    let crates: BTreeSet<&str> = edited.iter().filter_map(|file| crate_folder(file)).collect();
    for folder in crates {
        change(&mut files, &format!("{folder}/Cargo.toml"), with_dependency)?;
        let package = folder.rsplit('/').next().unwrap_or_default();
        change(&mut files, "Cargo.lock", |lock| with_locked_dependency(lock, package))?;
    }
    change(&mut files, "Cargo.toml", |manifest| {
        let moved =
            |text: String, folder| text.replace(&format!("\"{folder}/"), &format!("\"{FOLDER}/{folder}/"));
        Some(["crates", "testing"].into_iter().fold(manifest.to_owned(), moved))
    })?;
    Ok(files.into_iter().map(|(path, content)| (destination(path), content)).collect())
}

fn destination(path: String) -> String {
    if ["Cargo.toml", "Cargo.lock"].contains(&&*path) { path } else { format!("{FOLDER}/{path}") }
}

/// Returns the folder of the crate that a file is in, such as `crates/engine`.
fn crate_folder(file: &str) -> Option<&str> {
    let (end, _) = file.match_indices('/').nth(1)?;
    file.get(..end)
}

fn with_dependency(manifest: &str) -> Option<String> {
    let (before, dependencies) = manifest.split_once("\n[dependencies]\n")?;
    Some(format!(
        "{before}\n[dependencies]\nmutants = {{ path = \"../../testing/mutants\" }}\n{dependencies}"
    ))
}

/// The lock file lists the dependency as well, so that the copy builds with `--locked`.
fn with_locked_dependency(lock: &str, package: &str) -> Option<String> {
    let (before, after) = lock.split_once(&format!("\nname = \"{package}\"\n"))?;
    let (fields, after) = after.split_once("\ndependencies = [\n")?;
    let (list, after) = after.split_once("]\n")?;
    if fields.contains("[[package]]") {
        return None;
    }
    let mut names: Vec<&str> = list.lines().chain([" \"mutants\","]).collect();
    names.sort_unstable();
    let names = names.join("\n");
    Some(format!("{before}\nname = \"{package}\"\n{fields}\ndependencies = [\n{names}\n]\n{after}"))
}

fn change(files: &mut Files, path: &str, change: impl FnOnce(&str) -> Option<String>) -> anyhow::Result<()> {
    let content = files.get_mut(path).with_context(|| format!("there is no {path}"))?;
    let changed = change(&text(path, content)?)
        .with_context(|| format!("{path} has no list of dependencies to extend"))?;
    *content = changed.into();
    Ok(())
}

fn text(path: &str, content: &[u8]) -> anyhow::Result<String> {
    String::from_utf8(content.to_vec()).with_context(|| format!("{path} is not UTF-8"))
}

#[cfg(test)]
#[path = "../tests/unit/workspace_copy.rs"]
mod tests;
