use super::*;
use crate::sources::csv::Csv;
use crate::sources::jsonl::Jsonl;
use crate::sources::test::bind;
use crate::testing::only;
use chrono::{DateTime, Datelike};
use proptest::prelude::*;

/// The times of a file with one column, and the details of its dead letters.
fn times(rows: &str, options: &str) -> (Vec<i64>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), format!("at\n{rows}\n")).unwrap();
    let source =
        bind(&Csv, folder.path(), &format!("path: t.csv\nevent_time: at\nmax_jump: none\n{options}"))
            .unwrap();
    let mut reader = (source.make)().unwrap();
    let Ok(crate::api::SourceRead::Rows { times, dead_letters, .. }) = reader.read(99, 1 << 20) else {
        panic!()
    };
    (times.unwrap(), dead_letters.into_iter().map(|letter| letter.detail).collect())
}

#[test]
fn texts_with_a_zone_are_times() {
    let one = 1_774_745_999_250_000;
    for text in [
        "2026-03-29T01:59:59.25+01:00",
        "2026-03-29T00:59:59.25Z",
        "2026-03-29 00:59:59.250000999z",
        "2026-03-28t19:29:59.25-05:30",
        "2026-03-29 01:59:59.25 +0100",
        " 2026-03-29T01:59:59.25+01 ",
        "2026-03-29 00:59:59.25 UTC",
        "\"2026-03-29T00:59:59,25Z\"",
    ] {
        assert_eq!(times(text, "columns: {at: text}"), (vec![one], vec![]), "{text}");
    }
    assert_eq!(parse("1970-01-01T00:00Z", None), Ok(0));
    assert_eq!(parse("1969-12-31T23:59:59.999999Z", None), Ok(-1));
    assert_eq!(parse("2016-12-31T23:59:60Z", None), parse("2017-01-01T00:00:00Z", None));
}

#[test]
fn a_time_without_a_zone_needs_one_from_the_workflow() {
    let text = "2026-03-29T01:59:59";
    let (found, dead) = times(text, "columns: {at: text}");
    assert!(found.is_empty());
    assert!(
        dead[0].contains("`2026-03-29T01:59:59` has no zone") && dead[0].contains("`time_zone: Z`"),
        "{dead:?}"
    );
    for (zone, hours) in [("Z", 0), ("\"+01:00\"", 1), ("\"-0330\"", -3)] {
        let (found, _) = times(text, &format!("columns: {{at: text}}\ntime_zone: {zone}"));
        let minutes = if hours < 0 { -210 } else { 60 * hours };
        assert_eq!(found, [1_774_749_599_000_000 - minutes * 60_000_000], "{zone}");
    }
    // A time with its own zone keeps it.
    assert_eq!(parse("1970-01-01T00:00:00Z", Some(DAY)), Ok(0));
}

#[test]
fn what_is_no_time_is_a_dead_letter() {
    let rows = "29/Mar/2026:01:59:59 +0100\n2026-02-29T00:00:00Z\n2026-03-29\n2026-03-29T24:00:00Z\n2026-03-29T01:59:59 CET\n\"\"\n\"  \"\n2026-03-29T01:59:59.Z\n1774749599";
    let (found, dead) = times(rows, "columns: {at: text}");
    assert!(found.is_empty());
    let ends: Vec<&str> = dead.iter().map(|detail| detail.rsplit("` ").next().unwrap()).collect();
    for (at, end) in
        [(0, "is not a time such as"), (4, "ends with no zone such as"), (5, "is empty"), (6, "is empty")]
    {
        assert!(dead[at].contains(end), "{at}: {dead:?}");
    }
    assert_eq!(ends.len(), 9);
}

#[test]
fn json_has_texts_too() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.jsonl"), "{\"x\":\"y\",\"at\":\"1970-01-01T00:00:01Z\"}\n").unwrap();
    let yaml = "path: t.jsonl\ncolumns: {x: text, at: text}\nevent_time: at";
    let mut reader = (bind(&Jsonl, folder.path(), yaml).unwrap().make)().unwrap();
    let Ok(crate::api::SourceRead::Rows { times, .. }) = reader.read(9, 1 << 20) else { panic!() };
    assert_eq!(times, Some(vec![1_000_000]));
}

#[test]
fn units_are_counted_from_1970() {
    for (unit, value) in [("s", "1.5"), ("ms", "1500"), ("us", "1500000"), ("ns", "1500000999")] {
        let kind = if value.contains('.') { "float64" } else { "int64" };
        let (found, dead) = times(value, &format!("columns: {{at: {kind}}}\ntime_unit: {unit}"));
        assert_eq!((found, dead), (vec![1_500_000], vec![]), "{unit}");
    }
    let (_, dead) = times("1774749599000000000", "columns: {at: int64}");
    assert!(dead[0].ends_with("is out of range; `time_unit: ns` would put it in 2026"), "{dead:?}");
}

#[test]
fn options_that_do_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), "at\n1\n").unwrap();
    for (yaml, message) in [
        (
            "columns: {at: text}\nevent_time: at\ntime_unit: s",
            "`time_unit` has no effect on an event time that is text",
        ),
        (
            "columns: {at: int64}\nevent_time: at\ntime_zone: Z",
            "`time_zone` has no effect on an event time that is int64",
        ),
        ("columns: {at: text}\nevent_time: at\ntime_zone: Europe/Berlin", "`Europe/Berlin` is not a zone"),
        ("columns: {at: bool}\nevent_time: at", "expected int64, float64 or text"),
        ("columns: {at: int64}\ntime_zone: Z", "`time_zone` has no effect without `event_time`"),
    ] {
        let error = only(bind(&Csv, folder.path(), &format!("path: t.csv\n{yaml}")).err().unwrap());
        assert!(error.code == "E0606" && error.message.contains(message), "{error}");
        assert!(error.help.is_some() && error.line().is_some(), "{error}");
    }
}

#[test]
fn a_wrong_unit_is_doubted() {
    let doubt = |unit, cell| EventTimes { column: 0, form: Form::Number(unit) }.doubt("at", cell);
    let said = doubt(TimeUnit::Ms, Cell::Int(1_774_749_599)).unwrap();
    assert_eq!(
        said,
        "event time `at` = 1774749599 is in the year 1970 with `time_unit: ms`; `time_unit: s` would put it in 2026"
    );
    for (unit, cell, year, other) in [
        (TimeUnit::Us, Cell::Int(1_774_749_599_000_000_000), "58209", "ns"),
        (TimeUnit::S, Cell::Int(1_774_749_599_000), "58209", "ms"),
        (TimeUnit::Us, Cell::Float(1_774_749_599.5), "1970", "s"),
    ] {
        let said = doubt(unit, cell).unwrap();
        assert!(
            said.contains(&format!("in the year {year} "))
                && said.contains(&format!("`time_unit: {other}` would")),
            "{said}"
        );
    }
    // Times of these decades, and those that start at 0.
    for (unit, value) in
        [(TimeUnit::S, 1_774_749_599), (TimeUnit::Ms, 0), (TimeUnit::Ms, 5_000_000), (TimeUnit::S, 86_400)]
    {
        assert_eq!(doubt(unit, Cell::Int(value)), None, "{value}");
    }
}

proptest! {
    #[test]
    fn times_agree_with_another_implementation(time in -62_135_596_800_000_000i64..253_402_300_799_999_999, offset in -1439i32..=1439) {
        let zone = chrono::FixedOffset::east_opt(60 * offset).unwrap();
        let date = DateTime::from_timestamp_micros(time).unwrap();
        prop_assert_eq!(year(time), i64::from(date.year()));
        let text = date.with_timezone(&zone).to_rfc3339();
        // Years of more or fewer than four digits do not follow RFC 3339.
        if text.len() >= 25 && text.as_bytes()[4] == b'-' {
            prop_assert_eq!(parse(&text, None), Ok(time), "{}", text);
        }
    }

    #[test]
    fn nothing_makes_it_panic(text in "[-+0-9:. TZé]{0,40}", value: i64) {
        let _ = parse(&text, None);
        for unit in TimeUnit::ALL {
            let _ = EventTimes { column: 0, form: Form::Number(unit) }.doubt("at", Cell::Int(value));
        }
    }
}
