//! Parses the dates and months that a text mentions, in the usual English and numeric notations. Pure.

use std::ops::Range;

use jiff::civil::Date;
use jiff::tz::TimeZone;

/// A day of a month, with a year if the text states one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Day {
    year: Option<i16>,
    month: i8,
    day: i8,
}

/// A day or a month that a text mentions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DateMention {
    Day(Day),
    Month { year: i16, month: i8 },
}

const MONTHS: &[&str] = &[
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
/// The shortest abbreviation of a month's name, in letters.
const MIN_MONTH_LETTERS: usize = 3;

/// Parses the date at the beginning of `words`, which are in lower case, and returns it with the number of words
/// used.
pub(super) fn parse_date_prefix(words: &[&str]) -> Option<(DateMention, usize)> {
    if let [year, month, day, ..] = words
        && let (Some(year), Some(month)) = (parse_year(year), parse_number(month, 2))
        && let Some(day) = Day::new(Some(year), month, parse_number(day, 2)?)
    {
        return Some((DateMention::Day(day), 3));
    }
    let (day, month, rest) = match words {
        [day, "of", month, rest @ ..] if parse_day_of_month(day).is_some() => {
            (parse_day_of_month(day), parse_month(month)?, rest)
        }
        [day, month, rest @ ..] if parse_day_of_month(day).is_some() => {
            (parse_day_of_month(day), parse_month(month)?, rest)
        }
        [month, day, rest @ ..] if parse_day_of_month(day).is_some() => {
            (parse_day_of_month(day), parse_month(month)?, rest)
        }
        [month, rest @ ..] => (None, parse_month(month)?, rest),
        [] => return None,
    };
    let year = rest.first().and_then(|year| parse_year(year));
    let used = words.len() - rest.len() + usize::from(year.is_some());
    match (day, year) {
        (Some(day), year) => Day::new(year, month, day).map(|day| (DateMention::Day(day), used)),
        (None, Some(year)) => Some((DateMention::Month { year, month }, used)),
        (None, None) => None,
    }
}

impl DateMention {
    /// The range of time in Unix milliseconds (UTC); `None` for a day without a year.
    pub(super) fn time_range(self) -> Option<Range<i64>> {
        let (from, to) = match self {
            Self::Day(Day { year, month, day }) => {
                let from = Date::new(year?, month, day).ok()?;
                (from, from.tomorrow().ok()?)
            }
            Self::Month { year, month } => {
                let from = Date::new(year, month, 1).ok()?;
                (from, from.last_of_month().tomorrow().ok()?)
            }
        };
        let start = |date: Date| Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp().as_millisecond());
        Some(start(from)?..start(to)?)
    }
}

impl Day {
    fn new(year: Option<i16>, month: i8, day: i8) -> Option<Self> {
        // 2024 is a leap year, so every day of any year is valid in it.
        Date::new(year.unwrap_or(2024), month, day).ok()?;
        Some(Self { year, month, day })
    }

    /// Whether two days are the same, ignoring the year if either lacks one.
    pub(super) fn matches(self, other: Self) -> bool {
        let same_year = self.year.is_none_or(|year| other.year.is_none_or(|other| year == other));
        same_year && (self.month, self.day) == (other.month, other.day)
    }

    /// The FTS5 expression that matches all notations of the day.
    pub(super) fn match_expression(self) -> String {
        let Self { year, month, day } = self;
        let name =
            usize::try_from(month - 1).ok().and_then(|index| MONTHS.get(index)).copied().unwrap_or_default();
        let short = name.get(..MIN_MONTH_LETTERS).unwrap_or(name);
        let ordinal = format!("{day}{}", ordinal_suffix(day));
        let year_before = year.map(|year| format!("{year} ")).unwrap_or_default();
        let year_after = year.map(|year| format!(" {year}")).unwrap_or_default();
        let notations = [
            format!("{year_before}{month:02} {day:02}"),
            format!("{day} {name}{year_after}"),
            format!("{ordinal} {name}{year_after}"),
            format!("{ordinal} of {name}{year_after}"),
            format!("{name} {day}{year_after}"),
            format!("{name} {ordinal}{year_after}"),
            format!("{day} {short}{year_after}"),
            format!("{short} {day}{year_after}"),
        ];
        notations.map(|notation| format!("\"{notation}\"")).join(" OR ")
    }
}

fn parse_month(word: &str) -> Option<i8> {
    let matches_name = |name: &&str| {
        *name == word || (word.len() >= MIN_MONTH_LETTERS && word.len() <= 4 && name.starts_with(word))
    };
    let index = MONTHS.iter().position(matches_name)?;
    i8::try_from(index + 1).ok()
}

fn parse_year(word: &str) -> Option<i16> {
    parse_number(word, 4).filter(|year| (1900..2200).contains(year))
}

/// Parses a number of at most `max_digits` digits.
fn parse_number<T: std::str::FromStr>(word: &str, max_digits: usize) -> Option<T> {
    (word.len() <= max_digits && word.bytes().all(|letter| letter.is_ascii_digit()))
        .then(|| word.parse().ok())?
}

/// Parses the day of a month, such as `2` or `2nd`.
fn parse_day_of_month(word: &str) -> Option<i8> {
    let digits = word.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    let end = word.get(digits.len()..)?;
    matches!(end, "" | "st" | "nd" | "rd" | "th").then(|| parse_number(digits, 2))?
}

const fn ordinal_suffix(day: i8) -> &'static str {
    match day {
        1 | 21 | 31 => "st",
        2 | 22 => "nd",
        3 | 23 => "rd",
        _ => "th",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(text: &str) -> Option<(DateMention, usize)> {
        let text = text.to_lowercase();
        let words: Vec<&str> =
            text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
        parse_date_prefix(&words)
    }

    #[test]
    fn a_day_is_known_however_it_is_written() {
        let notations = [
            ("2 March 2024", 3),
            ("2024-03-02", 3),
            ("March 2, 2024", 3),
            ("2nd of March 2024 it is", 4),
            ("Mar 2 2024", 3),
        ];
        let expected = Day { year: Some(2024), month: 3, day: 2 };
        for (notation, words) in notations {
            assert_eq!(first(notation), Some((DateMention::Day(expected), words)), "{notation}");
        }
        let (DateMention::Day(yearless), 2) = first("2 March, they said").unwrap() else { panic!("no day") };
        assert!(yearless.matches(expected) && expected.matches(yearless));
        assert_eq!(first("March 2024"), Some((DateMention::Month { year: 2024, month: 3 }, 2)));
        for text in ["march on", "30 February 2024", "may 99", "2024-13-01", "marching 2", "", "2", "ma 2"] {
            assert_eq!(first(text), None, "{text}");
        }
    }

    #[test]
    fn a_day_and_a_month_are_times() {
        let time = |text| first(text).and_then(|(mention, _)| mention.time_range());
        assert_eq!(time("2024-03-01"), Some(1_709_251_200_000..1_709_337_600_000));
        assert_eq!(time("February 2024"), Some(1_706_745_600_000..1_709_251_200_000));
        assert_eq!(time("1 March"), None);
    }
}
