//! Which dates a question names, and what they add.

use super::*;

fn mention(year: impl Into<Option<i16>>, month: i8, day: impl Into<Option<i8>>) -> DateMention {
    DateMention { year: year.into(), month, day: day.into() }
}

#[test]
fn a_day_is_known_however_it_is_written() {
    let notations = [
        "2 March 2024",
        "on 2nd of March 2024",
        "2nd March, 2024",
        "March 2, 2024",
        "Mar 2nd 2024",
        "2024-03-02",
        "2024/3/2",
        "2.3.2024",
        "02. 03. 2024",
        "3/2/2024",
        "2024年3月2日",
        "２０２４年３月２日",
        "2024年3月2号",
        "2024년 3월 2일에",
    ];
    for notation in notations {
        assert_eq!(mentioned_dates(notation), [mention(2024, 3, 2)], "{notation}");
    }
    assert_eq!(mentioned_dates("25/12/2024"), [mention(2024, 12, 25)]);
    assert_eq!(mentioned_dates("What did I say on 2 March, at 10:30?"), [mention(None, 3, 2)]);
    assert_eq!(mentioned_dates("3月5日"), [mention(None, 3, 5)]);
}

#[test]
fn a_month_needs_a_year_or_a_word_before_it() {
    assert_eq!(mentioned_dates("March 2024"), [mention(2024, 3, None)]);
    assert_eq!(mentioned_dates("in May or June 2023"), [mention(None, 5, None), mention(2023, 6, None)]);
    assert_eq!(mentioned_dates("2024年3月"), [mention(2024, 3, None)]);
    // The day does not exist, but the month does.
    assert_eq!(mentioned_dates("30 February 2024"), [mention(2024, 2, None)]);
    let texts = [
        "march on",
        "it may rain",
        "April called",
        "may 99",
        "2024-13-01",
        "marching 2",
        "",
        "2",
        "ma 2",
        "in 2024",
        "version 1.2.3",
        "0/0/2024",
        "10.20.30.40",
    ];
    for text in texts {
        assert_eq!(mentioned_dates(text), [], "{text}");
    }
}

#[test]
fn a_date_adds_by_its_distance() {
    let date = |text: &str| text.parse::<Date>().unwrap();
    let cases = [
        ("2024-03-02", 5.0),
        ("2024-02-28", 1.0),
        ("2024-02-27", 0.0),
        ("2024-03-12", 3.0),
        ("2024-03-13", 2.0),
        ("2024-03-31", 2.0),
        ("2023-03-02", 0.0),
    ];
    for (of_message, score) in cases {
        assert!((date_score(&[mention(2024, 3, 2)], date(of_message)) - score).abs() < 1e-9, "{of_message}");
    }
    let score = |mentions: &[DateMention], of_message| date_score(mentions, date(of_message));
    assert!((score(&[mention(None, 3, 2)], "2019-03-02") - 5.0).abs() < 1e-9);
    // Two days after New Year's Eve it is another year.
    assert!((score(&[mention(None, 12, 31)], "2025-01-02") - 1.0).abs() < 1e-9);
    assert!((score(&[mention(None, 3, None), mention(2020, 1, 1)], "2019-03-02") - 2.0).abs() < 1e-9);
    assert!(score(&[], "2019-03-02").abs() < 1e-9);
}
