//! Tests of windows by session.
use super::super::window_rows::EPOCH_ROWS;
use super::tests::{ALL, make, readings, record, result, rows, rows_of};
use super::*;
use crate::api::{Output, Stateful};
use crate::record::Metadata;
use crate::relational::test::{bind, feed, run_epochs};
use crate::testing::{Record, records};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// Reference: keeps every row, and finds the sessions anew at every watermark; times in microseconds.
struct Naive {
    gap: i64,
    lateness: i64,
    watermark: i64,
    open: BTreeMap<Option<String>, Vec<Record>>,
    results: Vec<Json>,
    late: u64,
}

impl Naive {
    fn is_closed(&self, last: i64) -> bool {
        self.watermark == i64::MAX || self.watermark >= last + self.gap + self.lateness
    }

    fn apply(&mut self, row: &Record) {
        match self.is_closed(row.time) {
            true => self.late += 1,
            false => {
                let colour = row.payload["colour"].as_str().map(str::to_owned);
                self.open.entry(colour).or_default().push(row.clone());
            }
        }
    }

    fn advance(&mut self, watermark: i64) {
        self.watermark = watermark;
        let mut closed: BTreeMap<(i64, i64, Option<String>), Vec<Record>> = BTreeMap::new();
        for (colour, mut rows) in std::mem::take(&mut self.open) {
            rows.sort_by_key(|row| row.time);
            for session in rows.chunk_by(|a, b| b.time - a.time < self.gap) {
                let (start, last) = (session[0].time, session[session.len() - 1].time);
                match self.is_closed(last) {
                    true => drop(closed.insert((last, start, colour.clone()), session.to_vec())),
                    false => self.open.entry(colour.clone()).or_default().extend_from_slice(session),
                }
            }
        }
        for ((last, start, colour), rows) in closed {
            let rows: Vec<&Record> = rows.iter().collect();
            let end = (last + self.gap).div_euclid(1000);
            self.results.push(result(start.div_euclid(1000), end, colour, &rows));
        }
    }
}

/// Identities, times and origins of results.
fn metadata_of(output: &Output) -> Vec<([u8; 16], i64, u64, i64)> {
    let of = |batch| {
        let m = Metadata::of(batch);
        let row = |row: usize| (m.id(row), m.times.value(row), m.sequences.value(row), m.intended.value(row));
        (0..batch.num_rows()).map(row).collect::<Vec<_>>()
    };
    output.batches.iter().flat_map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn results_and_late_rows_are_those_of_finding_the_sessions_anew(
        rows in rows(), gap in 1i64..4, lateness in 0i64..2500,
        bound in 0i64..3000, hurry in 0i64..2000, random in any::<u64>(),
    ) {
        let yaml = format!("session: {gap}ms\nallowed_lateness: {lateness}us{ALL}");
        let operator = bind(&Window, &[readings()], &yaml).unwrap();
        let mut epochs = feed(&rows, bound, random).epochs;
        // Watermarks ahead of the rows make late ones.
        let mut highest = i64::MIN;
        for (_, watermark) in &mut epochs {
            highest = highest.max(watermark.saturating_add(hurry));
            *watermark = highest;
        }
        let mut naive = Naive {
            gap: gap * 1000, lateness, watermark: i64::MIN, open: BTreeMap::new(), results: Vec::new(), late: 0,
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
        let mut ids: Vec<_> = metadata_of(&found).into_iter().map(|(id, ..)| id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), count, "each session has an identity of its own");
    }

    #[test]
    fn sessions_do_not_depend_on_order_epochs_and_restarts(
        rows in rows(), bound in 0i64..3000, a in any::<u64>(), b in any::<u64>(),
    ) {
        let operator = bind(&Window, &[readings()], &format!("session: 1ms{ALL}")).unwrap();
        let [one, two] = [a, b].map(|random| {
            let output = run_epochs(&operator, &[readings()], &feed(&rows, bound, random).epochs, random);
            assert!(output.drops.is_empty() && output.dead_letters.is_empty());
            (rows_of(&output.batches), metadata_of(&output))
        });
        prop_assert_eq!(one, two);
    }
}

fn apply(window: &mut Box<dyn Stateful>, output: &mut Output, rows: &[(u64, i64)]) {
    let rows: Vec<Record> = rows.iter().map(|(n, time)| record(*n, *time, json!({"n": n}))).collect();
    window.apply(0, &records(&readings(), &rows), output).unwrap();
}

const COUNT: &str = "session: 10ms\naggregates: [{function: count}, {function: sum, column: n}]";

#[test]
fn a_row_between_two_sessions_makes_one() {
    let mut window = make(COUNT);
    let mut output = Output::default();
    apply(&mut window, &mut output, &[(1, 0), (2, 15_000)]);
    window.advance(9_999, &mut output).unwrap();
    apply(&mut window, &mut output, &[(4, 8_000)]);
    window.advance(24_999, &mut output).unwrap();
    assert!(output.batches.is_empty());
    window.advance(25_000, &mut output).unwrap();
    let row = json!({"window_start": 0, "window_end": 25, "count": 3, "sum_n": 7});
    assert_eq!(rows_of(&output.batches), [row]);
    assert_eq!(metadata_of(&output)[0].1, 24_999);
    assert_eq!(window.state_bytes(), 0);
}

#[test]
fn rows_exactly_a_gap_apart_are_in_two_sessions() {
    let mut window = make(COUNT);
    let mut output = Output::default();
    apply(&mut window, &mut output, &[(1, 0), (2, 10_000), (4, 19_999)]);
    window.advance(i64::MAX, &mut output).unwrap();
    let row = |start: i64, end: i64, count: i64, sum: i64| json!({"window_start": start, "window_end": end, "count": count, "sum_n": sum});
    assert_eq!(rows_of(&output.batches), [row(0, 10, 1, 1), row(10, 29, 2, 6)]);
}

/// The row is near an open session, and near one that has closed.
#[test]
fn a_row_that_is_too_late_joins_no_session() {
    let mut window = make(COUNT);
    let mut output = Output::default();
    apply(&mut window, &mut output, &[(1, 0)]);
    window.advance(10_000, &mut output).unwrap();
    apply(&mut window, &mut output, &[(2, 5_000), (4, 0)]);
    window.advance(15_000, &mut output).unwrap();
    let row = |start: i64, sum: i64| json!({"window_start": start, "window_end": start + 10, "count": 1, "sum_n": sum});
    assert_eq!(rows_of(&output.batches), [row(0, 1), row(5, 2)]);
    assert_eq!(output.drops, [("late".into(), 1)]);
}

#[test]
fn many_sessions_that_end_at_once_come_in_several_epochs() {
    let mut window = make(COUNT);
    let mut output = Output::default();
    let rows: Vec<(u64, i64)> = (0..40).map(|n| (n, n as i64 * 20_000)).collect();
    apply(&mut window, &mut output, &rows);
    window.advance(i64::MAX, &mut output).unwrap();
    let mut all = Vec::new();
    while window.has_more() {
        let mut epoch = Output::default();
        assert!(window.output_watermark(i64::MAX) < i64::MAX);
        window.advance(i64::MAX, &mut epoch).unwrap();
        let found = rows_of(&epoch.batches);
        assert!((1..=EPOCH_ROWS).contains(&found.len()));
        all.extend(found);
    }
    assert_eq!(rows_of(&output.batches).len() + all.len(), 40);
    assert_eq!(window.output_watermark(i64::MAX), i64::MAX);
}

#[test]
fn a_group_that_never_pauses_takes_no_more_memory() {
    let mut window = make(COUNT);
    let mut output = Output::default();
    let mut sizes = Vec::new();
    for n in 0..1000 {
        // Every row opens a session, and the next one connects it to the others.
        apply(&mut window, &mut output, &[(1, n * 16_000 + 8_000), (1, n * 16_000)]);
        window.advance(n * 16_000, &mut output).unwrap();
        sizes.push(window.state_bytes());
    }
    assert_eq!((output.batches.len(), sizes[10]), (0, sizes[999]));
}

#[test]
fn wrong_shapes() {
    for (yaml, message, help) in [
        ("aggregates: [{function: count}]", "window `op` has no `size`", "`session: 30s`"),
        (
            "size: 1s\nsession: 1s\naggregates: [{function: count}]",
            "either a `size` or ends by `session`",
            "keep",
        ),
        (
            "session: 2s\nslide: 1s\naggregates: [{function: count}]",
            "sessions do not slide",
            "leave out `slide`",
        ),
        (
            "session: 0s\naggregates: [{function: count}]",
            "ends after 0s is not possible",
            "whole milliseconds",
        ),
    ] {
        let error = bind(&Window, &[readings()], yaml).map(|_| ()).unwrap_err();
        let first = error.iter().next().unwrap();
        assert!(first.message.contains(message) && first.code == "E0606", "{error}");
        assert!(first.help.as_ref().unwrap().contains(help), "{error}");
    }
}
