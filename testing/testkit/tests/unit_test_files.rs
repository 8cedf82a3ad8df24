//! A file below `tests/unit` is compiled only if a module names it. One that none names would never run, and nobody
//! would notice.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// All Rust files of a folder and of those in it; none if it does not exist.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// The files in which the modules of a file may be.
fn named_files(file: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(file).unwrap();
    let (folder, own_folder) = (file.parent().unwrap(), file.with_extension(""));
    let mut named = Vec::new();
    for line in text.lines().map(str::trim) {
        let path = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]"));
        named.extend(path.map(|path| folder.join(path)));
        let module = line.strip_suffix(';').and_then(|rest| rest.rsplit_once("mod "));
        if let Some((_, name)) = module {
            for folder in [folder, &own_folder] {
                named.extend([folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")]);
            }
        }
    }
    named.iter().filter_map(|path| path.canonicalize().ok()).collect()
}

/// The files below a package's `tests/unit` that no compiled file names.
fn unnamed_files(package: &Path) -> Vec<PathBuf> {
    let mut to_read: Vec<PathBuf> =
        rust_files(&package.join("src")).iter().map(|path| path.canonicalize().unwrap()).collect();
    let mut compiled: BTreeSet<PathBuf> = to_read.iter().cloned().collect();
    while let Some(file) = to_read.pop() {
        let new = named_files(&file).into_iter().filter(|path| compiled.insert(path.clone()));
        to_read.extend(new);
    }
    let unit = rust_files(&package.join("tests/unit"));
    unit.into_iter().filter(|path| !compiled.contains(&path.canonicalize().unwrap())).collect()
}

#[test]
fn every_file_of_unit_tests_is_compiled() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut packages = Vec::new();
    for folder in ["crates", "testing"] {
        packages.extend(fs::read_dir(workspace.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    let files: usize = packages.iter().map(|package| rust_files(&package.join("tests/unit")).len()).sum();
    assert!(files > 150, "{files} files");
    let unnamed: Vec<PathBuf> = packages.iter().flat_map(|package| unnamed_files(package)).collect();
    assert!(unnamed.is_empty(), "no `#[path]` and no `mod` names {unnamed:#?}");
}

#[test]
fn a_file_that_nothing_names_is_found() {
    let package = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = package.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("src/lib.rs", "mod named;\n");
    write("src/named.rs", "#[cfg(test)]\n#[path = \"../tests/unit/named.rs\"]\nmod tests;\n");
    write("tests/unit/named.rs", "mod part;\n");
    write("tests/unit/named/part.rs", "");
    assert_eq!(unnamed_files(package.path()), Vec::<PathBuf>::new());
    // Only a file that is not compiled itself names the second one.
    write("tests/unit/forgotten.rs", "mod lost;\n");
    write("tests/unit/lost.rs", "");
    let names: BTreeSet<PathBuf> = unnamed_files(package.path()).into_iter().collect();
    let expected = ["forgotten", "lost"].map(|name| package.path().join(format!("tests/unit/{name}.rs")));
    assert_eq!(names, BTreeSet::from(expected));
}
