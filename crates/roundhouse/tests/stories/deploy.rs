//! What is in `deploy/` is taken by the programs that it is for.

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
    // Program and user are those of a deployment.
    let here =
        unit.replace("/usr/local/bin/roundhouse", "/bin/true").replace("User=roundhouse", "User=daemon");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("roundhouse.service");
    fs::write(&file, here).unwrap();
    let judged = Command::new("systemd-analyze").arg("verify").arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&judged.stderr);
    let of_the_unit = |line: &&str| line.contains("roundhouse.service");
    assert_eq!(said.lines().filter(of_the_unit).collect::<Vec<_>>(), [""; 0], "{said}");
}

/// docker-compose 1.29, which distributions still ship, takes a file without a version, but only these.
#[test]
fn compose_has_nothing_at_its_top_that_older_ones_refuse() {
    let compose = fs::read_to_string(deploy("compose.yaml")).unwrap();
    let top = compose.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_alphabetic()));
    assert_eq!(top.collect::<Vec<_>>(), ["services:", "volumes:"]);
}
