//! Days and their written forms.

use super::rng::SeededRng;

/// A day of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Day {
    year: usize,
    /// The month, from 1.
    month: usize,
    /// The day of the month, from 1 to 28, so that it exists in every month.
    day: usize,
}

pub(crate) const MONTHS: &[&str] = &[
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The year in which a corpus begins.
const FIRST_YEAR: usize = 2023;
/// The length of a day in milliseconds.
pub(crate) const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
/// The start of the first year in Unix milliseconds.
pub(crate) const START_MS: i64 = 1_672_531_200_000;
/// The time span of a corpus in days: three years.
pub(crate) const SPAN_DAYS: i64 = 1_096;

impl Day {
    /// Returns a random day within four years.
    pub(crate) fn random(rng: &mut SeededRng) -> Self {
        Self { year: FIRST_YEAR + rng.below(4), month: rng.between(1, 12), day: rng.between(1, 28) }
    }

    /// Formats the day in one of several ways.
    pub(crate) fn format(self, rng: &mut SeededRng) -> String {
        let Self { year, month, day } = self;
        let name = MONTHS.get(month - 1).copied().unwrap_or_default();
        match rng.below(4) {
            0 => format!("{day} {name} {year}"),
            1 => format!("{name} {day}, {year}"),
            2 => format!("{year}-{month:02}-{day:02}"),
            _ => format!("the {day}{} of {name} {year}", ordinal(day)),
        }
    }
}

const fn ordinal(day: usize) -> &'static str {
    match day {
        1 | 21 => "st",
        2 | 22 => "nd",
        3 | 23 => "rd",
        _ => "th",
    }
}

/// Returns the name of the month of a time, such as `March 2024`.
pub(crate) fn month_name(unix_ms: i64) -> String {
    let mut days = (unix_ms - START_MS).div_euclid(DAY_MS).max(0);
    let mut year = FIRST_YEAR;
    loop {
        for (month, name) in MONTHS.iter().enumerate() {
            let length = days_in(year, month + 1);
            if days < length {
                return format!("{name} {year}");
            }
            days -= length;
        }
        year += 1;
    }
}

const fn days_in(year: usize, month: usize) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) => 29,
        2 => 28,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_in_the_months_of_the_calendar() {
        let at = |days: i64| month_name(START_MS + days * DAY_MS);
        assert_eq!(at(0), "January 2023");
        assert_eq!(at(31), "February 2023");
        assert_eq!(at(364), "December 2023");
        // 2024-02-29, 2024-03-01 and 2025-12-31.
        assert_eq!((at(424), at(425)), ("February 2024".into(), "March 2024".into()));
        assert_eq!(at(SPAN_DAYS - 1), "December 2025");
    }

    #[test]
    fn a_day_is_written_in_several_ways() {
        let (day, mut rng) = (Day { year: 2024, month: 3, day: 2 }, SeededRng::new(1));
        let written: std::collections::BTreeSet<String> = (0..99).map(|_| day.format(&mut rng)).collect();
        let expected = ["2 March 2024", "2024-03-02", "March 2, 2024", "the 2nd of March 2024"];
        assert_eq!(written.into_iter().collect::<Vec<_>>(), expected);
    }
}
