//! JSON objects that come one by one, as rows of declared columns: for sources of messages. Fields are those of
//! [`super::jsonl`].
//!
//! ```
//! use tidemill_operators::sources::objects::{Objects, RowBuilder};
//! use tidemill_spec::types::{Column, ColumnType};
//! let objects = Objects::new(vec![Column::new("t", ColumnType::Float64)]);
//! let mut rows = RowBuilder::new(objects.columns());
//! rows.append(&objects.read(br#"{"t": 20.5}"#).unwrap()).unwrap();
//! assert_eq!(rows.finish()[0].len(), 1);
//! let mistake = objects.read(b"{\n \"t\": \"cold\"}").err().unwrap();
//! assert_eq!((mistake.line, mistake.column), (2, 7));
//! assert_eq!(mistake.detail, "field `t`: \"cold\" is not float64");
//! ```
use super::jsonl::{Found, Places, parse_object};
use super::table::{self, Fields};
use crate::columns::ScalarBuilder;
use arrow_array::ArrayRef;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::types::Column;
use tidemill_spec::value::Value;

/// Returns the columns that the option `columns` declares.
///
/// # Errors
/// No columns, names that a column cannot have, and types other than int64, float64, text, bool and tensors.
pub fn declared_columns(option: &Value) -> Result<Vec<Column>, Diagnostics> {
    table::declared_columns(option)
}

/// The type of the option `columns`, for its schema.
pub type ColumnsOption = std::collections::BTreeMap<String, crate::columns::DeclaredType>;

/// Reads objects.
pub struct Objects {
    columns: Vec<Column>,
    places: Places,
}

/// The values of one object.
pub struct Row(Fields);

/// A finding in an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Reason of a dead letter.
    pub reason: &'static str,
    /// The finding in words.
    pub detail: String,
    /// Its line in the text, from 1.
    pub line: usize,
    /// Its place in the line in characters, from 1.
    pub column: usize,
}

impl Objects {
    /// Reads these columns.
    pub fn new(columns: Vec<Column>) -> Self {
        let places = Places::of(&columns);
        Self { columns, places }
    }

    /// The columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Reads one object.
    ///
    /// # Errors
    /// No JSON object, or fields that are missing or of another type.
    pub fn read(&self, text: &[u8]) -> Result<Row, Mistake> {
        let mut fields = Fields::default();
        let mut places = self.places.clone();
        match parse_object(text, &self.columns, &mut places, &mut fields) {
            Ok(()) => Ok(Row(fields)),
            Err(Found { reason, detail, at }) => {
                let before = &text[..at.min(text.len())];
                let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
                let begin = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                let column = 1 + String::from_utf8_lossy(&before[begin..]).chars().count();
                Err(Mistake { reason, detail, line, column })
            }
        }
    }
}

impl Row {
    /// Bytes of its texts and values.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// Collects rows as columns.
pub struct RowBuilder(Vec<ScalarBuilder>);

impl RowBuilder {
    /// Collects rows of these columns.
    pub fn new(columns: &[Column]) -> Self {
        Self(columns.iter().map(|column| ScalarBuilder::new(&column.column_type, 16)).collect())
    }

    /// Adds a row.
    ///
    /// # Errors
    /// Its values are of other columns.
    pub fn append(&mut self, row: &Row) -> Result<(), String> {
        self.0.iter_mut().zip(row.0.iter()).try_for_each(|(builder, cell)| builder.append_cell(cell))
    }

    /// The columns; the next row is the first again.
    pub fn finish(&mut self) -> Vec<ArrayRef> {
        self.0.iter_mut().map(ScalarBuilder::finish).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::types::ColumnType;

    #[test]
    fn findings_have_their_place_in_the_text() {
        let objects =
            Objects::new(vec![Column::new("n", ColumnType::Int64), Column::new("t", ColumnType::Text)]);
        for (text, place, detail) in [
            ("{\"n\": 1}", (1, 1), "there is no field `t`"),
            ("{\n  \"t\": \"é\", \"n\": 1.5}", (2, 18), "field `n`: 1.5 is not int64"),
            ("{\"n\": 1,\n\"t\": }", (2, 6), "not a JSON object"),
            ("", (1, 1), "not a JSON object"),
            ("[1]", (1, 1), "array"),
        ] {
            let mistake = objects.read(text.as_bytes()).err().unwrap();
            assert_eq!((mistake.line, mistake.column), place, "{text}: {mistake:?}");
            assert!(mistake.detail.contains(detail), "{text}: {mistake:?}");
        }
        let mistake = objects.read(b"{\"t\": \"\xff\"}").err().unwrap();
        assert_eq!((mistake.reason, mistake.column), ("invalid_utf8", 8));
    }
}
