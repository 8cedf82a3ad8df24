//! A file below `tests`, such as a story or one of unit tests, is compiled only if a module names it. One that none
//! names would never run, and nobody would notice.

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

/// Whether Cargo compiles this file of a package's `tests` as a test of its own: `tests/x.rs` or `tests/x/main.rs`.
fn is_root(file: &Path, tests: &Path) -> bool {
    let within = file.strip_prefix(tests).unwrap();
    match within.components().count() {
        1 => true,
        2 => within.ends_with("main.rs"),
        _ => false,
    }
}

/// The files below a package's `tests` that no compiled file names.
fn unnamed_files(package: &Path) -> Vec<PathBuf> {
    let tests = package.join("tests");
    let files = rust_files(&tests);
    let roots = files.iter().filter(|file| is_root(file, &tests)).cloned();
    let sources = rust_files(&package.join("src")).into_iter().chain(roots);
    let mut to_read: Vec<PathBuf> = sources.map(|path| path.canonicalize().unwrap()).collect();
    let mut compiled: BTreeSet<PathBuf> = to_read.iter().cloned().collect();
    while let Some(file) = to_read.pop() {
        let new = named_files(&file).into_iter().filter(|path| compiled.insert(path.clone()));
        to_read.extend(new);
    }
    files.into_iter().filter(|path| !compiled.contains(&path.canonicalize().unwrap())).collect()
}

#[test]
fn every_file_of_tests_is_compiled() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut packages = Vec::new();
    for folder in ["crates", "testing"] {
        packages.extend(fs::read_dir(workspace.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    let files: usize = packages.iter().map(|package| rust_files(&package.join("tests")).len()).sum();
    assert!(files > 400, "{files} files");
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
    write("tests/rules.rs", "mod common;\n");
    write("tests/common/mod.rs", "");
    write("tests/stories/main.rs", "mod tools;\n");
    write("tests/stories/tools.rs", "mod web;\n");
    write("tests/stories/tools/web.rs", "");
    assert_eq!(unnamed_files(package.path()), Vec::<PathBuf>::new());
    // Only a file that is not compiled itself names the second one.
    write("tests/unit/forgotten.rs", "mod lost;\n");
    write("tests/unit/lost.rs", "");
    write("tests/stories/tools/untold.rs", "");
    let names: BTreeSet<PathBuf> = unnamed_files(package.path()).into_iter().collect();
    let expected = ["unit/forgotten", "unit/lost", "stories/tools/untold"];
    let expected = expected.map(|name| package.path().join(format!("tests/{name}.rs")));
    assert_eq!(names, BTreeSet::from(expected));
}
