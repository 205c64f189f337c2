//! Rows of tables: CSV and Parquet by the sources of these kinds, JSON line by line.
use super::given::{Column, Form, Given, Mistake};
use super::records::Values;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use tidemill_app::failure::{Failure, Kind};
use tidemill_inference::CellReader;
use tidemill_inference::blueprint::Wanted;
use tidemill_operators::api::{BoundSource, SourceRead};
use tidemill_operators::kind::EndContext;
use tidemill_operators::registry::Registry;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::{Located, SourceFile};
use tidemill_spec::types::ColumnType;
use tidemill_spec::yaml;

/// Bytes of rows that are read at once.
const MOST_BYTES: usize = 256 << 20;

/// A row: its name, and its values.
type Row = (String, Values);

fn ending(path: &Path) -> String {
    path.extension().map_or_else(String::new, |ending| ending.to_string_lossy().to_ascii_lowercase())
}

/// Whether the name of a file is that of a table.
pub(super) fn is_table(path: &Path) -> bool {
    ["csv", "jsonl", "ndjson", "parquet"].contains(&ending(path).as_str())
}

/// Reads the first rows of a table: the columns that have no value yet.
///
/// # Errors
/// The file cannot be read, or has other columns.
pub(super) fn rows(path: &Path, free: &[&Column], most: usize) -> Result<Vec<Row>, Failure> {
    let rows = match ending(path).as_str() {
        "csv" => of_source(path, free, "csv", &vec!["text".to_owned(); free.len()], most)?,
        "parquet" => of_source(path, free, "parquet", &types(path, free)?, most)?,
        _ => lines(path, free, most)?,
    };
    if rows.is_empty() {
        return Err(Failure::new(Kind::Configuration, format!("{} has no rows", path.display())));
    }
    Ok(rows)
}

/// Reads the values of columns from a JSON object, whose other fields do not matter; or the values of a row of features
/// from a list, in the order of the manifest.
pub(super) fn object(value: &Value, free: &[&Column], folder: &Path) -> Result<Values, Mistake> {
    let given: Vec<(&&Column, &Value)> = match value {
        Value::Object(fields) => {
            free.iter().filter_map(|column| Some((column, fields.get(&column.name)?))).collect()
        }
        Value::Array(values)
            if free.iter().all(|column| matches!(column.form(), Form::Feature | Form::Text)) =>
        {
            if values.len() != free.len() {
                let text = format!("it has {} values, the model reads {}", values.len(), free.len());
                return Err(Mistake::Value(text));
            }
            free.iter().zip(values).collect()
        }
        _ => return Err(Mistake::Value("it is not a JSON object such as `{\"age\": 3}`".to_owned())),
    };
    given
        .into_iter()
        .map(|(column, value)| Ok((column.name.clone(), Arc::new(Given::of_json(column, value, folder)?))))
        .collect()
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Reads the first lines of JSON: objects, or lists for the one tensor that the model reads.
fn lines(path: &Path, free: &[&Column], most: usize) -> Result<Vec<Row>, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::new(Kind::Configuration, format!("cannot read {}: {error}", path.display()))
    };
    let mut rows = Vec::new();
    for (number, line) in BufReader::new(File::open(path).map_err(cannot)?).lines().enumerate() {
        if rows.len() == most {
            break;
        }
        let line = line.map_err(cannot)?;
        if line.trim().is_empty() {
            continue;
        }
        let name = format!("{}, line {}", path.display(), number + 1);
        let value: Value = serde_json::from_str(&line).map_err(|error| {
            Failure::new(Kind::Configuration, format!("{name}: no JSON: {error}"))
                .with_help("write one JSON object in each line")
        })?;
        let values = match (&value, free) {
            (Value::Array(_), [column]) if column.form() == Form::Tensor => {
                Given::of_json(column, &value, folder(path))
                    .map(|value| Values::from([(column.name.clone(), Arc::new(value))]))
            }
            _ => object(&value, free, folder(path)),
        };
        let values = values.map_err(|mistake| mistake.failure(Kind::Configuration, &name))?;
        rows.push((name, values));
    }
    Ok(rows)
}

/// Finds the types of the columns of a Parquet file: where the model reads numbers, several fit.
fn types(path: &Path, free: &[&Column]) -> Result<Vec<String>, Failure> {
    let find = |column: &&Column| {
        let possible: Vec<String> = match &column.wanted {
            Wanted::Exactly(tensor @ ColumnType::Tensor { .. }) => vec![tensor.to_string()],
            Wanted::Exactly(_) => vec!["text".to_owned()],
            Wanted::Feature(feature) if feature.categories.is_empty() => {
                ["float64", "int64", "bool"].map(str::to_owned).to_vec()
            }
            Wanted::Feature(_) => ["text", "int64"].map(str::to_owned).to_vec(),
        };
        let mut first = None;
        for name in possible {
            match bound("parquet", path, &[column], std::slice::from_ref(&name)) {
                Ok(_) => return Ok(name),
                Err(failure) => first = first.or(Some(failure)),
            }
        }
        Err(first.unwrap_or_else(|| Failure::new(Kind::Defect, "a column has no type")))
    };
    free.iter().map(find).collect()
}

/// A source that reads these columns of a file.
fn bound(kind: &str, path: &Path, free: &[&Column], types: &[String]) -> Result<BoundSource, Failure> {
    let mut text = format!("path: {}\ncolumns:\n", Value::from(path.display().to_string()));
    for (column, name) in free.iter().zip(types) {
        // JSON strings are valid YAML. A string takes it.
        let _ = writeln!(text, "  {}: {}", Value::from(column.name.as_str()), Value::from(name.as_str()));
    }
    let id: Located<String> = ID.into();
    let options = yaml::parse(&SourceFile::new(path.display().to_string(), text)).map_err(refused)?;
    let registry = Registry::builtin();
    let Some(source) = registry.source(kind) else {
        return Err(Failure::new(Kind::Defect, format!("there is no source of the kind `{kind}`")));
    };
    source.bind(&EndContext::new(&id, Path::new("")), &options).map_err(refused)
}

/// Id of the source in messages, from which it is removed.
const ID: &str = "table";

/// The first finding, without its place in options that nobody wrote.
fn refused(findings: Diagnostics) -> Failure {
    let Some(first) = findings.iter().next() else {
        return Failure::new(Kind::Configuration, "the table cannot be read");
    };
    let prefix = format!("source `{ID}`: ");
    let message = first.message.strip_prefix(&prefix).unwrap_or(&first.message);
    let failure = Failure::new(Kind::Configuration, message);
    match &first.help {
        Some(help) => failure.with_help(help.clone()),
        None => failure,
    }
}

fn of_source(
    path: &Path,
    free: &[&Column],
    kind: &str,
    types: &[String],
    most: usize,
) -> Result<Vec<Row>, Failure> {
    let failed = |text: String| Failure::new(Kind::Configuration, text);
    let source = bound(kind, path, free, types)?;
    let mut reader = (source.make)().map_err(|error| failed(error.message))?;
    let mut rows: Vec<Row> = Vec::new();
    while rows.len() < most {
        let read = reader.read(most - rows.len(), MOST_BYTES).map_err(|error| failed(error.message))?;
        let SourceRead::Rows { payload, dead_letters, .. } = read else { break };
        if let Some(letter) = dead_letters.first() {
            return Err(failed(letter.detail.to_string()));
        }
        let readers: Option<Vec<CellReader<'_>>> = payload.columns().iter().map(CellReader::new).collect();
        let readers = readers.ok_or_else(|| failed(format!("{} has columns of no type", path.display())))?;
        for row in 0..payload.num_rows() {
            let name = format!("{}, row {}", path.display(), rows.len() + 1);
            let values = free.iter().zip(&readers).map(|(column, reader)| {
                let value = match Given::of_cell(reader.cell(row)) {
                    // The column decides the meaning of a field of text.
                    Given::Text(text) => Given::of_text(column, &text, folder(path))
                        .map_err(|mistake| mistake.failure(Kind::Configuration, &name))?,
                    value => value,
                };
                Ok((column.name.clone(), Arc::new(value)))
            });
            let values = values.collect::<Result<Values, Failure>>()?;
            rows.push((name, values));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_inference::tensor::TensorData;
    use tidemill_spec::manifest::Feature;
    use tidemill_spec::types::ElementType;

    fn columns_of_rows() -> Vec<Column> {
        let feature = |name: &str, categories: &[&str]| {
            let categories = categories.iter().map(|text| (*text).to_owned()).collect();
            let feature = Feature { categories, ..Feature::plain(name) };
            Column { name: name.to_owned(), wanted: Wanted::Feature(feature) }
        };
        let vector = ColumnType::Tensor { element: ElementType::Float32, shape: vec![2] };
        let vector = Column { name: "vector".to_owned(), wanted: Wanted::Exactly(vector) };
        vec![feature("age", &[]), feature("colour", &["red", "blue"]), vector]
    }

    #[test]
    fn rows_of_text_become_values() {
        let folder = tempfile::tempdir().unwrap();
        let columns = columns_of_rows();
        let free: Vec<&Column> = columns.iter().collect();
        let csv = folder.path().join("t.csv");
        std::fs::write(&csv, "colour,more,vector,age\nred,x,\"[1, 2]\",3\n,x,\"[3, 4]\",\nblue,x,[],1\n")
            .unwrap();
        let read = rows(&csv, &free, 2).unwrap();
        let jsonl = folder.path().join("t.jsonl");
        std::fs::write(
            &jsonl,
            "{\"age\": 3, \"colour\": \"red\", \"vector\": [1, 2]}\n\n{\"vector\": [[1]]}\n",
        )
        .unwrap();
        let first = &rows(&jsonl, &free, 1).unwrap()[0];
        assert!(first.0.ends_with("t.jsonl, line 1") && read[0].0.ends_with("t.csv, row 1"));
        assert_eq!(first.1, read[0].1);
        assert_eq!(*first.1["vector"], Given::Tensor(TensorData::Float32(vec![1.0, 2.0])));
        assert_eq!((read.len(), &*read[1].1["age"]), (2, &Given::Missing));
        let error = rows(&jsonl, &free, 5).unwrap_err().to_string();
        assert!(error.contains("t.jsonl, line 3: the list does not fit `vector`"), "{error}");
        std::fs::write(&csv, "colour,age\nred,3\n").unwrap();
        let error = rows(&csv, &free, 5).unwrap_err().to_string();
        assert!(error.contains("`vector`") && !error.contains("source"), "{error}");
        std::fs::write(&jsonl, "\n").unwrap();
        assert!(rows(&jsonl, &free, 5).unwrap_err().to_string().ends_with("has no rows"));
    }

    #[test]
    fn lists_are_the_one_tensor_or_a_row_of_features() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        std::fs::write(&path, "[1, 2]\n[3, 4]\n").unwrap();
        let columns = columns_of_rows();
        let read = rows(&path, &[&columns[2]], 5).unwrap();
        assert_eq!(*read[1].1["vector"], Given::Tensor(TensorData::Float32(vec![3.0, 4.0])));
        let read = rows(&path, &[&columns[0], &columns[1]], 1).unwrap();
        assert_eq!((&*read[0].1["age"], &*read[0].1["colour"]), (&Given::Integer(1), &Given::Integer(2)));
        let error = rows(&path, &[&columns[0]], 5).unwrap_err().to_string();
        assert!(error.contains("line 1: it has 2 values, the model reads 1"), "{error}");
        let error = rows(&path, &[&columns[0], &columns[2]], 5).unwrap_err().to_string();
        assert!(error.contains("line 1: it is not a JSON object"), "{error}");
    }

    #[cfg(feature = "formats")]
    #[test]
    fn the_types_of_a_parquet_file_are_found() {
        use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("colour", Arc::new(StringArray::from(vec![Some("red"), None]))),
            ("age", Arc::new(Int64Array::from(vec![3, 4]))),
            ("old", Arc::new(BooleanArray::from(vec![true, false]))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let file = File::create(&path).unwrap();
        let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let mut columns = columns_of_rows();
        columns[2].name = "old".to_owned();
        columns[2].wanted = columns[0].wanted.clone();
        let free: Vec<&Column> = columns.iter().collect();
        let read = rows(&path, &free, 5).unwrap();
        let values = |row: usize| ["age", "colour", "old"].map(|name| (*read[row].1[name]).clone());
        assert_eq!(values(0), [Given::Integer(3), Given::Text("red".to_owned()), Given::Truth(true)]);
        assert_eq!(values(1), [Given::Integer(4), Given::Missing, Given::Truth(false)]);
        columns[2].name = "new".to_owned();
        let error = rows(&path, &columns.iter().collect::<Vec<_>>(), 5).unwrap_err();
        assert!(error.to_string().contains("has no column `new`"), "{error}");
    }
}
