use super::*;
use crate::api::{Output, Stateful};
use crate::record::{Metadata, float64, int64};
use crate::relational::test::{Feed, bind, feed, run_epochs};
use crate::testing::{Record, only, records};
use arrow_array::{Array, RecordBatch};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

pub(super) fn readings() -> StreamType {
    StreamType::new([
        Column::new("colour", ColumnType::Text),
        Column::new("n", ColumnType::Int64),
        Column::new("v", ColumnType::Float64),
    ])
}

/// Every kind of aggregate.
pub(super) const ALL: &str = "\ngroup_by: [colour]\naggregates: [{function: count, as: rows}, {function: count, column: v}, \
    {function: sum, column: n}, {function: sum, column: v}, {function: mean, column: n}, {function: mean, column: v}, \
    {function: min, column: n}, {function: max, column: v}]";

pub(super) fn record(sequence: u64, time: i64, payload: Json) -> Record {
    Record { source: 0, sequence, time, payload }
}

pub(super) fn make(yaml: &str) -> Box<dyn Stateful> {
    let bound = bind(&Window, &[readings()], yaml).unwrap();
    let Ok(Instance::Stateful(window)) = (bound.make)() else { panic!("stateful") };
    window
}

/// Results as JSON rows, in the order of emission.
pub(super) fn rows_of(batches: &[RecordBatch]) -> Vec<Json> {
    let mut all = Vec::new();
    for batch in batches {
        let schema = batch.schema();
        for row in 0..batch.num_rows() {
            let mut object = serde_json::Map::new();
            for (field, column) in schema.fields().iter().zip(batch.columns()).skip(7) {
                let value = if column.is_null(row) {
                    Json::Null
                } else if let Some(column) = int64(column) {
                    json!(column.value(row))
                } else if let Some(column) = float64(column) {
                    json!(column.value(row))
                } else {
                    json!(crate::record::text(column).unwrap().value(row))
                };
                object.insert(field.name().clone(), value);
            }
            all.push(Json::Object(object));
        }
    }
    all
}

#[test]
fn closes_on_the_watermark_only_and_takes_late_rows_within_the_lateness() {
    let mut window = make("size: 1ms\naggregates: [{function: count}]\nallowed_lateness: 500us");
    let mut output = Output::default();
    let apply = |window: &mut Box<dyn Stateful>, output: &mut Output, time| {
        window.apply(0, &records(&readings(), &[record(time as u64, time, json!({}))]), output).unwrap();
    };
    apply(&mut window, &mut output, 0);
    apply(&mut window, &mut output, 999);
    apply(&mut window, &mut output, 1000);
    window.advance(1499, &mut output).unwrap();
    assert!(output.batches.is_empty());
    apply(&mut window, &mut output, 998); // later than the watermark, within the lateness
    window.advance(1500, &mut output).unwrap();
    assert_eq!(rows_of(&output.batches), [json!({"window_start": 0, "window_end": 1, "count": 3})]);
    let metadata = Metadata::of(&output.batches[0]);
    assert_eq!(
        (metadata.times.value(0), metadata.intended.value(0), metadata.sequences.value(0)),
        (999, 9990, 0)
    );
    apply(&mut window, &mut output, 997);
    assert_eq!(output.drops, [("late".into(), 1)]);
    window.advance(i64::MAX, &mut output).unwrap();
    assert_eq!(output.batches.len(), 2);
    assert_eq!(window.state_bytes(), 0);
}

#[test]
fn windows_before_1970_and_at_the_ends_of_time() {
    let mut window = make("size: 1ms\naggregates: [{function: count}]");
    let mut output = Output::default();
    let rows = [record(0, -1, json!({})), record(1, i64::MAX, json!({})), record(2, i64::MIN, json!({}))];
    window.apply(0, &records(&readings(), &rows), &mut output).unwrap();
    window.advance(i64::MAX, &mut output).unwrap();
    assert_eq!(rows_of(&output.batches), [json!({"window_start": -1, "window_end": 0, "count": 1})]);
    assert_eq!(output.dead_letters.iter().map(|d| &*d.reason).collect::<Vec<_>>(), ["bad_time", "bad_time"]);
}

#[test]
fn a_sum_that_does_not_fit_is_a_dead_letter() {
    let mut window = make("size: 1ms\ngroup_by: [colour]\naggregates: [{function: sum, column: n}]");
    let mut output = Output::default();
    let rows = [
        record(0, 0, json!({"colour": "red", "n": i64::MAX})),
        record(1, 1, json!({"colour": "red", "n": 1})),
        record(2, 2, json!({"colour": "blue", "n": 1})),
    ];
    window.apply(0, &records(&readings(), &rows), &mut output).unwrap();
    window.advance(1000, &mut output).unwrap();
    assert_eq!(
        rows_of(&output.batches),
        [json!({"window_start": 0, "window_end": 1, "colour": "blue", "sum_n": 1})]
    );
    assert_eq!((&*output.dead_letters[0].reason, output.dead_letters[0].time), ("sum_overflow", Some(999)));
    let values = serde_json::Value::Object(output.dead_letters[0].values.clone());
    assert_eq!(values, json!({"window_start": 0, "window_end": 1, "colour": "red"}));
}

#[test]
fn wrong_options() {
    for (yaml, code, message) in [
        ("size: 1ms\naggregates: []", "E0606", "computes nothing"),
        ("size: 10us\naggregates: [{function: count}]", "E0606", "not possible"),
        ("size: 1s\nslide: 0s\naggregates: [{function: count}]", "E0606", "a slide of 0s is not possible"),
        ("size: 1s\nslide: 2s\naggregates: [{function: count}]", "E0606", "would be in none"),
        (
            "size: 1h\nslide: 999ms\naggregates: [{function: count}]",
            "E0606",
            "each row would be in 3604 of them",
        ),
        ("size: 1s\naggregates: [{function: sum}]", "E0606", "needs a column"),
        (
            "size: 1s\naggregates: [{function: sum, column: colour}]",
            "E0601",
            "column `colour` is text, expected int64 or float64",
        ),
        (
            "size: 1s\ngroup_by: [v]\naggregates: [{function: count}]",
            "E0601",
            "column `v` is float64, expected text, int64 or bool",
        ),
        (
            "size: 1s\naggregates: [{function: count}, {function: count}]",
            "E0606",
            "two output columns `count`",
        ),
        ("size: 1s\naggregates: [{function: max, column: w}]", "E0605", "no column `w`"),
    ] {
        let error = only(bind(&Window, &[readings()], yaml).err().unwrap());
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(message), "{error}");
        assert!(error.help.is_some(), "{error}");
    }
}

/// A plainly correct window operator.
fn reference(rows: &[(usize, Record)]) -> Vec<Json> {
    let mut groups: BTreeMap<(i64, Option<String>), Vec<&Record>> = BTreeMap::new();
    for (_, row) in rows {
        let colour = row.payload["colour"].as_str().map(str::to_owned);
        groups.entry((row.time.div_euclid(1000), colour)).or_default().push(row);
    }
    groups.into_iter().map(|((start, colour), rows)| result(start, start + 1, colour, &rows)).collect()
}

/// The result of a window (milliseconds) and group with these rows.
pub(super) fn result(start: i64, end: i64, colour: Option<String>, rows: &[&Record]) -> Json {
    let ints: Vec<i64> = rows.iter().filter_map(|r| r.payload["n"].as_i64()).collect();
    let floats: Vec<f64> = rows.iter().filter_map(|r| r.payload["v"].as_f64()).collect();
    // The values are multiples of 2^-20 below 2^20, so plain arithmetic on them is exact.
    let (int_sum, float_sum) = (ints.iter().sum::<i64>(), floats.iter().sum::<f64>());
    let or_null = |empty: bool, value: Json| if empty { Json::Null } else { value };
    json!({
        "window_start": start, "window_end": end, "colour": colour,
        "rows": rows.len(), "count_v": floats.len(),
        "sum_n": or_null(ints.is_empty(), json!(int_sum)),
        "sum_v": or_null(floats.is_empty(), json!(float_sum)),
        "mean_n": or_null(ints.is_empty(), json!(int_sum as f64 / ints.len() as f64)),
        "mean_v": or_null(floats.is_empty(), json!(float_sum / floats.len() as f64)),
        "min_n": ints.iter().min(),
        "max_v": floats.iter().copied().reduce(f64::max),
    })
}

pub(super) fn rows() -> impl Strategy<Value = Vec<(usize, Record)>> {
    let colour = prop::sample::select(vec![json!("red"), json!("blue"), Json::Null]);
    let n = prop::option::of(-1000i64..1000);
    let v = prop::option::of((-(1i64 << 30)..1 << 30).prop_map(|v| v as f64 / f64::from(1 << 20)));
    prop::collection::vec((-3000i64..6000, colour, n, v), 0..80).prop_map(|rows| {
        let numbered = rows.into_iter().enumerate();
        numbered
            .map(|(i, (time, colour, n, v))| {
                (0, record(i as u64, time, json!({"colour": colour, "n": n, "v": v})))
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn results_are_right_for_any_order_epochs_watermarks_and_restarts(
        rows in rows(), bound in 0i64..3000, random in any::<u64>(),
    ) {
        let operator = bind(&Window, &[readings()], &format!("size: 1ms{ALL}")).unwrap();
        let Feed { epochs, .. } = feed(&rows, bound, random);
        let result = run_epochs(&operator, &[readings()], &epochs, random);
        prop_assert_eq!(rows_of(&result.batches), reference(&rows));
        prop_assert!(result.drops.is_empty() && result.dead_letters.is_empty());
    }

    #[test]
    fn any_floats_give_the_same_bits_and_ids_in_any_order(
        values in prop::collection::vec((0i64..2000, -1e300f64..1e300), 1..40), a in any::<u64>(), b in any::<u64>(),
    ) {
        let rows: Vec<(usize, Record)> = values.iter().enumerate()
            .map(|(i, (time, v))| (0, record(i as u64, *time, json!({"colour": "red", "v": v})))).collect();
        let operator = bind(&Window, &[readings()], &format!("size: 1ms{ALL}")).unwrap();
        let [one, two] = [a, b].map(|random| {
            let output = run_epochs(&operator, &[readings()], &feed(&rows, 1500, random).epochs, random);
            let metadata: Vec<_> = output.batches.iter().flat_map(|batch| {
                let m = Metadata::of(batch);
                (0..batch.num_rows()).map(|r| (m.id(r), m.times.value(r), m.sequences.value(r), m.intended.value(r)))
                    .collect::<Vec<_>>()
            }).collect();
            (rows_of(&output.batches), metadata)
        });
        prop_assert_eq!(one, two);
    }
}
