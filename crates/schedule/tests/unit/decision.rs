use proptest::prelude::*;

use super::*;
use crate::{Cron, Zone};

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn daily() -> Timing {
    Timing::Cron(Cron::parse("0 9 * * *").unwrap(), Zone::find("Europe/Berlin").unwrap())
}

#[test]
fn on_time_it_runs_under_either_policy() {
    let due = at("2026-11-26T08:00:00Z");
    for policy in [MissedPolicy::Skip, MissedPolicy::RunOnce] {
        assert_eq!(decide(&daily(), due, policy, at("2026-11-26T07:59:59.999Z")), None);
        let decided = decide(&daily(), due, policy, at("2026-11-26T08:05:00Z")).unwrap();
        let next = Some(at("2026-11-27T08:00:00Z"));
        assert_eq!(decided, Due { run: Some(due), missed: None, last: due, next });
    }
}

#[test]
fn of_several_missed_runs_the_last_one_runs_or_none() {
    let (first, last) = (at("2026-11-20T08:00:00Z"), at("2026-11-26T08:00:00Z"));
    let now = at("2026-11-26T12:00:00Z");
    let decided = decide(&daily(), first, MissedPolicy::RunOnce, now).unwrap();
    assert_eq!((decided.run, decided.last), (Some(last), last));
    assert_eq!(decided.missed, Some(MissedRuns { first, last: at("2026-11-25T08:00:00Z"), count: 6 }));
    let decided = decide(&daily(), first, MissedPolicy::Skip, now).unwrap();
    assert_eq!((decided.run, decided.missed), (None, Some(MissedRuns { first, last, count: 7 })));
    assert_eq!(decided.next, Some(at("2026-11-27T08:00:00Z")));
}

#[test]
fn many_missed_runs_are_decided_at_once() {
    let every_minute = Timing::Cron(Cron::parse("* * * * *").unwrap(), Zone::find("UTC").unwrap());
    let decided =
        decide(&every_minute, at("2016-01-01T00:00:00Z"), MissedPolicy::RunOnce, at("2026-01-01T00:00:30Z"));
    let decided = decided.unwrap();
    assert_eq!(decided.run, Some(at("2026-01-01T00:00:00Z")));
    assert_eq!(decided.missed.unwrap().count, MAX_COUNTED);
    assert_eq!(decided.missed.unwrap().last, at("2025-12-31T23:59:00Z"));
}

proptest! {
    /// However the clock is set forward and back, due times increase strictly and never run twice.
    #[test]
    fn no_due_time_comes_twice_whatever_the_clock_does(
        steps in proptest::collection::vec(-7_200_000_i64..7_200_000, 1..200),
        expression in proptest::sample::select(&["*/5 * * * *", "30 2 * * *", "0 * * * *"][..]),
        zone in proptest::sample::select(&["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"][..]),
        skip in any::<bool>(),
    ) {
        let timing = Timing::Cron(Cron::parse(expression).unwrap(), Zone::find(zone).unwrap());
        let policy = if skip { MissedPolicy::Skip } else { MissedPolicy::RunOnce };
        let mut now = at("2026-10-24T20:00:00Z");
        let mut next = timing.next_after(now).unwrap();
        let mut last_run = None;
        for step in steps {
            now = Timestamp::from_unix_ms(now.unix_ms() + step);
            let Some(due) = decide(&timing, next, policy, now) else { continue };
            prop_assert!(due.last >= next && due.last <= now);
            if let Some(run) = due.run {
                prop_assert!(Some(run) > last_run);
                last_run = Some(run);
            }
            let following = due.next.unwrap();
            prop_assert!(following > due.last && following > now);
            next = following;
        }
    }
}
