//! The rows of all shards.
use crate::description::{Column, Description, Form};
use crate::{DatasetError, Shard};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Take};
use std::path::{Path, PathBuf};

/// A value of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// The numbers of a number or tensor.
    Numbers(Vec<f64>),
    /// A text.
    Text(String),
}

/// A labelled record.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Values in the order of the columns of inputs.
    pub inputs: Vec<Cell>,
    /// The class.
    pub label: String,
}

/// Reads the rows of a dataset, the oldest first.
#[derive(Debug)]
pub struct Rows {
    folder: PathBuf,
    description: Description,
    /// The next shard.
    next: usize,
    open: Option<Open>,
    text: String,
}

#[derive(Debug)]
struct Open {
    path: PathBuf,
    content: BufReader<Take<File>>,
    line: u64,
}

impl Rows {
    /// Opens the dataset in a folder. Rows that a run adds later are not read.
    ///
    /// # Errors
    /// It has no valid description.
    pub fn open(folder: &Path) -> Result<Self, DatasetError> {
        let description = Description::load(folder)?;
        Ok(Self { folder: folder.to_owned(), description, next: 0, open: None, text: String::new() })
    }

    /// Returns the description of the dataset.
    pub fn description(&self) -> &Description {
        &self.description
    }

    fn read(&mut self) -> Result<Option<Row>, DatasetError> {
        loop {
            let Some(open) = &mut self.open else {
                let Some(shard) = self.description.shards.get(self.next) else { return Ok(None) };
                self.next += 1;
                self.open = Some(opened(&self.folder, shard)?);
                continue;
            };
            self.text.clear();
            let read = open.content.read_line(&mut self.text);
            match read.map_err(|error| DatasetError::File { path: open.path.clone(), error })? {
                0 => self.open = None,
                _ => {
                    open.line += 1;
                    let (path, line) = (&open.path, open.line);
                    let row = row(&self.description, &self.text);
                    return row.map(Some).map_err(|what| DatasetError::Row {
                        path: path.clone(),
                        line,
                        what,
                    });
                }
            }
        }
    }
}

impl Iterator for Rows {
    type Item = Result<Row, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.read();
        if row.is_err() {
            // No more follows an error.
            (self.open, self.next) = (None, self.description.shards.len());
        }
        row.transpose()
    }
}

fn opened(folder: &Path, shard: &Shard) -> Result<Open, DatasetError> {
    let path = folder.join(&shard.file);
    let open = || -> std::io::Result<(File, u64)> {
        let file = File::open(&path)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    };
    let (file, found) = open().map_err(|error| DatasetError::File { path: path.clone(), error })?;
    if found < shard.bytes {
        return Err(DatasetError::Short { path, found, expected: shard.bytes });
    }
    Ok(Open { path, content: BufReader::with_capacity(1 << 16, file.take(shard.bytes)), line: 0 })
}

/// Reads a row; an error says what is wrong with it.
fn row(description: &Description, text: &str) -> Result<Row, String> {
    let members: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("it is no JSON object: {error}"))?;
    let inputs = description.inputs.iter().map(|column| cell(column, &members)).collect::<Result<_, _>>()?;
    let label = match members.get(&description.label) {
        Some(Value::String(label)) => label.clone(),
        Some(other) => return Err(format!("the label `{}` is {other}, expected a text", description.label)),
        None => return Err(format!("it has no label `{}`", description.label)),
    };
    Ok(Row { inputs, label })
}

fn cell(column: &Column, members: &Map<String, Value>) -> Result<Cell, String> {
    let name = &column.name;
    let value = members.get(name).ok_or_else(|| format!("it has no column `{name}`"))?;
    let Some(width) = column.form.width() else {
        return match value {
            Value::String(text) => Ok(Cell::Text(text.clone())),
            other => Err(format!("column `{name}` is {other}, expected a text")),
        };
    };
    let mut numbers = Vec::with_capacity(width);
    if !flattened(value, &mut numbers) {
        return Err(format!("column `{name}` has a value that is no number"));
    }
    let is_list = matches!(column.form, Form::Tensor { .. }) == value.is_array();
    match numbers.len() == width && is_list {
        true => Ok(Cell::Numbers(numbers)),
        false => Err(format!("column `{name}` has {} numbers, expected {width}", numbers.len())),
    }
}

/// Appends the numbers of nested lists; returns whether they are numbers.
fn flattened(value: &Value, into: &mut Vec<f64>) -> bool {
    match value {
        Value::Array(values) => values.iter().all(|value| flattened(value, into)),
        Value::Bool(is_true) => {
            into.push(f64::from(u8::from(*is_true)));
            true
        }
        other => other.as_f64().map(|number| into.push(number)).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard_name;

    fn dataset(folder: &Path, texts: &[&str]) {
        let inputs = vec![
            Column::new("features", Form::Tensor { shape: vec![2, 2] }),
            Column::new("question", Form::Text),
            Column::new("is_open", Form::Number),
        ];
        let mut description = Description::new(inputs, "answer");
        for (index, text) in texts.iter().enumerate() {
            let file = shard_name(index as u64 + 1);
            std::fs::write(folder.join(&file), text).unwrap();
            let rows = text.lines().count() as u64;
            description.shards.push(Shard { file, rows, bytes: text.len() as u64, ..Shard::default() });
        }
        description.save(folder).unwrap();
    }

    const GOOD: &str =
        "{\"features\":[[1,2.5],[3,-4]],\"question\":\"why\\n\",\"is_open\":true,\"answer\":\"no\"}\n";

    #[test]
    fn rows_of_all_shards_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let other = GOOD.replace("\"no\"", "\"yes\"");
        dataset(folder.path(), &[GOOD, &format!("{other}{GOOD}")]);
        // A run has written more, and not yet recorded it.
        std::fs::write(folder.path().join(shard_name(1)), format!("{GOOD}{{\"feat")).unwrap();
        let rows: Vec<Row> = Rows::open(folder.path()).unwrap().collect::<Result<_, _>>().unwrap();
        let labels: Vec<&str> = rows.iter().map(|row| row.label.as_str()).collect();
        assert_eq!(labels, ["no", "yes", "no"]);
        let numbers = |values: &[f64]| Cell::Numbers(values.to_vec());
        let first = [numbers(&[1.0, 2.5, 3.0, -4.0]), Cell::Text("why\n".to_owned()), numbers(&[1.0])];
        assert_eq!(rows[0].inputs, first);
    }

    #[test]
    fn wrong_rows_are_named() {
        for (from, to, expected) in [
            ("[3,-4]", "[3]", "column `features` has 3 numbers, expected 4"),
            ("-4", "null", "no number"),
            ("\"why\\n\"", "7", "column `question` is 7, expected a text"),
            ("true", "[1]", "has 1 numbers"),
            ("\"no\"", "3", "label `answer` is 3"),
            ("answer", "other", "no label `answer`"),
            ("question", "other", "no column `question`"),
            ("}\n", "\n", "no JSON object"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            dataset(folder.path(), &[GOOD, &format!("{GOOD}{}", GOOD.replace(from, to))]);
            let mut rows = Rows::open(folder.path()).unwrap();
            assert!(rows.next().unwrap().is_ok() && rows.next().unwrap().is_ok());
            let error = rows.next().unwrap().unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("rows-000002.jsonl`, line 2"), "{error}");
            assert!(rows.next().is_none(), "nothing follows an error");
        }
    }

    #[test]
    fn lost_bytes_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        dataset(folder.path(), &[GOOD]);
        std::fs::write(folder.path().join(shard_name(1)), &GOOD[..10]).unwrap();
        let error = Rows::open(folder.path()).unwrap().next().unwrap().unwrap_err();
        assert!(matches!(error, DatasetError::Short { found: 10, .. }), "{error}");
        std::fs::remove_file(folder.path().join(shard_name(1))).unwrap();
        let error = Rows::open(folder.path()).unwrap().next().unwrap().unwrap_err();
        assert!(matches!(error, DatasetError::File { .. }), "{error}");
    }
}
