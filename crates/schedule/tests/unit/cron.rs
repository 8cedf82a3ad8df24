use super::*;

fn date(text: &str) -> Date {
    text.parse().unwrap()
}

#[test]
fn fields_are_lists_of_numbers_names_ranges_and_steps() {
    let cron = Cron::parse("*/20,5  9-17/4\t1,15 jan-MAR *").unwrap();
    let times: Vec<_> = cron.times().collect();
    assert_eq!(times[..4], [(9, 0), (9, 5), (9, 20), (9, 40)]);
    assert_eq!(times.len(), 12);
    assert!(cron.matches_date(date("2026-03-15")));
    assert!(!cron.matches_date(date("2026-04-15")));
    assert!(!cron.matches_date(date("2026-03-16")));
    assert_eq!(Cron::parse("50/5 0 * * *").unwrap().times().count(), 2);
}

#[test]
fn sunday_has_two_numbers_and_a_week_goes_to_either() {
    for sunday in ["0", "7", "SUN"] {
        let cron = Cron::parse(&format!("0 0 * * {sunday}")).unwrap();
        assert!(cron.matches_date(date("2026-11-29")), "{sunday}");
        assert!(!cron.matches_date(date("2026-11-30")), "{sunday}");
    }
    let weekend = Cron::parse("0 0 * * 6-7").unwrap();
    assert!(weekend.matches_date(date("2026-11-28")) && weekend.matches_date(date("2026-11-29")));
}

#[test]
fn of_two_restricted_fields_of_days_one_is_enough() {
    let cron = Cron::parse("0 0 13 * fri").unwrap();
    assert!(cron.matches_date(date("2026-11-27")));
    assert!(cron.matches_date(date("2026-12-13")));
    assert!(!cron.matches_date(date("2026-12-14")));
}

#[test]
fn what_is_no_expression_is_refused() {
    assert_eq!(Cron::parse("* * * *"), Err(InvalidCron::Fields(4)));
    assert_eq!(Cron::parse("* * * * * *"), Err(InvalidCron::Fields(6)));
    for wrong in [
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 * ",
        "* * * * 8",
        "a * * * *",
        "1- * * * *",
        "-1 * * * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "*/ * * * *",
        ", * * * *",
        "+1 * * * *",
        "001 * * * *",
        "* * L * *",
        "* * * * 1#2",
        "é * * * *",
    ] {
        assert!(matches!(Cron::parse(wrong), Err(InvalidCron::Field { .. })), "{wrong}");
    }
    assert_eq!(Cron::parse("0 0 30 feb *"), Err(InvalidCron::Never));
    assert_eq!(Cron::parse("0 0 31 4,6,9,11 *"), Err(InvalidCron::Never));
    assert!(Cron::parse("0 0 29 2 *").is_ok());
}
