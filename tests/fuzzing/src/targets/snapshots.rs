//! Snapshots of operators, which any writer to the folder or the bucket of states may have changed.
use arrow_array::{
    ArrayRef, BinaryArray, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Float64Array, Int8Array,
    Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field};
use std::cell::OnceCell;
use std::path::Path;
use std::sync::Arc;
use tidemill_operators::api::{BoundOperator, Instance, NEWS, Output, Stateful};
use tidemill_operators::kind::{InputPort, OperatorContext, Step};
use tidemill_operators::record::{payload_schema, record_schema, source_id};
use tidemill_operators::registry::Registry;
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::types::{Column, ColumnType, ElementType, StreamType};

const TEXT: ColumnType = ColumnType::Text;
const INT: ColumnType = ColumnType::Int64;
const FLOAT: ColumnType = ColumnType::Float64;

fn stream(columns: &[(&str, ColumnType)]) -> StreamType {
    StreamType::new(columns.iter().map(|(name, of)| Column::new(*name, of.clone())).collect::<Vec<_>>())
}

/// Every stateful operator: kind, inputs, options.
fn kept() -> Vec<(&'static str, Vec<StreamType>, &'static str)> {
    let readings = || stream(&[("k", TEXT), ("n", INT), ("v", FLOAT)]);
    let boxes = stream(&[
        ("camera", TEXT),
        ("frame", INT),
        ("left", FLOAT),
        ("top", FLOAT),
        ("width", FLOAT),
        ("height", FLOAT),
        ("score", FLOAT),
        ("class", TEXT),
    ]);
    let sounds = stream(&[("k", TEXT), ("audio", ColumnType::Audio)]);
    let frame = ColumnType::Tensor { element: ElementType::Float32, shape: vec![2] };
    let frames = stream(&[("k", TEXT), ("frame", frame)]);
    let looks = ColumnType::Tensor { element: ElementType::Float32, shape: vec![2] };
    let tracks =
        stream(&[("track", TEXT), ("camera", TEXT), ("start", INT), ("end", INT), ("embedding", looks)]);
    let visits =
        stream(&[("road", TEXT), ("vehicle", TEXT), ("start", INT), ("end", INT)]).with_revisions(true);
    let all = "{size: 1s, group_by: [k], aggregates: [{function: count, as: rows}, {function: count, column: v}, {function: sum, column: n}, \
               {function: sum, column: v}, {function: mean, column: v}, {function: min, column: n}, {function: max, column: v}]}";
    vec![
        ("join", vec![readings(), readings()], "{key: k, within: 1s, same_names: keep_first}"),
        ("window", vec![readings()], all),
        ("distinct", vec![visits], "{of: vehicle, group_by: [road], start: start, end: end, size: 10ms}"),
        ("track", vec![boxes], "{gives: tracks, path: true}"),
        ("associate", vec![tracks], "{likeness: 0.9, within: 50ms, keep: 10s}"),
        ("lookup", vec![readings()], "{path: zones.csv, key: k, columns: {zone: text}}"),
        ("slices", vec![sounds], "{length: 2ms, every: 1ms, sample_rate: 1000, key: k}"),
        (
            "stack",
            vec![frames],
            "{column: frame, shape: [3, 2], every: 2, before: 1, key: k, reset_after: 1min}",
        ),
    ]
}

fn bound() -> Vec<(BoundOperator, Vec<StreamType>)> {
    let registry = Registry::builtin();
    let id = "op".into();
    let one = |(kind, inputs, options): (&'static str, Vec<StreamType>, &'static str)| {
        let port = |(index, stream): (usize, &StreamType)| InputPort {
            from: format!("input{index}"),
            stream: stream.clone(),
            span: Span::nowhere(),
        };
        let ports: Vec<InputPort> = inputs.iter().enumerate().map(port).collect();
        // No file is read.
        let context = OperatorContext { step: Step::Check, ..OperatorContext::new(&id, Path::new(".")) };
        let options = tidemill_spec::yaml::parse(&SourceFile::new("workflow.yaml", options));
        let options = options.unwrap_or_else(|errors| panic!("{kind}: {errors}"));
        let operator = registry.operator(kind).unwrap_or_else(|| panic!("{kind} is built in"));
        let bound = operator.bind(&context, &ports, &options);
        (bound.unwrap_or_else(|errors| panic!("{kind}: {errors}")), inputs)
    };
    kept().into_iter().map(one).collect()
}

fn made(operator: &BoundOperator) -> Box<dyn Stateful> {
    match (operator.make)() {
        Ok(Instance::Stateful(instance)) => instance,
        _ => unreachable!("each of these keeps state"),
    }
}

thread_local! {
    static BOUND: OnceCell<Vec<(BoundOperator, Vec<StreamType>)>> = const { OnceCell::new() };
}

/// Restores by the operator whose tag it has.
pub(super) fn snapshot(bytes: &[u8]) -> bool {
    BOUND.with(|all| {
        let is_read = |(operator, _): &(BoundOperator, Vec<StreamType>)| {
            tidemill_engine::fuzz_entry::snapshot(&|| made(operator), bytes)
        };
        all.get_or_init(bound).iter().any(is_read)
    })
}

/// The snapshot of each of them after some rows.
pub(super) fn snapshots() -> Vec<Vec<u8>> {
    let one = |(operator, inputs): &(BoundOperator, Vec<StreamType>)| {
        let mut instance = made(operator);
        let mut output = Output::default();
        if instance.follows_news() {
            instance.apply(NEWS, &table(), &mut output).expect("a table of its type");
        }
        for (port, stream) in inputs.iter().enumerate() {
            for first in [0, 3] {
                instance.apply(port, &rows(stream, port, first), &mut output).expect("rows of its type");
            }
        }
        instance.advance(100_000, &mut output).expect("no failure");
        instance.snapshot().expect("it can be told")
    };
    bound().iter().map(one).collect()
}

/// The table of `lookup`.
fn table() -> RecordBatch {
    let columns: [ArrayRef; 2] = [["k0", "k1"], ["gate", "yard"]]
        .map(|values| -> ArrayRef { Arc::new(StringArray::from_iter_values(values)) });
    RecordBatch::try_new(payload_schema(&stream(&[("k", TEXT), ("zone", TEXT)])), columns.to_vec())
        .expect("two columns")
}

/// Three rows, a tenth of a second apart.
fn rows(stream: &StreamType, source: usize, first: u64) -> RecordBatch {
    let numbers: Vec<u64> = (first..first + 3).collect();
    let source = source as u32;
    let ids: Vec<u8> = numbers.iter().flat_map(|number| source_id(source, *number)).collect();
    let time = |number: &u64| *number as i64 * 100_000;
    let int = |of: fn(i64) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(numbers.iter().map(|number| of(*number as i64))))
    };
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from(vec![source; 3])),
        Arc::new(UInt64Array::from(numbers.clone())),
        Arc::new(Int64Array::from_iter_values(numbers.iter().map(time))),
        int(|number| number * 1_000_000),
        Arc::new(UInt32Array::from(vec![0, 1, 0])),
        Arc::new(Int8Array::from(vec![1; 3])),
    ];
    for column in &stream.columns {
        columns.push(match (&column.column_type, column.name.as_str()) {
            (ColumnType::Text, name) => Arc::new(StringArray::from_iter_values(
                numbers.iter().map(|number| format!("{name}{}", number % 2)),
            )),
            (ColumnType::Int64, "start") => int(|number| number * 10),
            (ColumnType::Int64, "end") => int(|number| number * 10 + 25),
            (ColumnType::Int64, _) => int(|number| number),
            (ColumnType::Tensor { .. }, _) => {
                let item = Arc::new(Field::new("item", DataType::Float32, false));
                let looks = Float32Array::from(vec![1.0, 0.0, 0.0, 1.0, 0.6, 0.8]);
                Arc::new(FixedSizeListArray::new(item, 2, Arc::new(looks), None))
            }
            // Three samples at a rate of 1000 Hz.
            (ColumnType::Audio, _) => Arc::new(BinaryArray::from(vec![
                &b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\xe8\x03\0\0\xe8\x03\0\0\x01\0\x08\0data\x03\0\0\0\x10\x90\xf0"[..];
                3
            ])),
            (_, "score") => Arc::new(Float64Array::from(vec![0.9; 3])),
            _ => Arc::new(Float64Array::from_iter_values(
                numbers.iter().map(|number| *number as f64 * 7.5 + 20.0),
            )),
        });
    }
    RecordBatch::try_new(record_schema(stream), columns).expect("columns of its type")
}
