//! Tests of conditions, ranges and headers.

use super::*;

/// 2026-11-20T11:30:31.042Z.
const MODIFIED: Timestamp = Timestamp::from_unix_ms(1_795_174_231_042);
const MODIFIED_TEXT: &str = "Fri, 20 Nov 2026 11:30:31 GMT";
const EARLIER: &str = "Fri, 20 Nov 2026 11:30:30 GMT";

fn selection(size: u64, headers: &[(HeaderName, &str)]) -> Selection {
    let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
    let file = Representation {
        etag: "v1",
        modified: Some(MODIFIED),
        size,
        content_type: "text/plain",
        name: "a.txt",
        is_download: false,
        cache_control: "private",
    };
    select(&Method::GET, &headers, &file)
}

#[test]
fn a_single_range_is_selected() {
    for (range, expected) in [
        ("bytes=0-3", Selection::Part(0..4)),
        ("bytes=4-", Selection::Part(4..10)),
        ("bytes=-3", Selection::Part(7..10)),
        ("bytes=-30", Selection::Part(0..10)),
        ("bytes=9-99", Selection::Part(9..10)),
        ("bytes=10-", Selection::NotSatisfiable),
        ("bytes=10-12", Selection::NotSatisfiable),
        ("bytes=-0", Selection::NotSatisfiable),
        ("bytes=18446744073709551615-18446744073709551615", Selection::NotSatisfiable),
        ("bytes=3-2", Selection::All),
        ("bytes=0-1,4-5", Selection::All),
        ("bytes=", Selection::All),
        ("bytes=-", Selection::All),
        ("bytes=+1-2", Selection::All),
        ("bytes=99999999999999999999-", Selection::All),
        ("lines=1-2", Selection::All),
    ] {
        assert_eq!(selection(10, &[(RANGE, range)]), expected, "{range}");
    }
    assert_eq!(selection(0, &[(RANGE, "bytes=0-")]), Selection::NotSatisfiable);
    assert_eq!(selection(0, &[]), Selection::All);
}

#[test]
fn conditions_are_evaluated_in_their_order() {
    use Selection::{All, NotModified, Part, PreconditionFailed};
    let cases: Vec<(Vec<(HeaderName, &str)>, Selection)> = vec![
        (vec![(IF_NONE_MATCH, r#""v1""#)], NotModified),
        (vec![(IF_NONE_MATCH, r#"W/"v1""#)], NotModified),
        (vec![(IF_NONE_MATCH, r#""v0""#), (IF_MODIFIED_SINCE, MODIFIED_TEXT)], All),
        (vec![(IF_MODIFIED_SINCE, MODIFIED_TEXT)], NotModified),
        (vec![(IF_MODIFIED_SINCE, EARLIER)], All),
        (vec![(IF_MODIFIED_SINCE, "yesterday")], All),
        (vec![(IF_MATCH, r#""v0""#)], PreconditionFailed),
        (vec![(IF_MATCH, r#""v0", "v1""#), (IF_UNMODIFIED_SINCE, EARLIER)], All),
        (vec![(IF_UNMODIFIED_SINCE, EARLIER)], PreconditionFailed),
        (vec![(IF_UNMODIFIED_SINCE, MODIFIED_TEXT)], All),
        (vec![(RANGE, "bytes=0-0"), (IF_RANGE, r#""v1""#)], Part(0..1)),
        (vec![(RANGE, "bytes=0-0"), (IF_RANGE, r#"W/"v1""#)], All),
        (vec![(RANGE, "bytes=0-0"), (IF_RANGE, r#""v0""#)], All),
        (vec![(RANGE, "bytes=0-0"), (IF_RANGE, MODIFIED_TEXT)], All),
        (vec![(RANGE, "bytes=0-0"), (IF_RANGE, "é")], All),
        (vec![(IF_NONE_MATCH, r#""v0""#), (IF_NONE_MATCH, r#""v1""#)], NotModified),
        (vec![(RANGE, "bytes=0-0"), (IF_RANGE, EARLIER)], All),
        (vec![(RANGE, "bytes=0-0"), (IF_NONE_MATCH, "*")], NotModified),
    ];
    for (headers, expected) in cases {
        assert_eq!(selection(10, &headers), expected, "{headers:?}");
    }
}

#[test]
fn a_name_is_given_in_both_forms_where_it_needs_them() {
    for (name, expected) in [
        ("notes.txt", r#"inline; filename="notes.txt""#),
        ("a b.txt", r#"inline; filename="a b.txt""#),
        ("日本.txt", r#"inline; filename="__.txt"; filename*=UTF-8''%E6%97%A5%E6%9C%AC.txt"#),
        ("a\"\\\r\n%.txt", r#"inline; filename="a_____.txt"; filename*=UTF-8''a%22%5C%0D%0A%25.txt"#),
    ] {
        assert_eq!(content_disposition(name, false), expected);
    }
    assert!(content_disposition("a", true).starts_with("attachment; "));
}

#[test]
fn a_time_that_http_cannot_express_is_the_last_one_that_it_can() {
    let end = httpdate::fmt_http_date(system_time(Timestamp::from_unix_ms(i64::MAX)));
    assert_eq!(end, "Fri, 31 Dec 9999 23:59:59 GMT");
}
