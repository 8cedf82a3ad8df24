use std::fs;

use super::{Files, write};

#[test]
fn what_is_the_same_stays_untouched_and_what_is_gone_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let files = |files: &[(&str, &str)]| -> Files {
        files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect()
    };
    let path = |path: &str| folder.path().join(path);
    let modified = |file: &str| fs::metadata(path(file)).unwrap().modified().unwrap();

    write(&files(&[("Cargo.toml", "1"), ("in/a/b", "1"), ("in/c", "1")]), folder.path(), "in").unwrap();
    let before = modified("in/c");
    fs::write(path("other"), "").unwrap();
    write(&files(&[("Cargo.toml", "2"), ("in/c", "1")]), folder.path(), "in").unwrap();

    assert_eq!(fs::read_to_string(path("Cargo.toml")).unwrap(), "2");
    assert_eq!(modified("in/c"), before);
    assert!(!path("in/a").exists());
    assert!(path("other").exists());
}
