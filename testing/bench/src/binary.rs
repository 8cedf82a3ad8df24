//! The binary under test, and private copies of binaries.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// Returns the binary to measure: `named`, or `roundhouse` in the folder of this program.
pub(crate) fn resolve(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => current_program()?.with_file_name("roundhouse"),
    };
    if path.is_file() {
        return Ok(path);
    }
    bail!(
        "there is no binary to measure at {}: build it with `cargo build --release`, or name one with --binary",
        path.display()
    )
}

/// Returns the path of this program, which also runs the baselines.
pub(crate) fn current_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("this program's path is unknown")
}

/// Copies `binary` to `to`, so that no other process maps it: shared memory is divided among the processes.
pub(crate) fn copy_private(binary: &Path, to: PathBuf) -> anyhow::Result<PathBuf> {
    fs::copy(binary, &to)
        .with_context(|| format!("{} cannot be copied to {}", binary.display(), to.display()))?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_binary_is_named_with_the_way_to_build_it() {
        let error = resolve(Some(Path::new("/nowhere/roundhouse"))).unwrap_err().to_string();
        assert!(error.contains("/nowhere/roundhouse") && error.contains("cargo build --release"), "{error}");
    }
}
