//! What the time of a schedule means.

use api::Timestamp;
use api::schedules::ScheduleTime;

use crate::{Cron, Timing, Zone};

/// Sets the start of an interval without one: the first due time comes when it has passed once.
pub fn set_start(when: &mut ScheduleTime, now: Timestamp) {
    if let (Some(every), None) = (when.every_seconds, when.start) {
        when.start = Some(after_seconds(now, every.get()));
    }
}

fn after_seconds(at: Timestamp, seconds: i64) -> Timestamp {
    Timestamp::from_unix_ms(at.unix_ms().saturating_add(seconds.saturating_mul(1_000)))
}

/// The due times of a schedule that was set at `set_at`.
///
/// # Errors
/// What is wrong, with the field, in words for the caller.
pub fn timing(when: &ScheduleTime, set_at: Timestamp) -> Result<Timing, String> {
    let ScheduleTime { cron, time_zone, at, every_seconds, start } = when;
    if time_zone.is_some() && cron.is_none() {
        return Err("`when.time_zone`: can be given only with `cron`".to_owned());
    }
    if start.is_some() && every_seconds.is_none() {
        return Err("`when.start`: can be given only with `every_seconds`".to_owned());
    }
    match (cron, at, every_seconds) {
        (Some(cron), None, None) => {
            let cron = Cron::parse(cron).map_err(|error| format!("`when.cron`: {error}"))?;
            let zone = Zone::find(time_zone.as_deref().unwrap_or("UTC"));
            Ok(Timing::Cron(cron, zone.map_err(|error| format!("`when.time_zone`: {error}"))?))
        }
        (None, Some(at), None) => Ok(Timing::Once(*at)),
        (None, None, Some(every)) => {
            let seconds = every.get();
            Ok(Timing::Every { start: start.unwrap_or_else(|| after_seconds(set_at, seconds)), seconds })
        }
        _ => Err("`when`: exactly one of `cron`, `at` and `every_seconds` must be given".to_owned()),
    }
}
