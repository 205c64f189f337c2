//! The topic of a message that is sent, which may name columns of its row.
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch};
use tidemill_operators::kind::InputPort;
use tidemill_operators::record::METADATA_COLUMNS;
use tidemill_spec::diagnostic::Diagnostic;
use tidemill_spec::span::Located;
use tidemill_spec::types::ColumnType;

/// A part of a topic.
#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    /// The value of a column.
    Column(usize, ColumnType),
}

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Topic(Vec<Part>);

impl Topic {
    /// Parses `plant/{line}/alarms`, in which `{line}` is the value of the column `line`.
    pub(crate) fn parse(
        sink: &str,
        input: &InputPort,
        written: &Located<String>,
    ) -> Result<Self, Diagnostic> {
        let wrong = |text: String| {
            Diagnostic::error("E0606", text).at(written.span.clone()).with_help(
                "write a topic such as `plant/alarms`, or `plant/{line}/alarms` with the value of a column",
            )
        };
        let (mut parts, mut rest) = (Vec::new(), written.value.as_str());
        while let Some((text, after)) = rest.split_once('{') {
            let Some((name, after)) = after.split_once('}') else {
                return Err(wrong(format!("in the topic `{written}` a `{{` is not closed")));
            };
            parts.push(Part::Text(text.to_owned()));
            let name = Located::new(name.to_owned(), written.span.clone());
            let fits =
                |found: &ColumnType| matches!(found, ColumnType::Text | ColumnType::Int64 | ColumnType::Bool);
            let (index, column) = input.column(sink, 0, &name, "text, int64 or bool", fits)?;
            parts.push(Part::Column(index, column.column_type.clone()));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        let is_wrong = |part: &Part| matches!(part, Part::Text(text) if text.contains(['+', '#', '\0', '}']));
        if written.value.is_empty() || parts.iter().any(is_wrong) {
            return Err(wrong(format!("messages cannot be sent to the topic `{written}`")));
        }
        Ok(Self(parts))
    }

    /// The topic of a row. An empty value, and characters of values that no topic has, become `_`.
    pub(crate) fn of(&self, batch: &RecordBatch, row: usize) -> String {
        let mut topic = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => topic.push_str(text),
                Part::Column(index, column_type) => {
                    let array = batch.column(METADATA_COLUMNS + index);
                    let value = match column_type {
                        _ if array.is_null(row) => String::new(),
                        ColumnType::Int64 => array.as_primitive::<Int64Type>().value(row).to_string(),
                        ColumnType::Bool => array.as_boolean().value(row).to_string(),
                        _ => array.as_string::<i32>().value(row).replace(['+', '#', '\0'], "_"),
                    };
                    topic.push_str(if value.is_empty() { "_" } else { &value });
                }
            }
        }
        topic
    }
}
