//! Reads Parquet files.
use super::values::{cell, fits};
use crate::api::{
    BoundSource, DeadLetter, MakeSource, OperatorError, Source, SourceInput, SourcePosition, SourceRead,
};
use crate::columns::ScalarBuilder;
use crate::kind::EndContext;
use crate::record::payload_schema;
use crate::sources::event_time::EventTimes;
use crate::sources::table::{self, Fields, Options};
use crate::values::payload_values;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Compression;
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::types::{Column, StreamType};

/// Rows that are decoded at once.
const BATCH: usize = 1024;

/// The file, with the options.
struct Table {
    path: PathBuf,
    columns: Vec<Column>,
    schema: SchemaRef,
    time: Option<EventTimes>,
}

/// Checks the options, and the file if the context opens it.
pub(super) fn bound(context: &EndContext<'_>, options: &Options) -> Result<BoundSource, Diagnostics> {
    let columns = table::declared_columns(&options.columns)?;
    let time = EventTimes::of_options(options, &columns)?;
    let output = StreamType::new(columns.clone());
    let path = context.path(&options.path);
    let table = Arc::new(Table { path: path.clone(), columns, schema: payload_schema(&output), time });
    let written = options.path.value.clone();
    if context.opens() {
        Reader::open(&table, &written).map_err(|(message, help)| {
            Diagnostic::error("E0609", format!("source `{}`: {message}", context.id))
                .at(options.path.span.clone())
                .with_help(help)
        })?;
    }
    let has_event_times = table.time.is_some();
    let make: MakeSource = Arc::new(move || match Reader::open(&table, &written) {
        Ok(reader) => Ok(Box::new(reader) as Box<dyn Source>),
        Err((message, help)) => Err(OperatorError::new(format!("{message}: {help}"))),
    });
    Ok(BoundSource {
        out_of_order_microseconds: i64::try_from(options.out_of_order.0.div_ceil(1000)).unwrap_or(i64::MAX),
        has_event_times,
        input: Some(SourceInput::File { path, may_grow: false }),
        ..context.source("parquet", output, make)
    })
}

struct Reader {
    table: Arc<Table>,
    /// Rows of the file.
    rows: u64,
    /// The next row.
    next: u64,
    /// Decodes from the row after those in `decoded` on; made by the first read after a seek.
    batches: Option<ParquetRecordBatchReader>,
    /// Decoded rows, of which the first is `next`.
    decoded: Option<RecordBatch>,
}

/// A message with advice.
type Refused = (String, String);

impl Reader {
    fn open(table: &Arc<Table>, written: &str) -> Result<Self, Refused> {
        let shown = format!("`{}`", table.path.display());
        let file = File::open(&table.path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let help = "write a path relative to the workflow file";
                (
                    format!("the file {shown} does not exist"),
                    crate::sources::missing_help(written, &table.path, help),
                )
            }
            _ => (format!("cannot read {shown}: {error}"), "check the path and the disk".to_owned()),
        })?;
        let builder = builder(file).map_err(|error| {
            (
                format!("{shown} is not a Parquet file: {error}"),
                "write it again; it may be cut short".to_owned(),
            )
        })?;
        let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
        for column in &table.columns {
            let fields = builder.schema().fields();
            let Some((_, field)) = fields.find(&column.name) else {
                let names = fields.iter().take(40).map(|field| field.name().as_str());
                let help = suggestion(&column.name, names, "columns of the file");
                return Err((format!("{shown} has no column `{}`", column.name), help));
            };
            fits(field.data_type(), &column.column_type).map_err(|declaration| {
                let (name, declared, found) = (&column.name, &column.column_type, field.data_type());
                let help = match declaration {
                    Some(declaration) => format!("declare `{name}: {declaration}`"),
                    None => "leave the column out, or convert it before".to_owned(),
                };
                (format!("{shown}: column `{name}` is {found}, which is not {declared}"), help)
            })?;
        }
        let chunks = builder.metadata().row_groups().iter().flat_map(|group| group.columns());
        for chunk in chunks {
            let name = chunk.column_path().parts().first().map(String::as_str).unwrap_or_default();
            let is_read = table.columns.iter().any(|column| column.name == name);
            if is_read && !is_known(chunk.compression()) {
                let message = format!("{shown}: column `{name}` is compressed as {}", chunk.compression());
                return Err((
                    message,
                    "write the file with zstd, gzip or snappy, or without compression".to_owned(),
                ));
            }
        }
        Ok(Self { table: Arc::clone(table), rows, next: 0, batches: None, decoded: None })
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> OperatorError {
        OperatorError::new(format!("cannot read `{}`: {error}", self.table.path.display()))
    }

    /// Decodes rows from `next` on, if none are.
    fn decode(&mut self) -> Result<Option<RecordBatch>, OperatorError> {
        if let Some(decoded) = self.decoded.take() {
            return Ok(Some(decoded));
        }
        if self.batches.is_none() {
            let file = File::open(&self.table.path).map_err(|error| self.broken(&error))?;
            let builder = builder(file).map_err(|error| self.broken(&error))?;
            let names = self.table.columns.iter().map(|column| column.name.as_str());
            let fields = builder.schema().fields();
            let places: Vec<usize> = names.filter_map(|name| Some(fields.find(name)?.0)).collect();
            let mask = ProjectionMask::roots(builder.parquet_schema(), places);
            let start = usize::try_from(self.next).unwrap_or(usize::MAX);
            let reader = builder.with_projection(mask).with_batch_size(BATCH).with_offset(start).build();
            self.batches = Some(reader.map_err(|error| self.broken(&error))?);
        }
        let batch = self.batches.as_mut().and_then(Iterator::next).transpose();
        batch.map_err(|error| self.broken(&error))
    }
}

/// Whether columns with this compression can be read.
fn is_known(compression: Compression) -> bool {
    use Compression::{GZIP, SNAPPY, UNCOMPRESSED, ZSTD};
    matches!(compression, UNCOMPRESSED | SNAPPY | GZIP(_) | ZSTD(_))
}

/// The reader of a file by the types of its own schema, whatever program wrote it.
fn builder(file: File) -> Result<ParquetRecordBatchReaderBuilder<File>, parquet::errors::ParquetError> {
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    ParquetRecordBatchReaderBuilder::try_new_with_options(file, options)
}

impl Source for Reader {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let table = Arc::clone(&self.table);
        let mut builders: Vec<ScalarBuilder> = table
            .columns
            .iter()
            .map(|column| ScalarBuilder::new(&column.column_type, rows.min(BATCH)))
            .collect();
        let (mut times, mut offsets, mut dead_letters) = (Vec::new(), Vec::new(), Vec::new());
        let (mut records, mut size) = (0usize, 0usize);
        let (mut fields, mut tensor) = (Fields::default(), Vec::new());
        while records < rows.max(1) && (records == 0 || size < bytes) {
            let Some(batch) = self.decode()? else { break };
            let mut taken = 0;
            while taken < batch.num_rows() && records < rows.max(1) && (records == 0 || size < bytes) {
                match parse(&table, &batch, taken, &mut fields, &mut tensor) {
                    Ok(time) => {
                        for (builder, value) in builders.iter_mut().zip(fields.iter()) {
                            builder.append_cell(value).map_err(|e| self.broken(&e))?;
                        }
                        times.push(time);
                        offsets.push(records as u64);
                    }
                    Err(detail) => dead_letters.push(DeadLetter {
                        id: None,
                        time: None,
                        reason: "bad_value".into(),
                        detail: format!(
                            "{}, row {}: {detail}",
                            table.path.file_name().unwrap_or_default().to_string_lossy(),
                            self.next + 1
                        ),
                        values: payload_values(&batch, taken),
                    }),
                }
                size += fields.bytes();
                records += 1;
                taken += 1;
                self.next += 1;
            }
            if taken < batch.num_rows() {
                self.decoded = Some(batch.slice(taken, batch.num_rows() - taken));
            }
        }
        if records == 0 {
            return Ok(SourceRead::End);
        }
        let columns = builders.iter_mut().map(ScalarBuilder::finish).collect();
        let payload =
            RecordBatch::try_new(Arc::clone(&table.schema), columns).map_err(|e| self.broken(&e))?;
        let offsets = (!dead_letters.is_empty()).then_some(offsets);
        Ok(SourceRead::Rows { payload, times: table.time.map(|_| times), dead_letters, offsets })
    }

    fn position(&self) -> SourcePosition {
        SourcePosition(self.next.to_string())
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        let next = position.0.parse().ok().filter(|next| *next <= self.rows);
        let Some(next) = next else {
            return Err(OperatorError::new(format!("`{}` is not a row of the file", position.0)));
        };
        (self.next, self.batches, self.decoded) = (next, None, None);
        Ok(())
    }

    fn len_hint(&self) -> Option<u64> {
        Some(self.rows)
    }
}

/// Reads the values of a row into `fields`; returns its event time.
fn parse(
    table: &Table,
    batch: &RecordBatch,
    row: usize,
    fields: &mut Fields,
    tensor: &mut Vec<u8>,
) -> Result<i64, String> {
    fields.clear();
    for column in &table.columns {
        let Some(array) = batch.column_by_name(&column.name) else {
            return Err(format!("there is no column `{}`", column.name));
        };
        let value = cell(array, row, &column.column_type, tensor);
        fields.push(value.map_err(|why| format!("column `{}` {why}", column.name))?);
    }
    let Some(times) = table.time else { return Ok(0) };
    times.of(&table.columns[times.column].name, fields.get(times.column)).map_err(|(_, detail)| detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::first_records;
    use crate::sources::parquet::Parquet;
    use crate::sources::test::{bind, check_seeks, drain};
    use crate::testing::{batch, only};
    use arrow_array::types::Int32Type;
    use arrow_array::{ArrayRef, Int64Array, ListArray, UInt64Array};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;
    use serde_json::json;
    use std::path::Path;
    use tidemill_spec::types::ColumnType;

    const TYPES: [(&str, &str); 13] = [
        ("key", "text"),
        ("n", "int64"),
        ("x", "float64"),
        ("ok", "bool"),
        ("a", "tensor<float32>[2]"),
        ("b", "tensor<float16>[2]"),
        ("c", "tensor<float64>[2, 2]"),
        ("d", "tensor<int64>[2]"),
        ("e", "tensor<int32>[1]"),
        ("f", "tensor<int8>[1]"),
        ("g", "tensor<uint8>[2]"),
        ("h", "tensor<bool>[2]"),
        ("i", "tensor<text>[2]"),
    ];

    fn stream() -> StreamType {
        StreamType::new(TYPES.map(|(name, kind)| Column::new(name, ColumnType::named(kind).unwrap())))
    }

    fn declared() -> String {
        TYPES.map(|(name, kind)| format!("  {name}: {kind}\n")).concat()
    }

    fn row(n: i64) -> serde_json::Value {
        json!({
            "key": format!("k{n}"), "n": n, "x": 0.5, "ok": true, "a": [0.1, -2.0], "b": [0.5, 65504.0],
            "c": [[0.1, 1.0], [2.0, 1e300]], "d": [n, i64::MIN], "e": [i32::MIN], "f": [-128], "g": [0, 255], "h": [true, false],
            "i": ["é", ""],
        })
    }

    /// What the sink writes, the source reads: all types, empty values, many batches, from every row.
    #[test]
    fn a_file_of_the_sink_comes_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let rows: Vec<_> =
            (0..1500).map(|n| if n % 7 == 3 { json!({"key": "empty"}) } else { row(n) }).collect();
        let written = batch(&stream(), &rows);
        let sink = crate::registry::Registry::builtin();
        let sink = sink.sink("parquet").unwrap();
        let id = "out".into();
        let port = crate::kind::InputPort {
            from: "in".into(),
            stream: stream(),
            span: tidemill_spec::span::Span::nowhere(),
        };
        let options = crate::testing::options("path: t.parquet");
        let bound = sink.bind(&EndContext::new(&id, folder.path()), &port, &options).unwrap();
        let mut writer = (bound.make)().unwrap();
        writer.write(&written).unwrap();
        writer.commit(1).unwrap();
        writer.close().unwrap();
        let yaml = format!("path: t.parquet\ncolumns:\n{}", declared());
        let source = bind(&Parquet, folder.path(), &yaml).unwrap();
        let (batches, dead) = drain(&source, 700, usize::MAX);
        assert!(dead.is_empty(), "{dead:?}");
        let all = arrow_select::concat::concat_batches(&batches[0].schema(), &batches).unwrap();
        let all = first_records(&all).unwrap();
        assert_eq!(
            all.columns()[crate::record::METADATA_COLUMNS..],
            written.columns()[crate::record::METADATA_COLUMNS..]
        );
    }

    fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
        write_compressed(path, columns, Compression::UNCOMPRESSED);
    }

    fn write_compressed(path: &Path, columns: Vec<(&str, ArrayRef)>, compression: Compression) {
        let rows = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, array)| (name, array, true)),
        )
        .unwrap();
        let properties = WriterProperties::builder().set_compression(compression).build();
        let file = File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
        writer.write(&rows).unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn rows_that_do_not_fit_are_dead_letters() {
        let folder = tempfile::tempdir().unwrap();
        let lists = [
            Some(vec![Some(1), Some(2)]),
            Some(vec![Some(1)]),
            None,
            Some(vec![None, Some(2)]),
            Some(vec![Some(5), Some(6)]),
        ];
        write(
            &folder.path().join("t.parquet"),
            vec![
                ("n", Arc::new(UInt64Array::from(vec![1, 2, 3, 4, u64::MAX]))),
                ("at", Arc::new(Int64Array::from(vec![Some(10), Some(20), Some(30), None, Some(50)]))),
                ("v", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
            ],
        );
        let yaml = "path: t.parquet\nevent_time: at\ncolumns:\n  v: tensor<int64>[2]\n  at: int64\n";
        let source = bind(&Parquet, folder.path(), yaml).unwrap();
        check_seeks(&source);
        let (batches, dead) = drain(&source, 100, usize::MAX);
        assert_eq!(batches[0].num_rows(), 3);
        let details: Vec<_> = dead.iter().map(|(row, letter)| (*row, letter.detail.as_str())).collect();
        assert_eq!(
            details,
            [
                (1, "t.parquet, row 2: column `v` has a list of length 1 in place of 2"),
                (
                    3,
                    "t.parquet, row 4: column `v` has an empty value (null) at position 0, a tensor has none"
                ),
            ]
        );
        let source = bind(&Parquet, folder.path(), "path: t.parquet\ncolumns: {n: int64}").unwrap();
        check_seeks(&source);
        let (_, dead) = drain(&source, 2, usize::MAX);
        assert_eq!(
            dead[0].1.detail,
            "t.parquet, row 5: column `n` 18446744073709551615 does not fit into int64"
        );
    }

    /// Polars writes zstd by default, pandas snappy.
    #[test]
    fn compressed_columns_are_read() {
        use Compression::{GZIP, SNAPPY, ZSTD};
        let folder = tempfile::tempdir().unwrap();
        for compression in [GZIP(Default::default()), SNAPPY, ZSTD(Default::default())] {
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..5000));
            write_compressed(&folder.path().join("t.parquet"), vec![("n", numbers)], compression);
            let source = bind(&Parquet, folder.path(), "path: t.parquet\ncolumns: {n: int64}").unwrap();
            let (batches, dead) = drain(&source, 8192, usize::MAX);
            assert!(dead.is_empty(), "{dead:?}");
            let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
            assert_eq!(rows, 5000, "{compression}");
        }
        assert!(!is_known(Compression::BROTLI(Default::default())), "this build cannot read it");
    }

    #[test]
    fn what_is_wrong_is_said_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("t.parquet"), vec![("count", Arc::new(Int64Array::from(vec![1])))]);
        std::fs::write(folder.path().join("no.parquet"), "PAR1").unwrap();
        for (yaml, message, help) in [
            ("path: t.parquet\ncolumns: {cuont: int64}", "has no column `cuont`", "did you mean `count`?"),
            (
                "path: t.parquet\ncolumns: {count: text}",
                "column `count` is Int64, which is not text",
                "declare `count: int64`",
            ),
            ("path: no.parquet\ncolumns: {count: text}", "is not a Parquet file", "cut short"),
            ("path: tt.parquet\ncolumns: {count: text}", "does not exist", "did you mean `t.parquet`?"),
        ] {
            let error = only(bind(&Parquet, folder.path(), yaml).err().unwrap());
            assert!(error.message.contains(message), "{error}");
            assert!(error.help.clone().unwrap_or_default().contains(help), "{error}");
            assert_eq!(error.line(), Some(1));
        }
    }
}
