//! The files in `deploy/` are accepted by the programs that read them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn deploy(file: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy")).join(file)
}

#[test]
fn the_unit_is_one_and_keeps_engines_alive() {
    let unit = fs::read_to_string(deploy("roundhouse.service")).unwrap();
    for line in ["KillMode=process", "OOMPolicy=continue", "TasksMax=infinity", "Delegate=yes"] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        return;
    }
    // The program and the user exist only in a deployment.
    let adapted =
        unit.replace("/usr/local/bin/roundhouse", "/bin/true").replace("User=roundhouse", "User=daemon");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("roundhouse.service");
    fs::write(&file, adapted).unwrap();
    let verified = Command::new("systemd-analyze").arg("verify").arg(&file).output().unwrap();
    let output = String::from_utf8_lossy(&verified.stderr);
    let is_about_unit = |line: &&str| line.contains("roundhouse.service");
    assert_eq!(output.lines().filter(is_about_unit).collect::<Vec<_>>(), [""; 0], "{output}");
}

/// docker-compose 1.29, which distributions still ship, accepts a file without a version only if it has no other
/// top-level keys than these.
#[test]
fn compose_has_nothing_at_its_top_that_older_ones_refuse() {
    let compose = fs::read_to_string(deploy("compose.yaml")).unwrap();
    let top = compose.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_alphabetic()));
    assert_eq!(top.collect::<Vec<_>>(), ["services:", "volumes:"]);
}
