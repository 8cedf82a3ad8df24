//! Brains of every released version are migrated, and a backup of each is kept.

use std::fs;
use std::path::PathBuf;

use api::engine::TaskStatus;
use pretty_assertions::assert_eq;
use tempfile::TempDir;
use testkit::task_id;

use super::*;
use crate::Brain;
use crate::steps::Step;

/// Dumps of the brains of released versions. Each release adds its own, made by killing its engine in the middle
/// of a turn.
const RELEASE_DUMPS: [(&str, &str); 1] = [("0.1.0", testkit::BRAIN_0_1_0)];

fn brain_from_dump(dump: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("brain.sqlite");
    let connection = Connection::open(&file).unwrap();
    connection.execute_batch(dump).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    (folder, file)
}

/// All rows of the tables and columns of the first version, as text.
fn content(file: &Path) -> Vec<String> {
    let connection = Connection::open(file).unwrap();
    let mut rows = Vec::new();
    for columns in [
        "task, task_id, created_at FROM tasks",
        "turn, turn_id, task, message_id, opened_at, ended_at, starts FROM turns",
        "step, task, turn, at, ts, body FROM steps",
        "task, ts, turn, kind, data FROM events",
        "task, key, value FROM working_memory",
    ] {
        let (names, table) = columns.split_once(" FROM ").unwrap();
        let sql = format!("SELECT json_array({names}) FROM {table} ORDER BY 1");
        let mut query = connection.prepare(&sql).unwrap();
        rows.extend(query.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap));
    }
    rows
}

#[test]
fn a_brain_of_every_release_is_brought_up_to_date_and_a_copy_of_it_kept() {
    for (version, dump) in RELEASE_DUMPS {
        let (_folder, file) = brain_from_dump(dump);
        let before = content(&file);
        assert!(before.len() > 30, "{version}: {}", before.len());
        let brain = Brain::open(&file).unwrap();

        let tasks = brain.tasks(10, 0).unwrap();
        let seen: Vec<_> =
            tasks.iter().map(|task| (task.task_id.as_str(), task.status, task.message_count)).collect();
        // An open turn of an engine that is gone will be resumed, so it counts as running.
        assert_eq!(seen, [("open", TaskStatus::Running, 3), ("kept", TaskStatus::Idle, 6)], "{version}");
        assert!(tasks[0].updated_at > tasks[1].updated_at);
        assert_eq!(brain.open_turns().unwrap().len(), 1);
        let kept = brain.task(&task_id("kept")).unwrap().unwrap();
        let steps = brain.steps(kept.row).unwrap();
        assert!(steps.iter().all(|stored| stored.step != Step::Unknown), "{version}");
        drop(brain);

        assert_eq!(content(&file), before, "{version}");
        assert_eq!(content(&backups::backup_path(&file, 0)), before, "{version}");
        assert_eq!(count_applied(&Connection::open(backups::backup_path(&file, 0)).unwrap()).unwrap(), 0);
        assert_eq!(count_applied(&Connection::open(&file).unwrap()).unwrap(), MIGRATIONS.len());
    }
}

#[test]
fn messages_that_an_earlier_version_left_out_of_the_index_are_indexed_now() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("brain.sqlite");
    let older = create_empty_older_version(&file, 11);
    older
        .execute_batch(
            "INSERT INTO tasks (task_id, created_at) VALUES ('fork', 1);
             INSERT INTO copies (message_id, task, nth) VALUES ('indexed', 1, 2), ('left-out', 1, 3);
             INSERT INTO indexed (place, characters, day) VALUES (1 << 20 | 2, 3, 4)",
        )
        .unwrap();
    drop(older);
    let brain = open(&file).unwrap();
    let to_index: i64 = brain.query_row("SELECT place FROM to_index", [], |row| row.get(0)).unwrap();
    assert_eq!(to_index, 1 << 20 | 3);
}

#[test]
fn a_fresh_brain_and_one_that_is_up_to_date_are_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("brain.sqlite");
    for _ in 0..2 {
        drop(open(&file).unwrap());
    }
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let copies = names.filter(|name| name.to_string_lossy().contains(".before-"));
    assert_eq!(copies.count(), 0);
}

#[test]
fn where_no_copy_can_be_kept_nothing_is_changed() {
    let (_folder, file) = brain_from_dump(RELEASE_DUMPS[0].1);
    let before = content(&file);
    let mut unfinished = backups::backup_path(&file, 0).into_os_string();
    unfinished.push(".tmp");
    fs::create_dir(&unfinished).unwrap();
    let refusal = open(&file).unwrap_err().to_string();
    assert!(refusal.contains("brain.sqlite.before-1") && refusal.contains("free disk space"), "{refusal}");
    assert_eq!(content(&file), before);
    assert_eq!(count_applied(&Connection::open(&file).unwrap()).unwrap(), 0);

    // Once the backup can be written, opening succeeds. A file left by an earlier attempt does not matter.
    fs::remove_dir(&unfinished).unwrap();
    fs::write(&unfinished, "half a copy").unwrap();
    drop(open(&file).unwrap());
    assert_eq!(content(&backups::backup_path(&file, 0)), before);
}

#[test]
fn a_brain_that_a_later_minor_version_added_to_is_opened_and_its_additions_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("brain.sqlite");
    let later = open(&file).unwrap();
    later
        .execute_batch(
            "CREATE TABLE dreams (sheep INTEGER); INSERT INTO dreams VALUES (7);
             INSERT INTO additions (at) VALUES ('later')",
        )
        .unwrap();
    drop(later);
    let brain = Brain::open(&file).unwrap();
    assert_eq!(brain.tasks(10, 0).unwrap(), []);
    drop(brain);
    let sheep: i64 =
        Connection::open(&file).unwrap().query_row("SELECT sheep FROM dreams", [], |row| row.get(0)).unwrap();
    assert_eq!(sheep, 7);
}
