//! Unused bytes are found in pages that SQLite wrote, and no other byte is changed.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rusqlite::{Connection, params};

use super::*;

const PAGE: usize = 4096;

#[test]
fn a_page_of_no_table_is_left_alone() {
    let mut page = vec![7_u8; PAGE];
    assert_eq!(scrub_page(3, &page), None);
    for kind in [2, 5, 10, 13] {
        page[0] = kind;
        // An impossible value in the header.
        assert_eq!(scrub_page(3, &page), None, "{kind}");
    }
    assert_eq!(scrub_page(3, &[13]), None);
    assert_eq!(scrub_page(3, &[]), None);
}

#[test]
fn pointer_maps_are_known_by_their_numbers() {
    let maps: Vec<u32> = (1..=3000).filter(|number| is_pointer_map(*number, PAGE)).collect();
    assert_eq!(maps, [2, 822, 1642, 2462]);
}

#[test]
fn what_a_moved_row_leaves_behind_is_overwritten() {
    let mut page = vec![0_u8; PAGE];
    page[0] = 13;
    page[4] = 1;
    page[5..7].copy_from_slice(&4000_u16.to_be_bytes());
    page[8..10].copy_from_slice(&4000_u16.to_be_bytes());
    page[1000..1006].copy_from_slice(b"secret");
    page[4000..4006].copy_from_slice(b"stored");
    // A free block among the cells that is the last of its list.
    page[1..3].copy_from_slice(&4050_u16.to_be_bytes());
    page[4052..4054].copy_from_slice(&20_u16.to_be_bytes());
    page[4060..4066].copy_from_slice(b"secret");
    let clean = scrub_page(3, &page).unwrap();
    assert!(!clean.windows(6).any(|bytes| bytes == b"secret"));
    assert!(clean.windows(6).any(|bytes| bytes == b"stored"));
    assert_eq!(scrub_page(3, &clean), None);
}

/// Overwrites all unused bytes of a database.
fn scrub(connection: &Connection) {
    let count: u32 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    for number in 1..=count {
        let read = "SELECT data FROM sqlite_dbpage WHERE pgno = ?1";
        let page: Vec<u8> = connection.query_row(read, [number], |row| row.get(0)).unwrap();
        if let Some(page) = scrub_page(number, &page) {
            let write = "UPDATE sqlite_dbpage SET data = ?2 WHERE pgno = ?1";
            connection.execute(write, params![number, page]).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn nothing_is_left_of_what_was_deleted_and_all_else_is_as_it_was(
        rows in prop::collection::vec((0..4_u8, any::<i32>(), 1..150_usize), 50..400),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pages.sqlite");
        let connection = Connection::open(&file).unwrap();
        connection.execute_batch(
            "PRAGMA auto_vacuum = incremental; PRAGMA journal_mode = wal; PRAGMA secure_delete = on;
             CREATE TABLE events (task, ts, data, PRIMARY KEY (task, ts)) WITHOUT ROWID;
             CREATE TABLE steps (step INTEGER PRIMARY KEY, task, data); CREATE INDEX of_task ON steps (task, data)"
        ).unwrap();
        let mut kept = BTreeMap::new();
        connection.execute_batch("BEGIN").unwrap();
        for (task, ts, length) in &rows {
            let data = format!("SECRET{task}_").repeat(*length);
            let inserted = connection.execute(
                "INSERT INTO events VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING", params![task, ts, data]
            ).unwrap();
            connection.execute("INSERT INTO steps (task, data) VALUES (?1, ?2)", params![task, data]).unwrap();
            if inserted > 0 && *task != 0 {
                kept.insert((*task, *ts), data);
            }
        }
        connection.execute_batch(
            "COMMIT; DELETE FROM events WHERE task = 0; DELETE FROM steps WHERE task = 0; PRAGMA incremental_vacuum"
        ).unwrap();
        scrub(&connection);
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        prop_assert!(!String::from_utf8_lossy(&bytes).contains("SECRET0"));
        let check: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        prop_assert_eq!(check, "ok");
        let mut query = connection.prepare("SELECT task, ts, data FROM events").unwrap();
        let found = query.query_map([], |row| Ok(((row.get(0)?, row.get(1)?), row.get(2)?))).unwrap();
        prop_assert_eq!(found.collect::<Result<BTreeMap<_, _>, _>>().unwrap(), kept);
    }
}
