//! Compares windows with those cut by definition, over any division into epochs and restarts.
use super::*;
use crate::api::{BoundOperator, Output, Stateful};
use crate::record::{METADATA_COLUMNS, Metadata, int64, tensor_f32, text};
use crate::relational::test::{bind, feed, run_epochs};
use crate::testing::{Record, only, records};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;

/// Two rows of three values with each record.
fn stream() -> StreamType {
    StreamType::new([
        Column::new("name", ColumnType::Text),
        Column::new("mel", ColumnType::named("tensor<float32>[1, 2, 3]").unwrap()),
        Column::new("number", ColumnType::Int64),
    ])
}

/// Values of record `number`, which show their place.
fn values(number: u64) -> Vec<f32> {
    (0..6).map(|at| (number * 10 + at) as f32).collect()
}

fn record(number: u64, time: i64, name: &str) -> Record {
    let payload = json!({"name": name, "mel": values(number), "number": number});
    Record { source: 0, sequence: number, time, payload }
}

fn bound(yaml: &str) -> BoundOperator {
    bind(&Stack, &[stream()], yaml).unwrap()
}

/// Name, number, time and values of each window.
fn windows(output: &Output) -> Vec<(String, i64, i64, Vec<f32>)> {
    let mut all = Vec::new();
    for batch in &output.batches {
        let (values, length) = tensor_f32(batch.column(batch.num_columns() - 1)).unwrap();
        for row in 0..batch.num_rows() {
            all.push((
                text(batch.column_by_name("name").unwrap()).unwrap().value(row).to_owned(),
                int64(batch.column_by_name("number").unwrap()).unwrap().value(row),
                Metadata::of(batch).times.value(row),
                values.values()[row * length..(row + 1) * length].to_vec(),
            ));
        }
    }
    all
}

/// The windows of records of one key by definition: number of the record that completes it, values.
fn expected(rows: &[Record], size: usize, every: usize, before: usize, reset: i64) -> Vec<(i64, Vec<f32>)> {
    let mut sequences: Vec<Vec<&Record>> = Vec::new();
    for row in rows {
        match sequences.last_mut() {
            Some(sequence) if row.time - sequence.last().unwrap().time <= reset => sequence.push(row),
            _ => sequences.push(vec![row]),
        }
    }
    let mut found = Vec::new();
    for sequence in sequences {
        let mut all: Vec<(i64, Vec<f32>)> = vec![(-1, vec![-10.0; 3]); before];
        for record in sequence {
            let values = values(record.sequence);
            all.extend(values.chunks(3).map(|row| (record.sequence as i64, row.to_vec())));
        }
        for window in all.windows(size).step_by(every) {
            found.push((window[size - 1].0, window.iter().flat_map(|(_, row)| row.clone()).collect()));
        }
    }
    found
}

proptest! {
    /// `run_epochs` also restarts from snapshots and divides the state.
    #[test]
    fn windows_run_across_records(
        steps in prop::collection::vec((0usize..3, 1i64..40), 1..60), size in 1usize..7, every in 1usize..9,
        before in 0usize..6, random: u64,
    ) {
        let before = before.min(size - 1);
        let mut time = 0;
        let mut rows = Vec::new();
        for (number, (key, step)) in steps.into_iter().enumerate() {
            time += step;
            rows.push(record(number as u64, time, ["a", "b", "c"][key]));
        }
        let yaml = format!(
            "{{column: mel, shape: [{size}, 3, 1], every: {every}, before: {before}, fill: -10, key: name, reset_after: 60us}}"
        );
        let ports: Vec<(usize, Record)> = rows.iter().map(|row| (0, row.clone())).collect();
        let output = run_epochs(&bound(&yaml), &[stream()], &feed(&ports, 0, random).epochs, random);
        prop_assert!(output.dead_letters.is_empty() && output.drops.is_empty() && output.notes.is_empty());
        let mut found: BTreeMap<String, Vec<(i64, i64, Vec<f32>)>> = BTreeMap::new();
        for (name, number, time, values) in windows(&output) {
            found.entry(name).or_default().push((number, time, values));
        }
        for name in ["a", "b", "c"] {
            let of_name: Vec<Record> = rows.iter().filter(|row| row.payload["name"] == name).cloned().collect();
            let found = found.remove(name).unwrap_or_default();
            let without_times: Vec<(i64, Vec<f32>)> =
                found.iter().map(|(number, _, values)| (*number, values.clone())).collect();
            prop_assert_eq!(without_times, expected(&of_name, size, every, before, 60));
            prop_assert!(found.windows(2).all(|pair| pair[0].1 < pair[1].1), "in the order of their times");
            for (number, time, _) in &found {
                prop_assert!(*time >= rows[*number as usize].time);
            }
        }
    }
}

fn running(yaml: &str) -> Box<dyn Stateful> {
    match (bound(yaml).make)() {
        Ok(Instance::Stateful(instance)) => instance,
        _ => panic!("a stateful operator"),
    }
}

fn apply(stack: &mut dyn Stateful, rows: &[Record]) -> Output {
    let mut output = Output::default();
    stack.apply(0, &records(&stream(), rows), &mut output).unwrap();
    output
}

#[test]
fn a_lost_record_ends_the_sequence() {
    let mut stack = running("{column: mel, shape: [4, 3], every: 2, key: name, reset_when: number % 7 == 0}");
    assert!(windows(&apply(&mut *stack, &[record(0, 10, "a")])).is_empty());
    assert_eq!(windows(&apply(&mut *stack, &[record(1, 20, "a")])).len(), 1);
    // Without a tensor.
    let mut empty = record(2, 30, "a");
    empty.payload = json!({"name": "a", "number": 2});
    let output = apply(&mut *stack, &[empty, record(3, 40, "a")]);
    assert_eq!(output.dead_letters[0].reason, "missing_value");
    assert!(windows(&output).is_empty());
    let found = windows(&apply(&mut *stack, &[record(4, 50, "a")]));
    assert_eq!(found[0].3, [values(3), values(4)].concat());
    // Without the value that the condition needs.
    let mut unknown = record(5, 60, "a");
    unknown.payload = json!({"name": "a", "mel": values(5)});
    let output = apply(&mut *stack, &[unknown, record(6, 70, "a")]);
    assert_eq!(output.dead_letters[0].reason, "expression_failed");
    assert!(windows(&output).is_empty());
    // By the condition.
    assert!(windows(&apply(&mut *stack, &[record(7, 80, "a")])).is_empty());
    assert_eq!(windows(&apply(&mut *stack, &[record(8, 90, "a")])).len(), 1);
    // Behind the others.
    assert_eq!(apply(&mut *stack, &[record(9, 85, "a")]).drops, [("late".into(), 1)]);
}

#[test]
fn windows_of_one_record_stay_in_order_and_have_the_names_of_the_options() {
    let bound = bound("{column: mel, shape: [2, 3], every: 1, before: 1, as: frames}");
    assert_eq!(
        bound.output.to_string(),
        "{name: text, number: int64, frames: tensor<float32>[2, 3]}",
        "the tensor is replaced"
    );
    assert_eq!(bound.spread, Spread::One);
    let mut stack = running("{column: mel, shape: [2, 3], every: 1, before: 1}");
    let found = windows(&apply(&mut *stack, &[record(1, 5, "a"), record(2, 5, "b")]));
    let times: Vec<i64> = found.iter().map(|(_, _, time, _)| *time).collect();
    assert_eq!(times, [5, 6, 7, 8]);
    assert_eq!(found[0].3, [&[0.0; 3], &values(1)[..3]].concat());
    assert_eq!(found[2].3, [&values(1)[3..], &values(2)[..3]].concat());
}

#[test]
fn keys_are_forgotten_when_their_sequence_has_ended() {
    let mut stack = running("{column: mel, shape: [9, 3], key: name, reset_after: 1ms}");
    apply(&mut *stack, &[record(0, 0, "a"), record(1, 600, "b")]);
    let both = stack.state_bytes();
    stack.advance(1200, &mut Output::default()).unwrap();
    assert!(stack.state_bytes() < both && stack.state_bytes() > 0);
    stack.advance(i64::MAX, &mut Output::default()).unwrap();
    assert_eq!(stack.state_bytes(), 0);
}

/// All elements but float32, of which the others are tested.
#[test]
fn rows_have_any_element() {
    for (element, fill, one) in [
        ("float16", "-0.5", json!([1.5, 2.5])),
        ("float64", "0.25", json!([1.5, 2.5])),
        ("int64", "-3", json!([1, 2])),
        ("int32", "-3", json!([1, 2])),
        ("int8", "-3", json!([1, 2])),
        ("uint8", "3", json!([1, 2])),
        ("bool", "", json!([true, false])),
        ("text", "", json!(["a", "b"])),
    ] {
        let tensor = ColumnType::named(&format!("tensor<{element}>[2]")).unwrap();
        let stream = StreamType::new([Column::new("of", tensor)]);
        let before = match fill {
            "" => String::new(),
            fill => format!(", before: 1, fill: {fill}"),
        };
        let yaml = format!("{{column: of, shape: [2, 2], every: 1{before}}}");
        let bound = bind(&Stack, std::slice::from_ref(&stream), &yaml).unwrap();
        let row = |number: u64| Record {
            source: 0,
            sequence: number,
            time: number as i64,
            payload: json!({"of": one}),
        };
        let epochs = [(vec![(0, row(0)), (0, row(1))], 1), (vec![(0, row(2))], i64::MAX)];
        let output = run_epochs(&bound, &[stream], &epochs, 3);
        let count: usize = output.batches.iter().map(|batch| batch.num_rows()).sum();
        assert_eq!(count, if fill.is_empty() { 2 } else { 3 }, "{element}");
        assert_eq!(output.batches[0].num_columns(), METADATA_COLUMNS + 1);
    }
}

#[test]
fn wrong_options_are_told_with_what_to_write() {
    let error = |yaml: &str| only(bind(&Stack, &[stream()], yaml).err().unwrap());
    let width = error("{column: mel, shape: [76, 4]}");
    assert_eq!((width.code, width.column()), ("E0606", Some(22)));
    assert!(width.message.contains("6 values, which are no whole number of rows of 4"), "{width}");
    assert!(width.help.unwrap().contains("tensor<float32>[1, 2, 3]"));
    assert!(error("{column: mel, shape: []}").help.unwrap().contains("`[76, 32]`"));
    assert!(error("{column: mel, shape: [76, 0]}").message.contains("without values"));
    assert!(error("{column: mel, shape: [4000000000, 3]}").message.contains("at most"));
    assert!(error("{column: mel, shape: [76, 3], every: 0}").message.contains("the same row"));
    assert!(error("{column: mel, shape: [4, 3], before: 4}").message.contains("fill windows of 4"));
    assert_eq!(error("{column: number, shape: [4, 3]}").code, "E0601");
    assert_eq!(error("{column: mil, shape: [4, 3]}").code, "E0605");
    assert_eq!(error("{column: mel, shape: [4, 3], key: mel}").code, "E0601");
    assert_eq!(error("{column: mel, shape: [4, 3], reset_when: number + 1}").code, "E0607");
    assert!(error("{column: mel, shape: [4, 3], as: number}").message.contains("two output columns"));
    let texts = StreamType::new([Column::new("t", ColumnType::named("tensor<text>[2]").unwrap())]);
    let error = only(bind(&Stack, &[texts], "{column: t, shape: [2, 2], before: 1}").err().unwrap());
    assert!(error.help.unwrap().contains("leave `before`"));
    let whole = StreamType::new([Column::new("n", ColumnType::named("tensor<int8>[2]").unwrap())]);
    let error =
        only(bind(&Stack, &[whole], "{column: n, shape: [2, 2], before: 1, fill: 300}").err().unwrap());
    assert!(error.message.contains("300: its values are int8"), "{error}");
}

#[test]
fn keys_may_be_on_several_stages() {
    assert_eq!(bound("{column: mel, shape: [4, 3], key: name}").spread, Spread::by_group(["name"]));
}
