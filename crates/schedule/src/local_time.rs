//! The instants at which the local time of a time zone matches a cron expression.

use api::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, ToSpan as _};

use crate::Cron;

/// The longest time by which clocks are set back at once. Local times this far apart are in the order of their
/// instants.
const MAX_SET_BACK: i64 = 3;
/// The number of days after which an expression that has not matched never will: 29 February is missing for up to
/// eight years, and a date falls on the same day of the week again after at most twelve, unless it is 29 February:
/// then after at most forty.
const MAX_DAYS: u32 = 41 * 366;

/// A time zone.
#[derive(Clone, Debug)]
pub struct Zone(TimeZone);

/// The error for a name that is not a time zone's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the name of a time zone, such as `Europe/Berlin` or `UTC`")]
pub struct UnknownTimeZone;

/// The instants of a local time, of which there may be two.
enum Instants {
    One(jiff::Timestamp),
    Two(jiff::Timestamp, jiff::Timestamp),
}

impl Zone {
    /// Finds the time zone with an IANA name.
    pub fn find(name: &str) -> Result<Self, UnknownTimeZone> {
        if name.is_empty() || name.len() > 64 {
            return Err(UnknownTimeZone);
        }
        TimeZone::get(name).map(Self).map_err(|_| UnknownTimeZone)
    }

    /// The first instant after `after` at which the local time matches `cron`.
    pub(crate) fn next_after(&self, cron: &Cron, after: Timestamp) -> Option<Timestamp> {
        let after = jiff::Timestamp::from_millisecond(after.unix_ms()).ok()?;
        let set_back: Span = MAX_SET_BACK.hours();
        // Local times up to this one may come again.
        let from = self.0.to_datetime(after).checked_sub(set_back).ok()?;
        let mut best: Option<(jiff::Timestamp, DateTime)> = None;
        for local in local_times(cron, from) {
            // Later local times have later instants.
            if best.as_ref().is_some_and(|(_, until)| local > *until) {
                break;
            }
            let Some(instant) = self.first_after(cron, local, after) else { continue };
            if best.as_ref().is_none_or(|(found, _)| instant < *found) {
                best = Some((instant, local.checked_add(set_back).ok()?));
            }
        }
        best.map(|(instant, _)| Timestamp::from_unix_ms(instant.as_millisecond()))
    }

    /// The first instant after `after` that counts as the local time `local`.
    fn first_after(&self, cron: &Cron, local: DateTime, after: jiff::Timestamp) -> Option<jiff::Timestamp> {
        match self.instants(local)? {
            Instants::One(at) | Instants::Two(at, _) if at > after => Some(at),
            Instants::Two(_, again) if again > after && cron.covers_all_hours() => Some(again),
            Instants::One(_) | Instants::Two(..) => None,
        }
    }

    fn instants(&self, local: DateTime) -> Option<Instants> {
        let at = |offset: jiff::tz::Offset| offset.to_timestamp(local).ok();
        match self.0.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => at(offset).map(Instants::One),
            AmbiguousOffset::Fold { before, after } => Some(Instants::Two(at(before)?, at(after)?)),
            // With the offset from before it, the time is after the transition.
            AmbiguousOffset::Gap { before, .. } => {
                let transition = self.0.preceding(at(before)?.checked_add(1.second()).ok()?).next()?;
                Some(Instants::One(transition.timestamp()))
            }
        }
    }
}

/// The local times from `from` on that match `cron`, in order.
fn local_times(cron: &Cron, from: DateTime) -> impl Iterator<Item = DateTime> + '_ {
    let days = std::iter::successors(Some(from.date()), |date| date.tomorrow().ok());
    let days = days.zip(0..MAX_DAYS).map(|(date, _)| date).filter(|date: &Date| cron.matches_date(*date));
    let times =
        days.flat_map(move |date| cron.times().map(move |(hour, minute)| date.at(hour, minute, 0, 0)));
    times.filter(move |local| *local >= from)
}
