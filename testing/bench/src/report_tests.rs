use super::*;

fn subject(name: &str, samples: &[f64]) -> Subject {
    Subject { samples: samples.to_vec(), ..Subject::new(name) }
}

fn quantity(unit: Unit, ours: &[f64], baseline: &[f64], budget: Budget) -> Quantity {
    let baselines = vec![subject("bare axum", baseline)];
    Quantity { name: "start".into(), unit, subject: subject("engine", ours), baselines, budget: Some(budget) }
}

#[test]
fn the_table_is_aligned_and_compares() {
    let start = quantity(Unit::Milliseconds, &[12.0, 15.5, 11.0], &[2.0, 2.5, 3.0], Budget::AtMost(20.0));
    let mut admit = quantity(Unit::PerSecond, &[40_000.0], &[57_000.0], Budget::AtLeastTimesBaseline(0.8));
    admit.name = "admit".into();
    let expected = "\
what   measured            median      min     max  ratio  budget
start  engine             12.0 ms     11.0    15.5         ≤ 20.0 ms      met
       baseline: bare axum   2.50 ms     2.00    3.00   4.80
admit  engine           40,000 /s   40,000  40,000         ≥ 0.8 × baseline  MISSED
       baseline: bare axum  57,000 /s  57,000  57,000   0.70
";
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let table = render_table(&[start, admit]);
    for (line, expected) in table.lines().zip(expected.lines()) {
        assert_eq!(squeeze(line), squeeze(expected));
    }
    assert_eq!(table.lines().count(), expected.lines().count());
    // The column of medians ends at the same position in every line.
    let ends: Vec<usize> = table
        .lines()
        .zip(["median", "12.0 ms", "2.50 ms", "40,000 /s", "57,000 /s"])
        .map(|(line, cell)| line[..line.find(cell).unwrap() + cell.len()].chars().count())
        .collect();
    assert!(ends.windows(2).all(|pair| pair[0] == pair[1]), "{table}");
}

#[test]
fn what_ours_stands_beside_is_no_floor() {
    let mut after = quantity(Unit::Mebibytes, &[9.0], &[7.0], Budget::AboveBaseline(4.0));
    after.baselines = vec![Subject { samples: vec![7.0], ..Subject::comparison("before") }];
    let lines = render_table(std::slice::from_ref(&after));
    assert!(lines.contains("≤ before + 4.00 MiB  met") && lines.contains("beside: before"), "{lines}");
    after.subject.samples = vec![6.0];
    assert_eq!(after.verdict(), Some(Verdict::Met));
    after.subject.samples = vec![11.1];
    assert_eq!(after.verdict(), Some(Verdict::Missed));
}

#[test]
fn budgets_are_judged_by_the_median() {
    use Unit::{Milliseconds, PerSecond};
    use Verdict::{FloorIsWrong, Met, Missed};
    for (unit, ours, baseline, budget, verdict) in [
        (Milliseconds, 20.0, 2.0, Budget::AtMost(20.0), Met),
        (Milliseconds, 20.1, 2.0, Budget::AtMost(20.0), Missed),
        (Milliseconds, 3.0, 2.0, Budget::AboveBaseline(1.0), Met),
        (Milliseconds, 3.1, 2.0, Budget::AboveBaseline(1.0), Missed),
        (Milliseconds, 4.0, 2.0, Budget::AtMostTimesBaseline(2.0), Met),
        (Milliseconds, 4.1, 2.0, Budget::AtMostTimesBaseline(2.0), Missed),
        (PerSecond, 80.0, 100.0, Budget::AtLeastTimesBaseline(0.8), Met),
        (PerSecond, 79.0, 100.0, Budget::AtLeastTimesBaseline(0.8), Missed),
        (PerSecond, 80.0, 100.0, Budget::AtLeast(81.0), Missed),
        (Milliseconds, 1.9, 2.0, Budget::AtMost(20.0), FloorIsWrong),
        (PerSecond, 101.0, 100.0, Budget::AtLeastTimesBaseline(0.8), FloorIsWrong),
    ] {
        let quantity = quantity(unit, &[ours], &[baseline], budget);
        assert_eq!(quantity.verdict(), Some(verdict), "{quantity:?}");
    }
}

#[test]
fn without_samples_there_is_no_verdict() {
    let quantity = quantity(Unit::Milliseconds, &[], &[2.0], Budget::AtMost(20.0));
    assert_eq!(quantity.verdict(), None);
    assert!(render_table(&[quantity]).contains("- ms"));
}

#[test]
fn numbers_are_short() {
    for (value, text) in [
        (0.1234, "0.12"),
        (12.345, "12.3"),
        (999.94, "999.9"),
        (1_234.5, "1,234"),
        (123_456.0, "123,456"),
        (1_234_567.0, "1,234,567"),
    ] {
        assert_eq!(format_number(value), text);
    }
}

#[test]
fn the_json_has_every_sample() {
    let start = quantity(Unit::Milliseconds, &[12.0, 14.0], &[2.0, 2.0], Budget::AtMost(20.0));
    let json: serde_json::Value = serde_json::from_str(&render_json(&[start], 2).unwrap()).unwrap();
    assert_eq!(json["rounds"], 2);
    let quantity = &json["quantities"][0];
    assert_eq!(quantity["ours"]["samples"], serde_json::json!([12.0, 14.0]));
    assert_eq!(quantity["ours"]["spread"]["median"], 13.0);
    assert_eq!(quantity["floors"][0]["ratio"], 6.5);
    assert_eq!(quantity["unit"], "ms");
    assert_eq!(quantity["verdict"], "met");
}
