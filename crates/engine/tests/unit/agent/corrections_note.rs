use api::Timestamp;
use api::memory::{MemoryKind, Source};
use proptest::prelude::*;

use super::*;

fn hit(id: &str, content: &str) -> SearchHit {
    SearchHit {
        kind: MemoryKind::Knowledge,
        id: id.into(),
        content: content.into(),
        excerpt: content.into(),
        source: Some(Source::Learned),
        tags: Vec::new(),
        created_at: Timestamp::from_unix_ms(0),
        task_id: None,
        message_ids: Vec::new(),
        excerpt_ids: Vec::new(),
        score: 0.0,
        is_relevant: false,
    }
}

fn ids(found: &[SearchHit]) -> Vec<&str> {
    found.iter().map(|found| found.id.as_str()).collect()
}

fn many(prefix: &str, count: usize) -> Vec<SearchHit> {
    (0..count).map(|number| hit(&format!("{prefix}{number}"), "x")).collect()
}

#[test]
fn of_more_than_fits_the_newest_correction_and_what_bears_on_the_message_come_first() {
    let corrections = Corrections { corrections: many("c", 10), lessons: many("l", 20), already_shown: 0 };
    assert!(!fits(&corrections, 12_000));
    let selected = select(corrections, &["l17".into(), "c9".into(), "l4".into()]);
    assert_eq!(ids(&selected)[..3], ["c0", "c9", "c1"]);
    assert_eq!(ids(&selected)[MAX_CORRECTIONS..][..3], ["l17", "l4", "l0"]);
    assert_eq!(selected.len(), MAX_CORRECTIONS + MAX_LESSONS);
}

#[test]
fn a_conversation_that_shows_enough_is_told_the_newest_correction_and_what_bears_on_the_message() {
    let corrections =
        Corrections { corrections: many("c", 3), lessons: many("l", 3), already_shown: MAX_SHOWN_UNFILTERED };
    assert!(!fits(&corrections, 12_000));
    assert_eq!(ids(&select(corrections, &["l2".into()])), ["c0", "l2"]);
}

proptest! {
    #[test]
    fn what_is_told_is_within_its_budget(
        lengths in prop::collection::vec(0..3_000_usize, 1..12),
        budget in 600..12_000_usize,
    ) {
        let all: Vec<SearchHit> =
            lengths.iter().enumerate().map(|(at, length)| hit(&at.to_string(), &"é".repeat(*length))).collect();
        let fitted = fit_to_budget(all, budget);
        prop_assert!(!fitted.is_empty(), "the newest is always included");
        prop_assert_eq!(&fitted[0].id, "0");
        let note = note(&fitted).unwrap();
        prop_assert!(note.len() <= budget + MIN_ITEM_BYTES + 32, "{} of {budget}", note.len());
    }
}
