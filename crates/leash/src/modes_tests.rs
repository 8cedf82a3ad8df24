use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn what_a_program_changes_beside_its_workspace_is_put_back() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    fs::create_dir(path("workspace")).unwrap();
    fs::write(path("brain.db"), "").unwrap();
    fs::set_permissions(path("brain.db"), Permissions::from_mode(0o640)).unwrap();
    let before = mode(home.path());
    let modes = Modes::beside(&path("workspace"));

    fs::write(path("brain.db-wal"), "").unwrap();
    for (name, changed) in [("brain.db-wal", 0o000), ("brain.db", 0o777), ("workspace", 0o755), (".", 0o000)]
    {
        fs::set_permissions(path(name), Permissions::from_mode(changed)).unwrap();
    }
    modes.restore();

    assert_eq!(mode(home.path()), before);
    assert_eq!(mode(&path("brain.db")), 0o640);
    assert_eq!(mode(&path("brain.db-wal")), 0o600);
    assert_eq!(mode(&path("workspace")), 0o755, "the workspace is the program's own");
}
