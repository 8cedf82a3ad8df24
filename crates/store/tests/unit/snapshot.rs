//! Tests of snapshots: what they hold, what they cost, and that nothing of them remains.

use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};

use pretty_assertions::assert_eq;

use super::*;
use crate::Brain;

fn count(file: &Path) -> i64 {
    Connection::open(file).unwrap().query_row("SELECT COUNT(*) FROM numbers", [], |row| row.get(0)).unwrap()
}

/// Opens a brain with a table of its own, so that a torn copy would be noticed: each commit adds two rows.
fn brain(folder: &Path) -> (Brain, PathBuf, Connection) {
    let file = folder.join("brain.sqlite");
    let brain = Brain::open(&file).unwrap();
    let writer = Connection::open(&file).unwrap();
    writer.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
    writer.execute_batch("CREATE TABLE numbers (n INTEGER, filler BLOB)").unwrap();
    (brain, file, writer)
}

#[test]
fn a_snapshot_is_one_state_while_the_brain_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (_brain, file, writer) = brain(folder.path());
    let done = AtomicBool::new(false);
    let snapshots = std::thread::scope(|scope| {
        // The connection goes with the thread: it cannot be shared.
        let done = &done;
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                writer
                    .execute_batch(
                        "BEGIN; INSERT INTO numbers VALUES (1, randomblob(9000));
                         INSERT INTO numbers VALUES (2, randomblob(9000)); COMMIT",
                    )
                    .unwrap();
            }
        });
        let mut snapshots = Vec::new();
        while snapshots.len() < 20 {
            snapshots.push(snapshot(&file).unwrap());
        }
        done.store(true, Ordering::Relaxed);
        snapshots
    });
    let mut counts = Vec::new();
    for mut snapshot in snapshots {
        let copy = folder.path().join("copy");
        let mut bytes = Vec::new();
        snapshot.read_to_end(&mut bytes).unwrap();
        fs::write(&copy, bytes).unwrap();
        check(&copy).unwrap();
        counts.push(count(&copy));
        for suffix in ["", "-wal", "-shm"] {
            drop(fs::remove_file(folder.path().join(format!("copy{suffix}"))));
        }
    }
    assert!(counts.iter().all(|count| count % 2 == 0), "half of a commit: {counts:?}");
    assert!(counts.is_sorted(), "{counts:?}");
    assert!(counts.first() < counts.last(), "nothing was written meanwhile: {counts:?}");
    let left =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.contains("snapshot")).collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn a_brain_whose_engine_was_killed_has_a_snapshot_with_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let (brain, file, writer) = brain(folder.path());
    writer.execute_batch("INSERT INTO numbers VALUES (1, x'00'), (2, x'00')").unwrap();
    // As a kill leaves it: the file and its log.
    let killed = folder.path().join("killed");
    fs::create_dir(&killed).unwrap();
    for name in ["brain.sqlite", "brain.sqlite-wal"] {
        fs::copy(folder.path().join(name), killed.join(name)).unwrap();
    }
    drop((brain, writer, file));
    let mut copy = snapshot(&killed.join("brain.sqlite")).unwrap();
    let mut bytes = Vec::new();
    copy.read_to_end(&mut bytes).unwrap();
    fs::write(folder.path().join("copy"), bytes).unwrap();
    assert_eq!(count(&folder.path().join("copy")), 2);
}

#[test]
fn what_is_not_a_sound_brain_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (brain, file, writer) = brain(folder.path());
    writer
        .execute_batch(
            "INSERT INTO numbers SELECT value, randomblob(5000) FROM json_each('[1,2,3,4,5,6,7,8]')",
        )
        .unwrap();
    drop(writer);
    let mut bytes = Vec::new();
    snapshot(&file).unwrap().read_to_end(&mut bytes).unwrap();
    drop(brain);
    let copy = folder.path().join("copy");
    fs::write(&copy, &bytes).unwrap();
    check(&copy).unwrap();
    // A later format.
    let mut later = bytes.clone();
    later[60..64].copy_from_slice(&99_u32.to_be_bytes());
    fs::write(&copy, &later).unwrap();
    assert!(matches!(check(&copy), Err(BrainError::NewerSchema { found: 99, .. })));
    // Cut off in the middle.
    fs::write(&copy, &bytes[..bytes.len() / 2]).unwrap();
    assert!(check(&copy).is_err());
    fs::write(&copy, "no database").unwrap();
    assert!(check(&copy).is_err());
}
