//! The definitions of the mutants: one file `<crate>.toml` for each crate whose regression tests catch them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

/// A guarantee of the product that can be switched off.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// Its name in `ROUNDHOUSE_MUTANT`, in snake case.
    pub(crate) name: String,
    /// What it does instead of keeping the guarantee.
    pub(crate) breaks: String,
    /// None if it shares the edits of another mutant.
    #[serde(default, rename = "edit")]
    pub(crate) edits: Vec<Edit>,
}

/// One place in the source that a mutant changes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Edit {
    /// The file's path in the workspace.
    pub(crate) file: String,
    /// The text to replace, which occurs exactly once in the file.
    pub(crate) find: String,
    /// What takes its place. `{find}` stands for the text that is replaced.
    pub(crate) replace: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Definitions {
    #[serde(default, rename = "mutant")]
    mutants: Vec<Mutant>,
}

/// Reads one file of definitions.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Mutant>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let definitions: Definitions =
        toml::from_str(&text).with_context(|| format!("{} is not valid", path.display()))?;
    Ok(definitions.mutants)
}

/// Reads the definitions of all crates: every `*.toml` of the package's folder but its manifest.
pub(crate) fn read_all(folder: &Path) -> anyhow::Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "toml") && !path.ends_with("Cargo.toml") {
            mutants.extend(read(&path)?);
        }
    }
    validate(&mutants)?;
    Ok(mutants)
}

fn validate(mutants: &[Mutant]) -> anyhow::Result<()> {
    let mut names = BTreeSet::new();
    for Mutant { name, breaks, edits } in mutants {
        ensure!(is_snake_case(name), "mutant {name:?}: its name is not in snake case");
        ensure!(names.insert(name), "mutant {name}: there are two of this name");
        ensure!(!breaks.trim().is_empty(), "mutant {name}: `breaks` does not say what it does");
        let switch = format!("\"{name}\"");
        let is_switched_in = |edit: &Edit| edit.replace.contains(&switch);
        ensure!(
            !edits.is_empty() || mutants.iter().flat_map(|mutant| &mutant.edits).any(is_switched_in),
            "mutant {name}: no edit belongs to it or names it"
        );
    }
    Ok(())
}

fn is_snake_case(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
}

#[cfg(test)]
#[path = "../tests/unit/definitions.rs"]
mod tests;
