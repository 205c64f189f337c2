//! Outputs of a run's sinks, read again for the page: rows of text files, without rows that were taken back.
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use tidemill_app::preparation::kinds;
use tidemill_operators::api::BoundSink;
use tidemill_spec::kinds::Form;
use tidemill_spec::types::{ColumnType, StreamType};

/// Bytes of a file that are read at most: a page shows a small part of it anyway.
const MOST: u64 = 64 << 20;
/// The column of corrections.
const CHANGE: &str = "_change";

/// A row: values by column.
pub(super) type Row = Map<String, Value>;

/// The rows of a sink.
pub(super) struct Written {
    /// Sink id.
    pub(super) sink: String,
    /// The rows that stay, in no order.
    pub(super) rows: Vec<Row>,
    /// Whether the file is longer than what was read.
    pub(super) is_cut: bool,
}

/// The rows that a sink wrote to a JSONL or CSV file which is there, where the columns are wanted.
pub(super) fn read(sink: &BoundSink, wants: impl Fn(&dyn Fn(&str) -> bool) -> bool) -> Option<Written> {
    let has = |name: &str| sink.input.column(name).is_some();
    if !wants(&has) {
        return None;
    }
    let [file] = &sink.files[..] else { return None };
    let lines: fn(&str, &StreamType) -> Vec<Row> = match kinds().sink(&sink.kind).form {
        Form::JsonLines => |text, _| json_lines(text),
        Form::Csv => csv,
        Form::Videos | Form::Other => return None,
    };
    let (text, is_cut) = start_of(file)?;
    let mut counts: BTreeMap<String, (i64, Row)> = BTreeMap::new();
    for mut row in lines(&text, &sink.input) {
        let change = row.remove(CHANGE).and_then(|change| change.as_i64()).unwrap_or(1);
        let key = serde_json::to_string(&row).unwrap_or_default();
        counts.entry(key).or_insert((0, row)).0 += change;
    }
    // Equal rows that are not corrections are as many as there are.
    let rows = counts
        .into_values()
        .flat_map(|(count, row)| std::iter::repeat_n(row, usize::try_from(count).unwrap_or(0)));
    Some(Written { sink: sink.id.clone(), rows: rows.collect(), is_cut })
}

/// The whole lines at the start of a file, and whether there are more.
fn start_of(file: &Path) -> Option<(String, bool)> {
    let file = File::open(file).ok().filter(|file| file.metadata().is_ok_and(|of| of.is_file()))?;
    let is_cut = file.metadata().ok()?.len() > MOST;
    let mut bytes = Vec::new();
    BufReader::new(file).take(MOST).read_to_end(&mut bytes).ok()?;
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    bytes.truncate(end);
    Some((String::from_utf8(bytes).ok()?, is_cut))
}

fn json_lines(text: &str) -> Vec<Row> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn csv(text: &str, stream: &StreamType) -> Vec<Row> {
    let mut records = cells(text).into_iter();
    let names = records.next().unwrap_or_default();
    let types: Vec<ColumnType> = names.iter().map(|name| type_of(name, stream)).collect();
    let row = |cells: Vec<String>| {
        let values = types.iter().zip(cells).map(|(column_type, cell)| value(cell, column_type));
        names.iter().cloned().zip(values).collect()
    };
    records.map(row).collect()
}

/// Returns the type of a column's cells: a text may look like a number.
fn type_of(name: &str, stream: &StreamType) -> ColumnType {
    match stream.column(name) {
        Some(column) => column.column_type.clone(),
        // Of what sinks add themselves, only the id is no whole number.
        None if name == "_id" => ColumnType::Text,
        None => ColumnType::Int64,
    }
}

/// A cell as what it is; null where it is empty and no text.
fn value(cell: String, column_type: &ColumnType) -> Value {
    match column_type {
        ColumnType::Int64 => cell.parse::<i64>().map_or(Value::Null, Value::from),
        // A number that JSON cannot express becomes null.
        ColumnType::Float64 => cell.parse::<f64>().map_or(Value::Null, Value::from),
        ColumnType::Bool => cell.parse::<bool>().map_or(Value::Null, Value::from),
        _ => Value::String(cell),
    }
}

/// The cells of each record; quotes as in RFC 4180.
fn cells(text: &str) -> Vec<Vec<String>> {
    let (mut records, mut record, mut cell) = (Vec::new(), Vec::new(), String::new());
    let mut quoted = false;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => cell.extend(characters.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => record.push(std::mem::take(&mut cell)),
            '\n' if !quoted => {
                record.push(std::mem::take(&mut cell).trim_end_matches('\r').to_owned());
                records.push(std::mem::take(&mut record));
            }
            other => cell.push(other),
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidemill_spec::types::Column;

    #[test]
    fn cells_may_have_quotes_commas_and_line_breaks() {
        let stream =
            StreamType::new([Column::new("a", ColumnType::Float64), Column::new("b", ColumnType::Text)]);
        let rows = csv("a,b\n1,\"x, \"\"y\"\"\nz\"\n2.5,\n", &stream);
        assert_eq!(rows.len(), 2);
        assert_eq!((&rows[0]["a"], rows[0]["b"].as_str()), (&Value::from(1.0), Some("x, \"y\"\nz")));
        assert_eq!(rows[1]["a"], Value::from(2.5));
    }

    #[test]
    fn cells_have_the_types_of_the_stream() {
        let columns = [
            ("camera", ColumnType::Text),
            ("road", ColumnType::Int64),
            ("mean", ColumnType::Float64),
            ("open", ColumnType::Bool),
        ];
        let stream = StreamType::new(columns.map(|(name, column_type)| Column::new(name, column_type)));
        let rows = csv("_id,_change,camera,road,mean,open\n07,-1,41,2,3,true\n1e5,1,,,NaN,\n", &stream);
        let expected = [
            json!({"_id": "07", "_change": -1, "camera": "41", "road": 2, "mean": 3.0, "open": true}),
            json!({"_id": "1e5", "_change": 1, "camera": "", "road": null, "mean": null, "open": null}),
        ];
        assert_eq!(rows.into_iter().map(Value::Object).collect::<Vec<_>>(), expected);
    }
}
