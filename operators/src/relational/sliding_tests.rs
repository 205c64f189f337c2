//! Tests of overlapping windows.
use super::super::window_rows::EPOCH_ROWS;
use super::tests::{ALL, make, readings, record, result, rows, rows_of};
use super::*;
use crate::api::{Output, Stateful};
use crate::record::Metadata;
use crate::relational::test::{bind, feed, run_epochs};
use crate::testing::{Record, only, records};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// Reference: keeps every row in every window it belongs to; times in microseconds.
struct Naive {
    size: i64,
    slide: i64,
    lateness: i64,
    watermark: i64,
    open: BTreeMap<(i64, Option<String>), Vec<Record>>,
    results: Vec<Json>,
    late: u64,
}

impl Naive {
    fn is_closed(&self, start: i64) -> bool {
        self.watermark == i64::MAX || self.watermark >= start + self.size + self.lateness
    }

    fn apply(&mut self, row: &Record) {
        let starts: Vec<i64> = (row.time - self.size + 1..=row.time)
            .filter(|start| start.rem_euclid(self.slide) == 0 && !self.is_closed(*start))
            .collect();
        self.late += u64::from(starts.is_empty());
        let colour = row.payload["colour"].as_str().map(str::to_owned);
        for start in starts {
            self.open.entry((start, colour.clone())).or_default().push(row.clone());
        }
    }

    fn advance(&mut self, watermark: i64) {
        self.watermark = watermark;
        let (closed, open): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.open).into_iter().partition(|((start, _), _)| self.is_closed(*start));
        self.open = open;
        for ((start, colour), rows) in closed {
            let rows: Vec<&Record> = rows.iter().collect();
            self.results.push(result(start / 1000, (start + self.size) / 1000, colour, &rows));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn results_and_late_rows_are_those_of_keeping_each_row_in_each_window(
        rows in rows(), size in 1i64..6, slide in 1i64..6, lateness in 0i64..2500,
        bound in 0i64..3000, hurry in 0i64..2000, random in any::<u64>(),
    ) {
        let slide = slide.min(size);
        let yaml = format!("size: {size}ms\nslide: {slide}ms\nallowed_lateness: {lateness}us{ALL}");
        let operator = bind(&Window, &[readings()], &yaml).unwrap();
        let mut epochs = feed(&rows, bound, random).epochs;
        // Watermarks ahead of the rows make late ones.
        let mut highest = i64::MIN;
        for (_, watermark) in &mut epochs {
            highest = highest.max(watermark.saturating_add(hurry));
            *watermark = highest;
        }
        let mut naive = Naive {
            size: size * 1000, slide: slide * 1000, lateness,
            watermark: i64::MIN, open: BTreeMap::new(), results: Vec::new(), late: 0,
        };
        for (rows, watermark) in &epochs {
            rows.iter().for_each(|(_, row)| naive.apply(row));
            naive.advance(*watermark);
        }
        let found = run_epochs(&operator, &[readings()], &epochs, random);
        prop_assert_eq!(rows_of(&found.batches), naive.results);
        let late: u64 = found.drops.iter().filter(|(reason, _)| *reason == "late").map(|(_, n)| n).sum();
        prop_assert_eq!(late, naive.late);
        prop_assert!(found.dead_letters.is_empty());
    }
}

#[test]
fn a_row_counts_in_every_window_that_it_is_in() {
    let mut window =
        make("size: 10ms\nslide: 4ms\naggregates: [{function: count}, {function: sum, column: n}]");
    let mut output = Output::default();
    let rows = [record(0, 1_000, json!({"n": 1})), record(1, 9_000, json!({"n": 10}))];
    window.apply(0, &records(&readings(), &rows), &mut output).unwrap();
    window.advance(i64::MAX, &mut output).unwrap();
    let row = |start: i64, count: i64, sum: i64| json!({"window_start": start, "window_end": start + 10, "count": count, "sum_n": sum});
    assert_eq!(
        rows_of(&output.batches),
        [row(-8, 1, 1), row(-4, 1, 1), row(0, 2, 11), row(4, 1, 10), row(8, 1, 10)]
    );
    let metadata = Metadata::of(&output.batches[0]);
    let times: Vec<i64> = metadata.times.values().to_vec();
    assert_eq!(times, [1_999, 5_999, 9_999, 13_999, 17_999]);
    let mut ids: Vec<_> = (0..5).map(|row| metadata.id(row)).collect();
    ids.dedup();
    assert_eq!(ids.len(), 5, "each result has an identity of its own");
    // The third result takes its metadata from the earlier row, the fourth from the later one.
    assert_eq!(metadata.sequences.values()[2..4], [0, 1]);
}

#[test]
fn the_state_holds_a_group_at_most_twice_a_slide() {
    let bytes_after = |slide: &str, rows: u64| {
        let mut window = make(&format!("size: 1s\nslide: {slide}\naggregates: [{{function: count}}]"));
        let mut output = Output::default();
        let rows: Vec<Record> = (0..rows).map(|i| record(i, (i % 1000) as i64 * 1000, json!({}))).collect();
        window.apply(0, &records(&readings(), &rows), &mut output).unwrap();
        window.state_bytes()
    };
    let one = bytes_after("1s", 1);
    assert_eq!(bytes_after("1s", 10_000), one);
    assert_eq!(bytes_after("100ms", 10_000), 10 * one);
    // 1 s is no multiple of 300 ms: each slide has two panes.
    assert_eq!(bytes_after("300ms", 10_000), 7 * one);
}

#[test]
fn results_are_not_behind_the_watermark_that_comes_with_them() {
    let window = make("size: 10ms\nslide: 4ms\nallowed_lateness: 3ms\naggregates: [{function: count}]");
    // The window 0 to 10 ms, with event time 9,999 us, is open until the watermark is 13 ms.
    assert_eq!(window.output_watermark(12_999), 9_999);
    assert_eq!(window.output_watermark(i64::MAX), i64::MAX);
    let error = only(
        bind(&Window, &[readings()], "size: 2s\nslide: 3s\naggregates: [{function: count}]").err().unwrap(),
    );
    assert!(error.help.unwrap().contains("at most 2s"));
}

/// Two groups in 3,600 windows each.
fn an_hour() -> Box<dyn Stateful> {
    let mut window = make("size: 1h\nslide: 1s\ngroup_by: [colour]\naggregates: [{function: count}]");
    let rows = [record(0, 0, json!({"colour": "a"})), record(1, 0, json!({"colour": "b"}))];
    window.apply(0, &records(&readings(), &rows), &mut Output::default()).unwrap();
    window
}

#[test]
fn many_results_are_spread_over_epochs_and_keep_their_order() {
    let mut window = an_hour();
    let (mut starts, mut epochs, mut watermark) = (Vec::new(), 0, i64::MIN);
    loop {
        let mut output = Output::default();
        window.advance(i64::MAX, &mut output).unwrap();
        let rows = rows_of(&output.batches);
        assert!(rows.len() <= EPOCH_ROWS + 1, "{} rows in one epoch", rows.len());
        for batch in &output.batches {
            assert!(Metadata::of(batch).times.values().iter().all(|time| *time >= watermark));
        }
        starts.extend(rows.iter().map(|row| row["window_start"].as_i64().unwrap()));
        epochs += 1;
        watermark = window.output_watermark(i64::MAX);
        if !window.has_more() {
            break;
        }
        // Waiting results are part of the state, too.
        let mut again = an_hour();
        again.restore(&window.snapshot().unwrap()).unwrap();
        window = again;
    }
    assert_eq!((epochs, watermark), (7200usize.div_ceil(EPOCH_ROWS), i64::MAX));
    let expected: Vec<i64> = (-3599..=0).flat_map(|second| [second * 1000, second * 1000]).collect();
    assert_eq!(starts, expected);
    assert_eq!(window.state_bytes(), 0);
}

#[test]
fn a_late_row_does_not_get_into_closed_windows_that_wait() {
    let mut window = an_hour();
    let mut output = Output::default();
    // Closes the windows up to the one from -1 s, which hold two groups each.
    window.advance(3_599_000_000, &mut output).unwrap();
    assert!(window.has_more());
    let late = [record(2, 1_000, json!({"colour": "a"}))];
    window.apply(0, &records(&readings(), &late), &mut output).unwrap();
    assert!(!window.has_more(), "they are given before the row is taken");
    window.advance(i64::MAX, &mut output).unwrap();
    let rows = rows_of(&output.batches);
    assert_eq!(rows.len(), 7200);
    assert!(rows[..7198].iter().all(|row| row["count"] == 1));
    assert_eq!((&rows[7198]["count"], &rows[7199]["count"]), (&json!(2), &json!(1)));
}
