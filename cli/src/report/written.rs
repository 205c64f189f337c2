//! What the sinks of a run wrote, read again for the page: rows of text files, those that were taken back left out.
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use tidemill_operators::api::BoundSink;

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
    /// What stays, in no order.
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
    let lines = match sink.kind.as_str() {
        "jsonl" => jsonl,
        "csv" => csv,
        _ => return None,
    };
    let (text, is_cut) = start_of(file)?;
    let mut counts: BTreeMap<String, (i64, Row)> = BTreeMap::new();
    for mut row in lines(&text) {
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

fn jsonl(text: &str) -> Vec<Row> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn csv(text: &str) -> Vec<Row> {
    let mut records = cells(text).into_iter();
    let names = records.next().unwrap_or_default();
    let row = |cells: Vec<String>| names.iter().cloned().zip(cells.into_iter().map(value)).collect();
    records.map(row).collect()
}

/// A cell as what it looks like.
fn value(cell: String) -> Value {
    if let Ok(number) = cell.parse::<i64>() {
        return number.into();
    }
    cell.parse::<f64>().ok().filter(|number| number.is_finite()).map_or(Value::String(cell), Value::from)
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

    #[test]
    fn cells_may_have_quotes_commas_and_line_breaks() {
        let rows = csv("a,b\n1,\"x, \"\"y\"\"\nz\"\n2.5,\n");
        assert_eq!(rows.len(), 2);
        assert_eq!((&rows[0]["a"], rows[0]["b"].as_str()), (&Value::from(1), Some("x, \"y\"\nz")));
        assert_eq!(rows[1]["a"], Value::from(2.5));
    }
}
