use proptest::prelude::*;

use super::*;

const ZONES: [&str; 6] =
    ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kathmandu", "Antarctica/Troll"];

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn cron(text: &str, zone: &str) -> Timing {
    Timing::Cron(Cron::parse(text).unwrap(), Zone::find(zone).unwrap())
}

/// The due times after `after`, up to `count` of them.
fn due_times(timing: &Timing, after: &str, count: usize) -> Vec<String> {
    let first = timing.next_after(at(after));
    std::iter::successors(first, |due| timing.next_after(*due))
        .take(count)
        .map(|due| due.to_string())
        .collect()
}

#[test]
fn a_time_that_does_not_exist_is_due_right_after_the_gap_and_once() {
    let daily = cron("0,30 2 * * *", "Europe/Berlin");
    // 2026-03-29: 02:00 becomes 03:00.
    assert_eq!(
        due_times(&daily, "2026-03-28T12:00:00Z", 3),
        ["2026-03-29T01:00:00.000Z", "2026-03-30T00:00:00.000Z", "2026-03-30T00:30:00.000Z"]
    );
    // 2026-10-04: 02:00 becomes 02:30.
    let lord_howe = cron("15 2 * * *", "Australia/Lord_Howe");
    assert_eq!(due_times(&lord_howe, "2026-10-03T00:00:00Z", 1), ["2026-10-03T15:30:00.000Z"]);
}

#[test]
fn a_time_that_comes_twice_is_due_once_unless_every_hour_is_meant() {
    // 2026-11-01: 02:00 becomes 01:00.
    let daily = cron("30 1 * * *", "America/New_York");
    assert_eq!(
        due_times(&daily, "2026-11-01T00:00:00Z", 2),
        ["2026-11-01T05:30:00.000Z", "2026-11-02T06:30:00.000Z"]
    );
    let hourly = cron("30 * * * *", "America/New_York");
    assert_eq!(
        due_times(&hourly, "2026-11-01T05:00:00Z", 3),
        ["2026-11-01T05:30:00.000Z", "2026-11-01T06:30:00.000Z", "2026-11-01T07:30:00.000Z"]
    );
}

#[test]
fn the_29th_of_february_comes_at_last() {
    let leap = cron("0 12 29 2 *", "UTC");
    assert_eq!(
        due_times(&leap, "2096-03-01T00:00:00Z", 2),
        ["2104-02-29T12:00:00.000Z", "2108-02-29T12:00:00.000Z"]
    );
}

#[test]
fn a_date_on_a_day_of_the_week_comes_at_last() {
    // A step from a star restricts the days of the month and of the week at once: 1 February, on a Monday.
    let rare = cron("0 0 */31 2 mon", "UTC");
    assert_eq!(
        due_times(&rare, "2026-11-27T00:00:00Z", 2),
        ["2027-02-01T00:00:00.000Z", "2038-02-01T00:00:00.000Z"]
    );
}

#[test]
fn an_interval_begins_with_its_start() {
    let every = Timing::Every { start: at("2026-11-26T10:00:00Z"), seconds: 90 };
    assert_eq!(
        due_times(&every, "2026-11-26T09:00:00Z", 2),
        ["2026-11-26T10:00:00.000Z", "2026-11-26T10:01:30.000Z"]
    );
    assert_eq!(due_times(&every, "2026-11-26T10:01:30Z", 1), ["2026-11-26T10:03:00.000Z"]);
    assert_eq!(Timing::Once(at("2026-11-26T10:00:00Z")).next_after(at("2026-11-26T10:00:00Z")), None);
}

#[test]
fn zones_are_found_by_their_names_only() {
    for zone in ZONES {
        assert!(Zone::find(zone).is_ok(), "{zone}");
    }
    for wrong in ["", "Berlin", "+01:00", "Europe/", "../etc/passwd", "CEST-nonsense"] {
        assert_eq!(Zone::find(wrong).err(), Some(UnknownTimeZone), "{wrong}");
    }
}

/// An expression whose fields are random, but match often.
fn expressions() -> impl Strategy<Value = String> {
    let minute =
        prop_oneof![Just("*".to_owned()), Just("*/15".to_owned()), (0..60_u8).prop_map(|m| m.to_string())];
    let hour = prop_oneof![
        Just("*".to_owned()),
        Just("*/2".to_owned()),
        Just("1-3".to_owned()),
        (0..24_u8).prop_map(|h| h.to_string())
    ];
    let weekday = prop_oneof![Just("*".to_owned()), Just("0,6".to_owned()), Just("1-5".to_owned())];
    (minute, hour, weekday).prop_map(|(minute, hour, weekday)| format!("{minute} {hour} * * {weekday}"))
}

/// The minutes of 2026 around a change of the clocks in one of the zones, and others.
fn minutes() -> impl Strategy<Value = i64> {
    let around = |text: &'static str| {
        let middle = at(text).unix_ms() / 60_000;
        middle - 2 * 1_440..middle + 2 * 1_440
    };
    prop_oneof![
        around("2026-03-29T01:00:00Z"),
        around("2026-10-25T01:00:00Z"),
        around("2026-03-08T07:00:00Z"),
        around("2026-11-01T06:00:00Z"),
        around("2026-04-04T15:00:00Z"),
        around("2026-10-03T15:30:00Z"),
        around("2026-07-01T00:00:00Z"),
    ]
}

proptest! {
    /// Between two due times no instant has a local time that matches for the first time, and each due time either
    /// matches or ends a gap.
    #[test]
    fn next_due_agrees_with_a_walk_through_the_minutes(
        text in expressions(), zone in proptest::sample::select(&ZONES[..]), minute in minutes(),
    ) {
        let parsed = Cron::parse(&text).unwrap();
        let timing = cron(&text, zone);
        let start = Timestamp::from_unix_ms(minute * 60_000);
        let next = timing.next_after(start).unwrap();
        prop_assert!(next > start);
        prop_assert_eq!(next.unix_ms() % 60_000, 0);
        let tz = jiff::tz::TimeZone::get(zone).unwrap();
        let local = |ms: i64| tz.to_datetime(jiff::Timestamp::from_millisecond(ms).unwrap());
        let matches = |local: jiff::civil::DateTime| {
            parsed.matches_date(local.date()) && parsed.times().any(|time| time == (local.hour(), local.minute()))
        };
        // Whether the same local time was there in the three hours before.
        let is_again = |ms: i64| (1..=180).any(|ago| local(ms - ago * 60_000) == local(ms));
        let skipped = |ms: i64| {
            let (mut at, end) = (local(ms - 60_000), local(ms));
            let mut any = false;
            loop {
                at = at.checked_add(jiff::Span::new().minutes(1)).unwrap();
                if at >= end { break any }
                any |= matches(at);
            }
        };
        let is_due = |ms: i64| {
            (matches(local(ms)) && (parsed.covers_all_hours() || !is_again(ms))) || skipped(ms)
        };
        let mut ms = start.unix_ms() + 60_000;
        while ms < next.unix_ms() {
            prop_assert!(!is_due(ms), "{} in {} is due at {}, not only at {}", text, zone, local(ms), next);
            ms += 60_000;
        }
        prop_assert!(is_due(next.unix_ms()), "{} in {} is not due at {}", text, zone, local(next.unix_ms()));
    }
}
