//! Compares counts of different values with those computed from all rows together.
use super::*;
use crate::api::{Output, Stateful};
use crate::record::text;
use crate::relational::test::bind;
use crate::testing::{Record, only, records};
use arrow_array::{Int8Array, RecordBatch};
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_random::Random;

const OPTIONS: &str = "{of: vehicle, size: 10ms, slide: 4ms, group_by: [road], as: vehicles, keep: 1min}";

fn stream() -> StreamType {
    StreamType::new([
        Column::new("road", ColumnType::Text),
        Column::new("vehicle", ColumnType::Text),
        Column::new("start", ColumnType::Int64),
        Column::new("end", ColumnType::Int64),
    ])
    .with_revisions(true)
}

/// Road, vehicle, start, end.
type Seen = (u8, u8, i64, i64);

fn rows(first: u64, seen: &[(Seen, i8)]) -> RecordBatch {
    let row = |(at, ((road, vehicle, start, end), _)): (usize, &(Seen, i8))| Record {
        source: 0,
        sequence: first + at as u64,
        time: *end * 1000,
        payload: json!({"road": format!("r{road}"), "vehicle": format!("v{vehicle}"), "start": start, "end": end}),
    };
    let all: Vec<Record> = seen.iter().enumerate().map(row).collect();
    let batch = records(&stream(), &all);
    let mut columns = batch.columns().to_vec();
    columns[crate::record::CHANGE] =
        Arc::new(Int8Array::from_iter_values(seen.iter().map(|(_, change)| *change)));
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

fn make(yaml: &str) -> Box<dyn Stateful> {
    let bound = bind(&Distinct, &[stream()], yaml).unwrap();
    match (bound.make)() {
        Ok(Instance::Stateful(instance)) => instance,
        _ => panic!("a stateful operator"),
    }
}

/// Window, road and count of each row with its change.
fn told(output: &Output) -> Vec<((i64, String, i64), i8)> {
    let mut all = Vec::new();
    for batch in &output.batches {
        let numbers = |name: &str| crate::record::int64(batch.column_by_name(name).unwrap()).unwrap();
        let roads = text(batch.column_by_name("road").unwrap()).unwrap();
        let changes = crate::record::Metadata::of(batch).changes;
        for row in 0..batch.num_rows() {
            let (start, end) = (numbers("window_start").value(row), numbers("window_end").value(row));
            assert_eq!(end - start, 10);
            let count = numbers("vehicles").value(row);
            all.push(((start, roads.value(row).to_owned(), count), changes.value(row)));
        }
    }
    all
}

fn standing(output: &Output) -> BTreeSet<(i64, String, i64)> {
    let mut counts: BTreeMap<(i64, String, i64), i64> = BTreeMap::new();
    for (row, change) in told(output) {
        let count = counts.entry(row).or_default();
        *count += i64::from(change);
        assert!((0..=1).contains(count), "a row is taken back that does not stand");
    }
    counts.into_iter().filter(|(_, count)| *count == 1).map(|(row, _)| row).collect()
}

/// Counts by definition, of the rows that stay.
fn expected(seen: &[Seen]) -> BTreeSet<(i64, String, i64)> {
    let mut windows: BTreeMap<(i64, String), BTreeSet<u8>> = BTreeMap::new();
    for (road, vehicle, from, to) in seen {
        for start in (-100..200).filter(|start: &i64| start.rem_euclid(4) == 0) {
            if start <= *to && *from < start + 10 {
                windows.entry((start, format!("r{road}"))).or_default().insert(*vehicle);
            }
        }
    }
    windows.into_iter().map(|((start, road), of)| (start, road, of.len() as i64)).collect()
}

#[test]
fn a_vehicle_counts_once_and_corrections_follow() {
    let mut running = make(OPTIONS);
    let mut output = Output::default();
    let broken = [((0, 1, 1, 2), 1), ((0, 2, 5, 6), 1), ((0, 1, 3, 3), 1)];
    running.apply(0, &rows(0, &broken), &mut output).unwrap();
    running.advance(9_999, &mut output).unwrap();
    let of_window = |output: &Output, start| -> Vec<(i64, i8)> {
        told(output)
            .into_iter()
            .filter(|((at, ..), _)| *at == start)
            .map(|((.., count), change)| (count, change))
            .collect()
    };
    assert!(of_window(&output, 0).is_empty(), "the window is not over");
    running.advance(10_000, &mut output).unwrap();
    assert_eq!(of_window(&output, 0), [(2, 1)]);
    // Both are of one vehicle after all.
    let mut output = Output::default();
    running.apply(0, &rows(3, &[((0, 2, 5, 6), -1), ((0, 1, 5, 6), 1)]), &mut output).unwrap();
    running.advance(11_000, &mut output).unwrap();
    assert_eq!(of_window(&output, 0), [(2, -1), (1, 1)]);
    let times = crate::record::Metadata::of(&output.batches[0]).times;
    assert!(times.iter().flatten().all(|time| time >= 10_000), "{times:?}");
    // All rows are retracted.
    let mut output = Output::default();
    let gone = [((0, 1, 1, 2), -1), ((0, 1, 5, 6), -1), ((0, 1, 3, 3), -1)];
    running.apply(0, &rows(5, &gone), &mut output).unwrap();
    running.advance(12_000, &mut output).unwrap();
    assert_eq!(of_window(&output, 0), [(1, -1)]);
}

#[test]
fn what_cannot_be_meant_and_what_is_late_is_told() {
    let mut running = make("{of: vehicle, size: 10ms, group_by: [road], as: vehicles, keep: 5ms}");
    let mut output = Output::default();
    let wrong = [((0, 1, 5, 4), 1), ((0, 1, 0, i64::MAX / 1000), 1), ((0, 1, i64::MIN, 4), 1)];
    let batch =
        rows(0, &wrong.map(|((road, vehicle, start, end), change)| ((road, vehicle, start, end), change)));
    running.apply(0, &batch, &mut output).unwrap();
    let reasons: Vec<&str> = output.dead_letters.iter().map(|letter| letter.reason.as_ref()).collect();
    assert_eq!(reasons, ["bad_time"; 3]);
    running.advance(15_000, &mut output).unwrap();
    running.apply(0, &rows(3, &[((0, 1, 2, 9), 1), ((0, 1, 2, 12), 1)]), &mut output).unwrap();
    running.advance(i64::MAX, &mut output).unwrap();
    assert_eq!(told(&output), [((10, "r0".to_owned(), 1), 1)]);
    assert_eq!(output.drops.iter().map(|(_, rows)| rows).sum::<u64>(), 1, "{:?}", output.drops);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_stays_is_what_all_rows_say_together(
        seen in prop::collection::vec((0u8..2, 0u8..4, -20i64..60, 0i64..25, any::<bool>()), 1..30), seed: u64,
    ) {
        let mut random = Random::of_seed(seed);
        let mut changes: Vec<(Seen, i8)> = Vec::new();
        let mut stays = Vec::new();
        for (road, vehicle, start, length, goes) in seen {
            let row = (road, vehicle, start, start + length);
            changes.insert(random.below(changes.len() + 1), (row, 1));
            if goes { changes.push((row, -1)); } else { stays.push(row); }
        }
        let mut running = make(OPTIONS);
        let (mut output, mut watermark, mut number) = (Output::default(), -30_000i64, 0);
        let mut rest = &changes[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(1 + random.below(rest.len()));
            running.apply(0, &rows(number, now), &mut output).unwrap();
            (rest, number) = (later, number + now.len() as u64);
            watermark += random.below(40_000) as i64;
            running.advance(watermark, &mut output).unwrap();
            if random.below(2) == 0 {
                let snapshot = running.snapshot().unwrap();
                running = make(OPTIONS);
                running.restore(&snapshot).unwrap();
                prop_assert_eq!(running.snapshot().unwrap(), snapshot);
            }
        }
        running.advance(i64::MAX, &mut output).unwrap();
        while running.has_more() {
            running.advance(i64::MAX, &mut output).unwrap();
        }
        prop_assert_eq!(standing(&output), expected(&stays));
        prop_assert_eq!(running.state_bytes(), 0);
        let ids: Vec<_> = output.batches.iter().flat_map(|batch| {
            let metadata = crate::record::Metadata::of(batch);
            (0..batch.num_rows()).map(|row| metadata.id(row)).collect::<Vec<_>>()
        }).collect();
        prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "each row has an identity of its own");
    }
}

/// With the most windows that may overlap, a momentary row is in all of them, and a longer one in some more.
#[test]
fn rows_count_however_many_windows_overlap() {
    for (size, slide, length, windows) in [
        (3600, 1, 0, 3600),
        (3600, 1, 3600, 7200),
        (7200, 2, 7, 3604),
        (10, 10, 36_000, 3601),
        (10, 4, 14_400, 3603),
    ] {
        let yaml =
            format!("{{of: vehicle, size: {size}ms, slide: {slide}ms, group_by: [road], as: vehicles}}");
        let mut running = make(&yaml);
        let mut output = Output::default();
        let seen = [((0, 1, 1_000_001, 1_000_001 + length), 1)];
        running.apply(0, &rows(0, &seen), &mut output).unwrap();
        assert!(output.dead_letters.is_empty(), "{yaml}: {:?}", output.dead_letters);
        running.advance(i64::MAX, &mut output).unwrap();
        while running.has_more() {
            running.advance(i64::MAX, &mut output).unwrap();
        }
        assert_eq!(output.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), windows, "{yaml}");
        let too_long = [((0, 1, 0, MOST_WINDOWS * slide + 1), 1)];
        running.apply(0, &rows(1, &too_long), &mut output).unwrap();
        let letter = &output.dead_letters[0];
        assert!(letter.reason == "bad_time" && letter.detail.contains("3600 times the slide"), "{letter:?}");
    }
}

#[test]
fn slips_stand_at_their_place() {
    for (yaml, code, message) in [
        ("{of: car, size: 10ms}", "E0605", "no column `car`"),
        ("{of: vehicle, size: 0s}", "E0606", "not possible"),
        ("{of: vehicle, size: 1s, slide: 2s}", "E0606", "in none"),
        ("{of: vehicle, size: 1h, slide: 1ms}", "E0606", "too many"),
        ("{of: vehicle, size: 3601ms, slide: 1ms}", "E0606", "too many"),
        ("{of: vehicle, size: 7201ms, slide: 2ms}", "E0606", "too many"),
        ("{of: vehicle, size: 1s, start: road}", "E0601", "expected int64"),
        ("{of: vehicle, size: 1s, group_by: [road], as: road}", "E0606", "two output columns `road`"),
    ] {
        let error = only(bind(&Distinct, &[stream()], yaml).err().unwrap());
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(message), "{error}");
    }
    let bound = bind(&Distinct, &[stream()], "{of: vehicle, size: 1s}").unwrap();
    let text = bound.output.to_string();
    assert!(text.contains("distinct_vehicle: int64") && bound.output.revised, "{text}");
    assert_eq!(bound.spread, Spread::One);
}
