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
    let mut guard = MetadataGuard::snapshot(&path("workspace"));

    fs::write(path("brain.db-wal"), "").unwrap();
    for (name, changed) in [("brain.db-wal", 0o000), ("brain.db", 0o777), ("workspace", 0o755), (".", 0o000)]
    {
        fs::set_permissions(path(name), Permissions::from_mode(changed)).unwrap();
    }
    guard.restore();

    assert_eq!(mode(home.path()), before);
    assert_eq!(mode(&path("brain.db")), 0o640);
    assert_eq!(mode(&path("brain.db-wal")), 0o600);
    assert_eq!(mode(&path("workspace")), 0o755, "the guard leaves the workspace alone");
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).unwrap().modified().unwrap()
}

fn set_modified_time(path: &Path, time: SystemTime) {
    fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn a_time_that_is_none_of_a_write_becomes_the_present() {
    let home = tempfile::tempdir().unwrap();
    let (brain, workspace) = (home.path().join("brain.db"), home.path().join("workspace"));
    fs::write(&brain, "").unwrap();
    fs::create_dir(&workspace).unwrap();
    let initial = modified(&brain);
    let mut guard = MetadataGuard::snapshot(&workspace);
    let hour = Duration::from_hours(1);
    for wrong in
        [SystemTime::UNIX_EPOCH, initial - Duration::from_millis(1), initial + hour, initial + 9 * hour]
    {
        // Repeated attempts do not succeed either.
        for attempt in 0..3 {
            set_modified_time(&brain, wrong + Duration::from_nanos(attempt));
            guard.restore();
            let now = modified(&brain);
            assert!(now >= initial && now <= SystemTime::now(), "{wrong:?} became {now:?}");
        }
    }
}

#[test]
fn a_write_keeps_its_time() {
    let home = tempfile::tempdir().unwrap();
    let (brain, workspace) = (home.path().join("brain.db"), home.path().join("workspace"));
    fs::write(&brain, "").unwrap();
    fs::create_dir(&workspace).unwrap();
    set_modified_time(&brain, SystemTime::now() - Duration::from_hours(2));
    let mut guard = MetadataGuard::snapshot(&workspace);
    let before = modified(&brain);
    guard.restore();
    assert_eq!(modified(&brain), before, "an old time is valid");
    let later = SystemTime::now() - Duration::from_hours(1);
    set_modified_time(&brain, later);
    guard.restore();
    assert_eq!(modified(&brain), later, "a time that moves forward is valid");
}
