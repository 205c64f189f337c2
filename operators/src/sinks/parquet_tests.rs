use super::*;
use crate::record::{METADATA_COLUMNS, record_schema};
use crate::sinks::test::{answers, bind};
use crate::testing::{batch, id};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, FixedSizeListArray, Float32Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::json;
use tidemill_spec::span::Span;
use tidemill_spec::types::{Column, ElementType, StreamType};

/// All rows of a file as one batch, and its number of row groups.
fn read(path: &Path) -> (RecordBatch, usize) {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let (schema, groups) = (Arc::clone(builder.schema()), builder.metadata().num_row_groups());
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    (arrow_select::concat::concat_batches(&schema, &batches).unwrap(), groups)
}

fn keys(path: &Path) -> Vec<String> {
    let (rows, _) = read(path);
    let keys = rows.column_by_name("key").unwrap().as_string::<i32>();
    keys.iter().map(|key| key.unwrap_or("null").to_owned()).collect()
}

#[test]
fn the_file_appears_at_the_end_with_what_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out/a.parquet");
    let bound = bind(&Parquet, folder.path(), "path: out/a.parquet").unwrap();
    assert_eq!(bound.files, std::slice::from_ref(&path));
    let mut sink = (bound.make)().unwrap();
    assert!(sink.exactly_once());
    sink.write(&batch(&answers(), &[json!({"key": "a", "n": 1})])).unwrap();
    sink.commit(1).unwrap();
    sink.write(&batch(&answers(), &[json!({"key": "b", "n": 2})])).unwrap();
    sink.rollback().unwrap();
    sink.write(&batch(&answers(), &[json!({"key": "c"}), json!({})])).unwrap();
    sink.commit(2).unwrap();
    sink.write(&batch(&answers(), &[json!({"key": "d"})])).unwrap();
    assert!(!path.exists(), "nothing is to be seen before the end");
    assert!((bound.make)().err().unwrap().message.contains("is being written by"));
    sink.close().unwrap();
    assert_eq!(keys(&path), ["a", "c", "null"]);

    // The next run replaces it at its end, if it gets there.
    let mut next = (bound.make)().unwrap();
    next.write(&batch(&answers(), &[json!({"key": "e"})])).unwrap();
    next.commit(1).unwrap();
    drop(next);
    assert_eq!(keys(&path), ["a", "c", "null"]);
    let mut empty = (bound.make)().unwrap();
    empty.close().unwrap();
    assert!(keys(&path).is_empty());
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporaries");
    let keeping = bind(&Parquet, folder.path(), "path: out/a.parquet\noverwrite: false").unwrap();
    assert!((keeping.make)().err().unwrap().message.contains("overwrite: true"));
}

/// Rows of every type; the tensor of the second one is empty.
fn all_types() -> (StreamType, RecordBatch) {
    let stream = StreamType::new([
        Column::new("t", ColumnType::Text),
        Column::new("i", ColumnType::Int64),
        Column::new("f", ColumnType::Float64),
        Column::new("b", ColumnType::Bool),
        Column::new("p", ColumnType::Image),
        Column::new("x", ColumnType::Tensor { element: ElementType::Float32, shape: vec![2, 3] }),
    ]);
    let rows =
        [json!({"t": "é\n", "i": i64::MIN, "f": 0.1, "b": true, "p": "JPEG"}), json!({}), json!({"f": 2.0})];
    let plain = batch(&stream, &rows);
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let values = Float32Array::from_iter_values((0..18).map(|i| i as f32 + 0.1));
    let empty = NullBuffer::from(vec![true, false, true]);
    let tensors: ArrayRef = Arc::new(FixedSizeListArray::new(item, 6, Arc::new(values), Some(empty)));
    let mut columns = plain.columns().to_vec();
    columns[METADATA_COLUMNS + 5] = tensors;
    let batch = RecordBatch::try_new(record_schema(&stream), columns).unwrap();
    (stream, batch)
}

fn written(stream: StreamType, metadata: bool) -> Rows {
    let port = InputPort { from: "a".into(), stream, span: Span::nowhere() };
    let id = id("out");
    Rows::choose(&EndContext::new(&id, Path::new(".")), &port, None, metadata).unwrap()
}

#[test]
fn every_type_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.parquet");
    let (stream, batch) = all_types();
    let mut sink = Writer::create(&path, true, written(stream, true), ROW_GROUP_BYTES).unwrap();
    sink.write(&batch).unwrap();
    sink.commit(1).unwrap();
    sink.close().unwrap();
    let (rows, _) = read(&path);
    let names: Vec<String> = rows.schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["_id", "_time", "t", "i", "f", "b", "p", "x"]);
    assert_eq!(rows.column(0).as_string::<i32>().value(0).len(), 32);
    assert_eq!(rows.column(1).as_primitive::<TimestampMicrosecondType>().values(), &[0, 1, 2]);
    let zone = DataType::Timestamp(arrow_schema::TimeUnit::Microsecond, Some("UTC".into()));
    assert_eq!(*rows.column(1).data_type(), zone);
    assert_eq!(rows.column(2).as_string::<i32>().value(0), "é\n");
    assert_eq!(rows.column(3).as_primitive::<Int64Type>().value(0), i64::MIN);
    assert_eq!(rows.column(4).as_primitive::<Float64Type>().value(2), 2.0);
    assert!(rows.column(5).as_boolean().value(0));
    assert_eq!(rows.column(6).as_binary::<i32>().value(0), b"JPEG");
    for column in [2, 3, 4, 5, 6, 7] {
        assert!(rows.column(column).is_null(1), "{column}");
    }
    let tensors = rows.column(7).as_fixed_size_list();
    assert_eq!(
        tensors.value(2).as_primitive::<Float32Type>().values(),
        &[12.1, 13.1, 14.1, 15.1, 16.1, 17.1]
    );
    let schema = rows.schema();
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    assert_eq!(*schema.field(7).data_type(), DataType::FixedSizeList(item, 6));
    assert_eq!(schema.field(7).metadata()["tidemill.type"], "tensor<float32>[2, 3]");
    assert_eq!(schema.field(7).metadata()["ARROW:extension:metadata"], "{\"shape\":[2,3]}");
}

#[test]
fn memory_is_bounded_by_the_size_of_a_row_group() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.parquet");
    let stream = StreamType::new([Column::new("key", ColumnType::Text), Column::new("p", ColumnType::Image)]);
    let mut sink = Writer::create(&path, true, written(stream.clone(), false), 64 << 10).unwrap();
    // Incompressible data: 200 images of 4 KiB.
    let image = |number: u64| -> String {
        let hash =
            |part: u64| format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&(number * 128 + part).to_le_bytes()));
        (0..128).map(hash).collect()
    };
    for number in 0..200 {
        sink.write(&batch(&stream, &[json!({"key": number.to_string(), "p": image(number)})])).unwrap();
        sink.commit(number).unwrap();
        assert!(sink.staged.is_empty());
        let waiting = sink.open.as_ref().unwrap().writer.memory_size();
        assert!(waiting < 3 * (64 << 10), "{waiting} bytes after {number} images");
    }
    sink.close().unwrap();
    let (rows, groups) = read(&path);
    assert_eq!(rows.num_rows(), 200);
    assert!(groups >= 4, "{groups} row groups");
    assert_eq!(rows.column(1).as_binary::<i32>().value(199), image(199).as_bytes());
}
