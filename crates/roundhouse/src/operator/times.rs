//! Points in time as a person thinks of them: how long ago, or how soon.

use std::time::{SystemTime, UNIX_EPOCH};

use api::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// The time of this machine.
pub(super) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// How long ago something happened. The clock of the service may be ahead of this machine's.
pub(super) fn ago(then: Timestamp, now: Timestamp) -> String {
    match now.unix_ms().saturating_sub(then.unix_ms()) / 1_000 {
        ..1 => "now".to_owned(),
        seconds => format!("{} ago", rough(seconds)),
    }
}

/// How long ago something happened, if it ever did.
pub(super) fn ago_or_never(then: Option<Timestamp>, now: Timestamp) -> String {
    then.map_or_else(|| "never".to_owned(), |then| ago(then, now))
}

/// How soon something will happen.
pub(super) fn until(then: Timestamp, now: Timestamp) -> String {
    match then.unix_ms().saturating_sub(now.unix_ms()) / 1_000 {
        ..1 => "now".to_owned(),
        seconds => format!("in {}", rough(seconds)),
    }
}

fn rough(seconds: i64) -> String {
    if seconds < MINUTE {
        format!("{seconds} s")
    } else if seconds < HOUR {
        format!("{} min", seconds / MINUTE)
    } else if seconds < DAY {
        format!("{} h", seconds / HOUR)
    } else {
        format!("{} d", seconds / DAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_their_largest_unit() {
        let now = Timestamp::from_unix_ms(1_000_000_000_000);
        let at = |seconds: i64| Timestamp::from_unix_ms(now.unix_ms() + seconds * 1_000);
        for (seconds, text) in [
            (0, "now"),
            (1, "1 s ago"),
            (59, "59 s ago"),
            (60, "1 min ago"),
            (3_599, "59 min ago"),
            (3_600, "1 h ago"),
            (86_399, "23 h ago"),
            (86_400, "1 d ago"),
            (400 * 86_400, "400 d ago"),
            (-30, "now"),
        ] {
            assert_eq!(ago(at(-seconds), now), text, "{seconds}");
        }
        assert_eq!([until(at(90), now), until(at(-90), now)], ["in 1 min", "now"]);
        assert_eq!(ago_or_never(None, now), "never");
        assert_eq!(
            ago(Timestamp::from_unix_ms(i64::MIN), Timestamp::from_unix_ms(i64::MAX)),
            "106751991167 d ago"
        );
    }
}
