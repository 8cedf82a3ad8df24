//! Cron expressions: five fields (minute, hour, day of the month, month, day of the week), each a list of numbers,
//! names, ranges and steps.

use jiff::civil::Date;

/// A parsed cron expression. Each field is a set of bits, one per number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether a day has to match only one of the two fields of days, because both are restricted.
    either_day: bool,
}

/// The error for a text that is not a cron expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCron {
    /// It has another number of fields.
    #[error("must have five fields (minute, hour, day of month, month, day of week), not {0}")]
    Fields(usize),
    /// A field is invalid.
    #[error(
        "the {field} must be numbers from {min} to {max}, `*`, ranges `a-b` and steps `/n`, separated by commas"
    )]
    Field {
        /// The name of the field.
        field: &'static str,
        /// The least number.
        min: u32,
        /// The greatest number.
        max: u32,
    },
    /// No date ever matches.
    #[error("never matches any date")]
    Never,
}

/// What a field may contain.
struct FieldRule {
    name: &'static str,
    min: u32,
    max: u32,
    /// Names of the numbers from `min` on.
    names: &'static [&'static str],
}

const MINUTE: FieldRule = FieldRule { name: "minute", min: 0, max: 59, names: &[] };
const HOUR: FieldRule = FieldRule { name: "hour", min: 0, max: 23, names: &[] };
const DAY: FieldRule = FieldRule { name: "day of month", min: 1, max: 31, names: &[] };
const MONTH: FieldRule = FieldRule {
    name: "month",
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
/// Sunday is both 0 and 7.
const WEEKDAY: FieldRule = FieldRule {
    name: "day of week",
    min: 0,
    max: 7,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

/// All hours of a day.
const ALL_HOURS: u64 = (1 << 24) - 1;
/// The length of the longest month, by its number less one.
const MONTH_DAYS: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

impl Cron {
    /// Parses an expression.
    pub fn parse(text: &str) -> Result<Self, InvalidCron> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(InvalidCron::Fields(fields.len()));
        };
        let weekdays = WEEKDAY.parse(weekday)?;
        let cron = Self {
            minutes: MINUTE.parse(minute)?,
            hours: HOUR.parse(hour)?,
            days: DAY.parse(day)?,
            months: MONTH.parse(month)?,
            weekdays: weekdays | (weekdays >> 7),
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
        };
        if cron.matches_some_date() { Ok(cron) } else { Err(InvalidCron::Never) }
    }

    /// Whether a month with one of the days exists, or the days of the week are enough.
    fn matches_some_date(&self) -> bool {
        self.either_day
            || (1..)
                .zip(MONTH_DAYS)
                .any(|(month, length)| has(self.months, month) && (1..=length).any(|day| has(self.days, day)))
    }

    /// Whether it covers every hour of a day.
    pub(crate) const fn covers_all_hours(&self) -> bool {
        self.hours == ALL_HOURS
    }

    /// Whether it matches a time of `date`.
    pub(crate) fn matches_date(&self, date: Date) -> bool {
        let of = |number: i8| u32::try_from(number).unwrap_or_default();
        let day = has(self.days, of(date.day()));
        let weekday = has(self.weekdays, of(date.weekday().to_sunday_zero_offset()));
        has(self.months, of(date.month())) && if self.either_day { day || weekday } else { day && weekday }
    }

    /// The times of a day that it matches, in order, as hour and minute.
    pub(crate) fn times(&self) -> impl Iterator<Item = (i8, i8)> + '_ {
        let numbers =
            |set: u64, max: i8| (0..=max).filter(move |number| has(set, number.unsigned_abs().into()));
        numbers(self.hours, 23)
            .flat_map(move |hour| numbers(self.minutes, 59).map(move |minute| (hour, minute)))
    }
}

fn has(set: u64, number: u32) -> bool {
    set.checked_shr(number).is_some_and(|shifted| shifted & 1 == 1)
}

impl FieldRule {
    fn parse(&self, field: &str) -> Result<u64, InvalidCron> {
        let invalid = InvalidCron::Field { field: self.name, min: self.min, max: self.max };
        let mut parts = field.split(',').map(|part| self.parse_part(part));
        parts.try_fold(0, |set, part| Some(set | part?)).ok_or(invalid)
    }

    /// Parses a number, a range or `*`, each with a step or without.
    fn parse_part(&self, part: &str) -> Option<u64> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                (range, Some(parse_digits(step).filter(|step| (1..=self.max).contains(step))?))
            }
            None => (part, None),
        };
        let (first, last) = match range.split_once('-') {
            // Sunday is the end of a week and its beginning; `*` names it once.
            None if range == "*" => (self.min, if self.max == WEEKDAY.max { 6 } else { self.max }),
            None => {
                let number = self.number(range)?;
                // `5/15` means from 5 on.
                (number, if step.is_some() { self.max } else { number })
            }
            Some((first, last)) => (self.number(first)?, self.number(last)?),
        };
        if first > last {
            return None;
        }
        let numbers = (first..=last).step_by(usize::try_from(step.unwrap_or(1)).ok()?);
        Some(numbers.fold(0, |set, number| set | 1 << number))
    }

    fn number(&self, text: &str) -> Option<u32> {
        let named = (self.min..).zip(self.names).find(|(_, name)| name.eq_ignore_ascii_case(text));
        let number = named.map(|(number, _)| number).or_else(|| parse_digits(text))?;
        (self.min..=self.max).contains(&number).then_some(number)
    }
}

/// Parses one or two digits.
fn parse_digits(text: &str) -> Option<u32> {
    let is_short = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_short.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
#[path = "../tests/unit/cron.rs"]
mod tests;
