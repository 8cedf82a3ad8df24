use api::Timestamp;

use super::{GIB, Room, check_clock, describe_overlap};
use crate::config::PortRange;
use crate::doctor::Outcome;

#[test]
fn little_room_is_a_finding() {
    let room = |free: u64, total: u64| Room { free, total, free_files: 1_000, total_files: 10_000 };
    let cases = [
        (room(GIB - 1, 4 * GIB), true),
        (room(GIB, 4 * GIB), false),
        (room(4 * GIB, 100 * GIB), true),
        (room(6 * GIB, 100 * GIB), false),
        (room(19 * GIB, 8_000 * GIB), true),
        // A twentieth of a large disk is more than anybody needs.
        (room(21 * GIB, 8_000 * GIB), false),
        (Room { free_files: 499, ..room(GIB, GIB) }, true),
        // A file system without a number of files.
        (Room { free_files: 0, total_files: 0, ..room(2 * GIB, 4 * GIB) }, false),
    ];
    for (room, is_short) in cases {
        assert_eq!(room.shortage().is_some(), is_short, "{room:?}");
    }
}

#[test]
fn a_clock_that_differs_is_a_finding() {
    let at = |ms: i64| Timestamp::from_unix_ms(1_800_000_000_000 + ms);
    let found =
        |database: Option<i64>, last: Option<i64>| match check_clock(at(0), database.map(at), last.map(at))
            .outcome
        {
            Outcome::Found(found) => found.join("; "),
            Outcome::Passed(_) | Outcome::Skipped(_) => String::new(),
        };
    for (database, last) in [(None, None), (Some(-4_000), Some(-9_999_999)), (Some(4_000), Some(4_000))] {
        assert_eq!(found(database, last), "");
    }
    assert!(found(Some(60_000), None).contains("60 s behind the database's"));
    assert!(found(Some(-60_000), None).contains("60 s ahead of the database's"));
    assert!(found(None, Some(3_600_000)).contains("3600 s ahead of this host's clock"));
}

#[test]
fn ports_that_outgoing_connections_may_get_are_a_finding() {
    let ports = PortRange::new(32_000, 33_000).unwrap();
    let overlap = describe_overlap(ports, "32768\t60999\n", "\n").unwrap();
    assert!(overlap.contains("32768-60999") && overlap.contains("=32768-33000"), "{overlap}");
    assert!(describe_overlap(ports, "32768\t60999\n", "8080,32768-33000\n").is_none());
    assert!(describe_overlap(ports, "32768\t60999\n", "32768-32999\n").is_some());
    assert!(describe_overlap(PortRange::new(9_001, 9_999).unwrap(), "32768\t60999\n", "").is_none());
    assert!(describe_overlap(ports, "garbage", "").is_none());
}
