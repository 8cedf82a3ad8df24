//! The dates that a question names, and how much nearer to the question a message is for its date.
//!
//! English and numeric notations, and those with the characters for year, month and day of Chinese, Japanese
//! and Korean. A date in words (`2 March`), in numbers (`2024-03-02`, `2.3.2024`) or a month (`in March`,
//! `March 2024`) counts; a bare year and relative times (`last week`) do not.

use jiff::civil::Date;

/// The date that a question names, as far as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateMention {
    /// The year; none means any.
    pub year: Option<i16>,
    /// The month, from 1.
    pub month: i8,
    /// The day; none means the whole month.
    pub day: Option<i8>,
}

/// Added to the score of a message of the day that the question names. About as much as one more word of two.
const SAME_DAY: f64 = 2.0;
/// Added to that of a message of the same month (and year), for dates are often remembered by it.
const SAME_MONTH: f64 = 2.0;
/// Added to that of a message from a few days before the day, when it was planned, to some days after, when
/// it was told.
const NEAR_DAY: f64 = 1.0;
const DAYS_BEFORE: i32 = 3;
const DAYS_AFTER: i32 = 10;

const MONTHS: [&str; 12] = [
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
/// The shortest and the longest abbreviation of a month's name, in letters: `mar`, `sept`.
const MIN_ABBREVIATION: usize = 3;
const MAX_ABBREVIATION: usize = 4;
/// Words before the name of a month that tell it from a verb or a name, such as `may` or `April`.
const BEFORE_MONTHS: &[&str] = &[
    "around",
    "by",
    "during",
    "early",
    "in",
    "last",
    "late",
    "mid",
    "next",
    "of",
    "since",
    "this",
    "throughout",
    "until",
];

/// The dates that a text names, in its order.
pub fn mentioned_dates(text: &str) -> Vec<DateMention> {
    let pieces = pieces(text);
    let mut dates = Vec::new();
    let mut before = None;
    let mut rest = pieces.as_slice();
    while let [first, after @ ..] = rest {
        let (date, used) = parse_date(rest, before).unwrap_or((None, 0));
        dates.extend(date);
        before = Some(first.text.as_str());
        rest = rest.get(used..).filter(|_| used > 0).unwrap_or(after);
    }
    dates.dedup();
    dates
}

/// What the dates of a question add to the score of a message of a date: the most that one of them does.
pub fn date_score(mentions: &[DateMention], date: Date) -> f64 {
    mentions.iter().map(|mention| mention.score(date)).fold(0.0, f64::max)
}

impl DateMention {
    /// A day or a month that exists.
    fn new(year: Option<i16>, month: i8, day: Option<i8>) -> Option<Self> {
        // 2024 is a leap year, so every day of any year is valid in it.
        Date::new(year.unwrap_or(2024), month, day.unwrap_or(1)).ok()?;
        Some(Self { year, month, day })
    }

    /// `2·[same day] + 2·[same month, and year if one is named] + [from 3 days before to 10 after]`.
    fn score(self, date: Date) -> f64 {
        let mut score = 0.0;
        if self.month == date.month() && self.year.is_none_or(|year| year == date.year()) {
            score += SAME_MONTH;
        }
        let Some(day) = self.day else { return score };
        // A day without a year is that of any year; around New Year the nearest is in the next or the last
        // one.
        let years =
            self.year.map_or([-1, 0, 1].map(|step| date.year().saturating_add(step)), |year| [year; 3]);
        let distances = years.into_iter().filter_map(|year| {
            let named = Date::new(year, self.month, day).ok()?;
            Some(named.until(date).ok()?.get_days())
        });
        let nearest = distances.min_by_key(|days| days.abs());
        if nearest == Some(0) {
            score += SAME_DAY;
        }
        if nearest.is_some_and(|days| (-DAYS_BEFORE..=DAYS_AFTER).contains(&days)) {
            score += NEAR_DAY;
        }
        score
    }
}

/// A run of letters or of digits in lower case, and what stands between it and the next one.
#[derive(Debug)]
struct Piece {
    text: String,
    gap: String,
}

fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut last_kind = None;
    for letter in text.chars() {
        // Full-width digits are written in Chinese and Japanese.
        let digit = u32::from(letter).checked_sub(0xff10).and_then(|digit| char::from_digit(digit, 10));
        let letter = digit.unwrap_or(letter);
        let kind = letter.is_alphanumeric().then(|| (letter.is_ascii_digit(), letter.is_ascii()));
        match (pieces.last_mut(), kind) {
            (Some(piece), Some(_)) if kind == last_kind => piece.text.extend(letter.to_lowercase()),
            (_, Some(_)) => {
                pieces.push(Piece { text: letter.to_lowercase().collect(), gap: String::new() });
            }
            (Some(piece), None) => piece.gap.push(letter),
            (None, None) => {}
        }
        last_kind = kind;
    }
    pieces
}

/// Parses what stands at the beginning; returns the date, if it is one, and the number of pieces that were
/// used.
fn parse_date(pieces: &[Piece], before: Option<&str>) -> Option<(Option<DateMention>, usize)> {
    let parsed =
        parse_cjk(pieces).or_else(|| parse_numeric(pieces)).or_else(|| parse_english(pieces, before));
    parsed.map(|(date, used)| (Some(date), used))
}

/// `2024年3月5日`, `3月5日`, `2024년 3월`; a month needs a year or a day unless the character says that it is one.
fn parse_cjk(pieces: &[Piece]) -> Option<(DateMention, usize)> {
    let number = |index: usize, units: &[&str]| {
        let (number, unit) = (pieces.get(index)?, pieces.get(index + 1)?);
        let is_unit = number.gap.trim().is_empty() && units.iter().any(|sign| unit.text.starts_with(sign));
        number.text.parse::<i16>().ok().filter(|_| is_unit)
    };
    let year = number(0, &["年", "년"]);
    let start = if year.is_some() { 2 } else { 0 };
    let month = i8::try_from(number(start, &["月", "월"])?).ok()?;
    let day = number(start + 2, &["日", "号", "號", "일"]).and_then(|day| i8::try_from(day).ok());
    let used = start + if day.is_some() { 4 } else { 2 };
    Some((DateMention::new(year, month, day)?, used))
}

/// `2024-03-02` and `2024/3/2`, `2.3.2024`, `3/2/2024`. Of two readings the day comes first behind a full
/// stop and if the second number is no month, else the month does, as English has it.
fn parse_numeric(pieces: &[Piece]) -> Option<(DateMention, usize)> {
    let [first, second, third, ..] = pieces else { return None };
    if first.gap != second.gap || !matches!(first.gap.as_str(), "-" | "/" | "." | ". ") {
        return None;
    }
    if let Some(year) = parse_year(&first.text) {
        let (month, day) = (parse_small(&second.text)?, parse_small(&third.text)?);
        return Some((DateMention::new(Some(year), month, Some(day))?, 3));
    }
    let (first_number, second_number) = (parse_small(&first.text)?, parse_small(&second.text)?);
    let year = parse_year(&third.text)?;
    let day_first = DateMention::new(Some(year), second_number, Some(first_number));
    let month_first = DateMention::new(Some(year), first_number, Some(second_number));
    let date = if first.gap.starts_with('.') { day_first } else { month_first.or(day_first) };
    Some((date?, 3))
}

/// `2 March 2024`, `2nd of March`, `March 2, 2024`, `March 2024`, `in March`.
fn parse_english(pieces: &[Piece], before: Option<&str>) -> Option<(DateMention, usize)> {
    let text = |index: usize| pieces.get(index).map(|piece| piece.text.as_str());
    let day_at = |index: usize| {
        let day = text(index).and_then(parse_small)?;
        let has_ordinal = pieces.get(index).is_some_and(|piece| piece.gap.is_empty())
            && matches!(text(index + 1), Some("st" | "nd" | "rd" | "th"));
        Some((day, if has_ordinal { 2 } else { 1 }))
    };
    let year_at = |index: usize| text(index).and_then(parse_year);
    if let Some((day, mut used)) = day_at(0) {
        if text(used) == Some("of") {
            used += 1;
        }
        let month = text(used).and_then(parse_month)?;
        let year = year_at(used + 1);
        return Some((DateMention::new(year, month, Some(day))?, used + 1 + usize::from(year.is_some())));
    }
    let month = text(0).and_then(parse_month)?;
    if let Some(year) = year_at(1) {
        return Some((DateMention::new(Some(year), month, None)?, 2));
    }
    if let Some((day, used)) = day_at(1) {
        let year = year_at(1 + used);
        return Some((DateMention::new(year, month, Some(day))?, 1 + used + usize::from(year.is_some())));
    }
    let is_month = before.is_some_and(|word| BEFORE_MONTHS.contains(&word));
    is_month.then(|| DateMention::new(None, month, None)).flatten().map(|date| (date, 1))
}

fn parse_month(word: &str) -> Option<i8> {
    let is_abbreviation = (MIN_ABBREVIATION..=MAX_ABBREVIATION).contains(&word.len());
    let index =
        MONTHS.iter().position(|name| *name == word || (is_abbreviation && name.starts_with(word)))?;
    i8::try_from(index + 1).ok()
}

fn parse_year(word: &str) -> Option<i16> {
    (word.len() == 4).then(|| word.parse().ok())?.filter(|year| (1900..2200).contains(year))
}

/// A day or a month: one or two digits.
fn parse_small(word: &str) -> Option<i8> {
    (word.len() <= 2).then(|| word.parse().ok())?
}

#[cfg(test)]
#[path = "../tests/unit/dates.rs"]
mod tests;
