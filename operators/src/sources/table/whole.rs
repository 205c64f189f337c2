//! A file of rows that is read at once and as a whole: every row must be good.
use super::{Format, LINE_LIMIT, Reader, Table};
use crate::columns::ScalarBuilder;
use crate::columns::tensor::fixed_bytes;
use crate::record::payload_schema;
use crate::sources::csv::CsvFormat;
use crate::sources::input::Origin;
use crate::sources::jsonl::JsonlFormat;
use arrow_array::RecordBatch;
use std::path::Path;
use std::sync::Arc;
use tidemill_spec::types::{Column, StreamType};
use tidemill_spec::units::Bytes;

/// Form of the rows of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A line of names, then rows.
    Csv,
    /// A JSON object a line.
    Jsonl,
}

impl Form {
    /// Returns the form of a file by the ending of its name; a further one for the compression does not count.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
        match Path::new(name).extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            _ => None,
        }
    }
}

/// The rows of a file.
#[derive(Debug)]
pub(crate) struct Whole {
    /// The declared columns.
    pub(crate) rows: RecordBatch,
    /// Line of each row, counted from 1.
    pub(crate) lines: Vec<u64>,
    /// The name of the file in messages about its lines.
    pub(crate) name: String,
}

/// Error of reading a whole file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WholeError {
    /// It cannot be opened, or its first line does not fit.
    #[error("{message}")]
    Opening { message: String, help: String },
    /// It can be read only once.
    #[error("{stream} can be read only once")]
    Stream { stream: String },
    /// Reading failed.
    #[error("`{name}` cannot be read: {error}")]
    Reading { name: String, error: std::io::Error },
    /// A row is not good.
    #[error("`{name}`, line {line}: {detail}")]
    Row { name: String, line: u64, detail: String },
    /// There is more than memory is set aside for.
    #[error("`{name}`, line {line}: the rows up to here take more than {most}")]
    TooLarge { name: String, line: u64, most: Bytes },
}

impl WholeError {
    /// Returns advice.
    pub(crate) fn help(&self) -> String {
        match self {
            Self::Opening { help, .. } => return help.clone(),
            Self::Stream { .. } => "a table is read again when it changes: write the path of a file",
            Self::Reading { .. } => "check the file and the disk",
            Self::Row { .. } => "correct the line or remove it: a table is used as a whole or not at all",
            Self::TooLarge { .. } => "declare fewer columns, remove rows, or set `max_table`",
        }
        .to_owned()
    }
}

/// Reads a file. `written`: the path in the workflow; `path`: resolved relative to the workflow file; `most`: bytes of the values.
///
/// # Errors
/// See [`WholeError`]; of the rows that are not good, the first.
pub(crate) fn read_whole(
    (written, path): (&str, &Path),
    columns: &[Column],
    form: Form,
    most: Bytes,
) -> Result<Whole, WholeError> {
    let origin = Origin::of(written, path.to_owned());
    if let Some(stream) = origin.stream() {
        return Err(WholeError::Stream { stream: stream.to_owned() });
    }
    let table = Table {
        origin,
        columns: columns.to_vec(),
        limit: (LINE_LIMIT as usize).min(most.0 as usize),
        quotes: form == Form::Csv,
        time: None,
        max_jump: None,
        fixed_bytes: columns.iter().map(|column| fixed_bytes(&column.column_type)).sum(),
    };
    match form {
        Form::Csv => read_with(&Arc::new(table), written, CsvFormat::new(), most),
        Form::Jsonl => read_with(&Arc::new(table), written, JsonlFormat::default(), most),
    }
}

fn read_with<F: Format>(
    table: &Arc<Table>,
    written: &str,
    format: F,
    most: Bytes,
) -> Result<Whole, WholeError> {
    let name = table.name();
    let schema = payload_schema(&StreamType::new(table.columns.clone()));
    let mut reader = Reader::open(table, &schema, written, format)
        .map_err(|(message, help)| WholeError::Opening { message, help })?;
    let failed = |error| WholeError::Reading { name: name.clone(), error };
    let mut builders: Vec<ScalarBuilder> =
        table.columns.iter().map(|column| ScalarBuilder::new(&column.column_type, 64)).collect();
    let (mut lines, mut bytes) = (Vec::new(), 0);
    while let Some((line, parsed)) = reader.next().map_err(failed)? {
        let wrong = |detail| WholeError::Row { name: name.clone(), line, detail };
        parsed.map_err(|(_, detail)| wrong(detail))?;
        bytes += (reader.fields.bytes().max(table.fixed_bytes) + size_of_val(&line)) as u64;
        if bytes > most.0 {
            return Err(WholeError::TooLarge { name, line, most });
        }
        for (builder, cell) in builders.iter_mut().zip(reader.fields.iter()) {
            builder.append_cell(cell).map_err(wrong)?;
        }
        lines.push(line);
    }
    let columns = builders.iter_mut().map(ScalarBuilder::finish).collect();
    let rows = RecordBatch::try_new(schema, columns).map_err(|error| failed(std::io::Error::other(error)))?;
    Ok(Whole { rows, lines, name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{int64, text};
    use tidemill_spec::types::ColumnType;

    fn read(name: &str, content: &[u8], most: u64) -> Result<Whole, WholeError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let columns = [Column::new("n", ColumnType::Int64), Column::new("s", ColumnType::Text)];
        read_whole((name, &path), &columns, Form::of(name).unwrap(), Bytes(most))
    }

    #[test]
    fn forms_follow_from_names() {
        let forms =
            ["a.csv", "A.CSV.gz", "a.jsonl.zst", "a.ndjson", "a.parquet", "a", "-", "a.gz"].map(Form::of);
        let [csv, jsonl] = [Some(Form::Csv), Some(Form::Jsonl)];
        assert_eq!(forms, [csv, csv, jsonl, jsonl, None, None, None, None]);
    }

    #[test]
    fn rows_come_with_their_lines() {
        let csv = read("t.csv", b"s,x,n\n\"a\nb\",,1\n\nc,,\n", 1 << 20).unwrap();
        assert_eq!(csv.lines, [2, 5]);
        assert_eq!(int64(csv.rows.column(0)).unwrap().iter().collect::<Vec<_>>(), [Some(1), None]);
        assert_eq!(text(csv.rows.column(1)).unwrap().value(0), "a\nb");
        let jsonl = read("t.jsonl", b"\n{\"n\":1,\"s\":\"a\"}\n", 1 << 20).unwrap();
        assert_eq!((jsonl.lines, jsonl.rows.num_rows()), (vec![2], 1));
    }

    #[test]
    fn one_bad_row_is_enough() {
        for (name, content, most, message) in [
            ("t.csv", "n,s\n1,a\nx,b\n", 1 << 20, "`t.csv`, line 3: column `n`: `x` is not int64"),
            ("t.csv", "n,s\n1,a\n2", 1 << 20, "`t.csv`, line 3: 1 fields, but the first line has 2"),
            ("t.csv", "n\n1\n", 1 << 20, "the first line does not name the declared column `s`"),
            ("t.jsonl", "{\"n\":1}\n", 1 << 20, "`t.jsonl`, line 1: there is no field `s`"),
            (
                "t.csv",
                "n,s\n1,a\n2,b\n3,c\n4,d\n",
                250,
                "`t.csv`, line 4: the rows up to here take more than 250B",
            ),
        ] {
            let error = read(name, content.as_bytes(), most).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert!(!error.help().is_empty());
        }
    }
}
