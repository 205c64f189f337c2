use super::*;
use crate::api::Output;
use crate::record::{Metadata, batch_bytes, derive_id, source_id, text};
use crate::relational::join_side::CHUNK_BYTES;
use crate::relational::test::{Feed, bind, feed, run_epochs};
use crate::testing::{Record, only, records};
use arrow_array::RecordBatch;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use tidemill_spec::types::{Column, ColumnType};

fn left() -> StreamType {
    StreamType::new([
        Column::new("k", ColumnType::Text),
        Column::new("n", ColumnType::Int64),
        Column::new("picture", ColumnType::Image),
    ])
}

fn right() -> StreamType {
    StreamType::new([
        Column::new("k", ColumnType::Text),
        Column::new("n", ColumnType::Int64),
        Column::new("r", ColumnType::Float64),
    ])
}

fn record(source: u32, sequence: u64, time: i64, payload: Json) -> Record {
    Record { source, sequence, time, payload }
}

#[test]
fn bounds_are_exact_and_metadata_is_as_documented() {
    let bound = bind(&Join, &[left(), right()], "key: k\nwithin: 10us\nsame_names: keep_first").unwrap();
    assert_eq!(bound.output.to_string(), "{k: text, n: int64, picture: image, r: float64}");
    let Ok(Instance::Stateful(mut join)) = (bound.make)() else { panic!("stateful") };
    let mut output = Output::default();
    let l = records(&left(), &[record(0, 4, 100, json!({"k": "a", "n": 1, "picture": "JPEG"}))]);
    join.apply(0, &l, &mut output).unwrap();
    // A partner of time 110 may come as long as the watermark is 110.
    join.advance(110, &mut output).unwrap();
    assert!(join.state_bytes() > 0);
    let r = records(&right(), &[record(1, 2, 110, json!({"k": "a", "n": 2, "r": 0.5}))]);
    join.apply(1, &r, &mut output).unwrap();
    let pairs = &output.batches[0];
    let metadata = Metadata::of(pairs);
    assert_eq!((pairs.num_rows(), metadata.times.value(0), metadata.intended.value(0)), (1, 110, 1100));
    assert_eq!(metadata.id(0), pair_id(source_id(0, 4), source_id(1, 2)));
    assert_eq!(
        (metadata.sources.value(0), metadata.sequences.value(0), metadata.classes.value(0)),
        (0, 4, 1)
    );
    assert_eq!(text(pairs.column_by_name("k").unwrap()).unwrap().value(0), "a");
    let late =
        records(&left(), &[record(0, 5, 109, json!({"k": "a"})), record(0, 6, 121, json!({"k": "a"}))]);
    join.apply(0, &late, &mut output).unwrap();
    assert_eq!((output.batches.len(), output.drops.as_slice()), (1, &[("late".into(), 1)][..]));
    join.advance(i64::MAX, &mut output).unwrap();
    assert_eq!(output.drops, [("late".into(), 1), ("unmatched".into(), 1)]);
    assert_eq!(join.state_bytes(), 0);
}

#[test]
fn empty_keys_equal_nothing() {
    let bound = bind(&Join, &[left(), right()], "key: [k, n]\nwithin: 1s\nsame_names: keep_first").unwrap();
    let Ok(Instance::Stateful(mut join)) = (bound.make)() else { panic!("stateful") };
    let mut output = Output::default();
    join.apply(0, &records(&left(), &[record(0, 0, 0, json!({"k": "a"}))]), &mut output).unwrap();
    join.apply(1, &records(&right(), &[record(1, 0, 0, json!({"k": "a"}))]), &mut output).unwrap();
    assert!(output.batches.is_empty());
    assert_eq!(output.drops, [("unmatched".into(), 2)]);
    assert_eq!(join.state_bytes(), 0);
}

#[test]
fn wrong_options() {
    for (yaml, code, message) in [
        ("within: 1s", "E0606", "has no key"),
        ("key: k\nleft_key: k\nwithin: 1s", "E0606", "beside"),
        ("left_key: [k, n]\nright_key: k\nwithin: 1s", "E0606", "compares 2 columns with 1"),
        (
            "left_key: k\nright_key: n\nwithin: 1s",
            "E0601",
            "column `n` is int64, expected text, the type of `k`",
        ),
        (
            "left_key: n\nright_key: r\nwithin: 1s",
            "E0601",
            "column `r` is float64, expected text, int64 or bool",
        ),
        ("left_key: kk\nright_key: k\nwithin: 1s", "E0605", "no column `kk`"),
    ] {
        let error = only(bind(&Join, &[left(), right()], yaml).err().unwrap());
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(message), "{error}");
    }
    assert!(bind(&Join, &[left(), right()], "key: k").is_err(), "within is needed");
}

#[test]
fn many_pairs_come_in_several_batches() {
    let bound = bind(&Join, &[left(), right()], "key: k\nwithin: 1s\nsame_names: keep_first").unwrap();
    let Ok(Instance::Stateful(mut join)) = (bound.make)() else { panic!("stateful") };
    let rows = |source| (0..150).map(|i| record(source, i, i as i64, json!({"k": "a"}))).collect::<Vec<_>>();
    let mut output = Output::default();
    join.apply(0, &records(&left(), &rows(0)), &mut output).unwrap();
    join.apply(1, &records(&right(), &rows(1)), &mut output).unwrap();
    assert_eq!(output.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 150 * 150);
    assert!(output.batches.iter().all(|b| b.num_rows() <= 4096 && b.num_rows() > 0));
}

/// The byte size of its pictures bounds a batch of pairs, whichever side they come from and however unequal they are.
#[test]
fn pairs_with_large_pictures_come_in_several_batches() {
    let bound = bind(&Join, &[left(), right()], "key: k\nwithin: 1s\nsame_names: keep_first").unwrap();
    let pictures: Vec<Record> = (0..40)
        .map(|i| {
            let bytes = if i == 7 { 30_000 } else { 2000 };
            record(0, i, i as i64, json!({"k": "a", "picture": "x".repeat(bytes)}))
        })
        .collect();
    let others: Vec<Record> = (0..30).map(|i| record(1, i, i as i64, json!({"k": "a"}))).collect();
    for pictures_first in [true, false] {
        let Ok(Instance::Stateful(mut join)) = (bound.make)() else { panic!("stateful") };
        let mut output = Output::default();
        let mut sides = [(0, records(&left(), &pictures)), (1, records(&right(), &others))];
        if !pictures_first {
            sides.reverse();
        }
        for (port, rows) in sides {
            join.apply(port, &rows, &mut output).unwrap();
        }
        assert_eq!(output.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 40 * 30);
        let largest = output.batches.iter().map(batch_bytes).max().unwrap();
        assert!(largest < CHUNK_BYTES + 32_000, "{largest}");
        assert!(output.batches.len() < 100, "{}", output.batches.len());
    }
}

/// Whether the generated rows contain one record twice.
fn rows_repeat(rows: &[(usize, Record)]) -> bool {
    let records: std::collections::BTreeSet<_> = rows.iter().map(|(_, r)| (r.source, r.sequence)).collect();
    records.len() < rows.len()
}

/// The identity of a pair: (a, b) and (b, a) of the same two inputs are two results.
fn pair_id(left: [u8; 16], right: [u8; 16]) -> [u8; 16] {
    derive_id(operator_number("op"), &[left, right], u32::from(left > right))
}

/// A plainly correct join: ids of all pairs, with event times.
fn reference(rows: &[(usize, Record)], within: i64) -> BTreeMap<[u8; 16], i64> {
    let mut pairs = BTreeMap::new();
    for (_, l) in rows.iter().filter(|(port, _)| *port == 0) {
        for (_, r) in rows.iter().filter(|(port, _)| *port == 1) {
            if !l.payload["k"].is_null()
                && l.payload["k"] == r.payload["k"]
                && (l.time - r.time).abs() <= within
            {
                let id = pair_id(source_id(l.source, l.sequence), source_id(r.source, r.sequence));
                pairs.insert(id, l.time.max(r.time));
            }
        }
    }
    pairs
}

/// The rows of an epoch in the order of the sinks.
fn in_order(output: &Output) -> Option<RecordBatch> {
    let schema = output.batches.first()?.schema();
    let all = arrow_select::concat::concat_batches(&schema, &output.batches).unwrap();
    let metadata = Metadata::of(&all);
    let mut order: Vec<u32> = (0..all.num_rows() as u32).collect();
    order.sort_by_key(|row| (metadata.times.value(*row as usize), metadata.id(*row as usize)));
    let order = arrow_array::UInt32Array::from(order);
    Some(arrow_select::take::take_record_batch(&all, &order).unwrap())
}

/// Number of dropped rows, by reason.
fn counted(output: Output) -> BTreeMap<String, u64> {
    output.drops.iter().map(|(reason, count)| (reason.to_string(), *count)).collect()
}

fn rows() -> impl Strategy<Value = Vec<(usize, Record)>> {
    let key = prop::sample::select(vec![json!("a"), json!("b"), json!("c"), Json::Null]);
    prop::collection::vec((0usize..2, 0i64..60, key, any::<i64>()), 0..60).prop_map(|rows| {
        let numbered = rows.into_iter().enumerate();
        numbered
            .map(|(i, (port, time, key, n))| {
                (port, record(port as u32, i as u64, time, json!({"k": key, "n": n})))
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_pair_once_for_any_order_epochs_watermarks_and_restarts(
        rows in rows(), within in 0i64..25, bound in 0i64..30, random in any::<u64>(),
    ) {
        let bound_join = bind(&Join, &[left(), right()], &format!("key: k\nwithin: {within}us\nsame_names: keep_first")).unwrap();
        let Feed { epochs, .. } = feed(&rows, bound, random);
        let result = run_epochs(&bound_join, &[left(), right()], &epochs, random);
        let mut found = BTreeMap::new();
        for batch in &result.batches {
            let metadata = Metadata::of(batch);
            for row in 0..batch.num_rows() {
                prop_assert!(found.insert(metadata.id(row), metadata.times.value(row)).is_none(), "a pair twice");
            }
        }
        prop_assert_eq!(&found, &reference(&rows, within));
        // No row is lost silently: each is in a pair or counted.
        let paired = |port: usize, record: &Record| rows.iter().any(|(p, o)| *p != port
            && !o.payload["k"].is_null() && o.payload["k"] == record.payload["k"] && (o.time - record.time).abs() <= within);
        let alone = rows.iter().filter(|(port, record)| !paired(*port, record)).count() as u64;
        let unmatched = result.drops.iter().find(|(r, _)| *r == "unmatched").map_or(0, |(_, n)| *n);
        prop_assert_eq!(unmatched, alone);
        prop_assert!(result.drops.iter().all(|(reason, _)| *reason == "unmatched"));
    }

    #[test]
    fn an_epoch_gives_the_same_however_it_is_applied(
        rows in rows(), within in 0i64..25, bound in 0i64..30, random in any::<u64>(),
        turns in prop::collection::vec(any::<prop::sample::Index>(), 60),
    ) {
        let yaml = format!("key: k\nwithin: {within}us\nsame_names: keep_first");
        let bound_join = bind(&Join, &[left(), right()], &yaml).unwrap();
        let make = || match (bound_join.make)() {
            Ok(Instance::Stateful(join)) => join,
            _ => panic!("a join has state"),
        };
        let (mut whole, mut parts) = (make(), make());
        prop_assert!(whole.takes_rows_early());
        let streams = [left(), right()];
        for (mut rows, watermark) in feed(&rows, bound, random).epochs {
            let (mut of_whole, mut of_parts) = (Output::default(), Output::default());
            rows.sort_by_key(|(port, row)| (*port, row.time, source_id(row.source, row.sequence)));
            for (port, stream) in streams.iter().enumerate() {
                let rows: Vec<Record> =
                    rows.iter().filter(|(of, _)| *of == port).map(|(_, row)| row.clone()).collect();
                whole.apply(port, &records(stream, &rows), &mut of_whole).unwrap();
            }
            for turn in &turns[..rows.len()] {
                let (port, row) = rows.swap_remove(turn.index(rows.len()));
                parts.apply(port, &records(&streams[port], &[row]), &mut of_parts).unwrap();
            }
            whole.advance(watermark, &mut of_whole).unwrap();
            parts.advance(watermark, &mut of_parts).unwrap();
            prop_assert_eq!(in_order(&of_parts), in_order(&of_whole));
            prop_assert_eq!(counted(of_parts), counted(of_whole));
        }
    }

    #[test]
    fn the_same_stream_on_both_sides(rows in rows(), within in 0i64..25, random in any::<u64>()) {
        let both: Vec<(usize, Record)> =
            rows.iter().flat_map(|(_, r)| [(0, r.clone()), (1, r.clone())]).collect();
        let bound = bind(&Join, &[left(), left()], &format!("key: k\nwithin: {within}us\nsame_names: keep_first")).unwrap();
        let result = run_epochs(&bound, &[left(), left()], &feed(&both, 10, random).epochs, random);
        let expected: usize = both.iter().filter(|(p, _)| *p == 0).map(|(_, l)| both.iter().filter(|(p, r)| *p == 1
            && !l.payload["k"].is_null() && l.payload["k"] == r.payload["k"] && (l.time - r.time).abs() <= within).count()).sum();
        prop_assert_eq!(result.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), expected);
        let ids = result.batches.iter().flat_map(|b| (0..b.num_rows()).map(|row| Metadata::of(b).id(row)));
        let distinct: std::collections::BTreeSet<_> = ids.collect();
        prop_assert!(distinct.len() == expected || rows_repeat(&rows), "{} ids of {expected} pairs", distinct.len());
    }
}

#[test]
fn state_stays_small_on_a_long_stream() {
    let bound = bind(&Join, &[left(), right()], "key: k\nwithin: 10us\nsame_names: keep_first").unwrap();
    let Ok(Instance::Stateful(mut join)) = (bound.make)() else { panic!("stateful") };
    let mut largest = 0;
    for epoch in 0..500i64 {
        let mut output = Output::default();
        let rows: Vec<Record> =
            (0..8).map(|i| record(0, (epoch * 8 + i) as u64, epoch * 8 + i, json!({"k": "hot"}))).collect();
        join.apply(0, &records(&left(), &rows), &mut output).unwrap();
        join.advance(epoch * 8 + 8, &mut output).unwrap();
        largest = largest.max(join.state_bytes());
    }
    assert!(largest < 20_000, "{largest} bytes for about 18 rows");
}

#[test]
fn a_column_of_both_sides_is_refused_unless_it_is_the_key() {
    let errors = bind(&Join, &[left(), right()], "key: k\nwithin: 1s").err().unwrap();
    let codes: Vec<_> = errors.iter().map(|error| (error.code, error.message.contains("`k`"))).collect();
    assert!(!codes.is_empty() && codes.iter().all(|code| *code == ("E0612", false)), "{codes:?}");
    assert!(errors.iter().all(|error| error.help.as_ref().is_some_and(|help| help.contains("same_names"))));
}

#[test]
fn one_row_does_not_keep_the_batch_that_it_came_with() {
    let bound = bind(&Join, &[left(), right()], "key: k\nwithin: 1s\nsame_names: keep_first").unwrap();
    let Ok(Instance::Stateful(mut join)) = (bound.make)() else { panic!("stateful") };
    let mut output = Output::default();
    // One row of each thousand is far ahead.
    for epoch in 0..20 {
        let rows: Vec<Record> = (0..1000)
            .map(|i| {
                let time = if i == 500 { 1_000_000_000 + epoch } else { epoch };
                record(0, (epoch * 1000 + i) as u64, time, json!({"k": format!("key {epoch} {i}")}))
            })
            .collect();
        join.apply(0, &records(&left(), &rows), &mut output).unwrap();
    }
    let before = join.state_bytes();
    join.advance(10_000_000, &mut output).unwrap();
    assert!(
        join.state_bytes() * 100 < before,
        "{} of {before} bytes for 20 of 20000 rows",
        join.state_bytes()
    );
    let partners: Vec<Record> = (0..20)
        .map(|epoch| record(1, epoch, 1_000_000_000, json!({"k": format!("key {epoch} 500")})))
        .collect();
    join.apply(1, &records(&right(), &partners), &mut output).unwrap();
    assert_eq!(output.batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 20);
    join.advance(i64::MAX, &mut output).unwrap();
    assert_eq!(join.state_bytes(), 0);
}
